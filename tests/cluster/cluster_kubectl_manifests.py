# SPDX-License-Identifier: Apache-2.0
"""The objects of the script of kubectl commands: a job of each kind, ConfigMaps and pods, as files.

The pods of jobs run on node-0, and run long enough to be seen. Pods for `kubectl logs` and `kubectl exec` run on
node-1, so that the engine is compared with a real kubelet; but a kubelet soon removes the log of the container before.
"""

import json
from typing import Any

from cluster_images import BUSYBOX
from cluster_servers import NODES

Body = dict[str, Any]


def _pod_spec(script: str, container: str, node: str = NODES[0], **more: Any) -> Body:
    """What runs a line of shell on one node, and ends soon when it is told to."""
    image = {"image": BUSYBOX, "imagePullPolicy": "Never"}
    main = {"name": container, **image, "command": ["sh", "-c", script]}
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [main],
        **more,
    }


def _pod(name: str, script: str, node: str, **more: Any) -> Body:
    spec = {"restartPolicy": "Never", **_pod_spec(script, "main", node), **more}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, "suite": "script"}},
        "spec": spec,
    }


def generic(replicas: int = 2, **metadata: Any) -> Body:
    """A GenericJob whose workers run until they are deleted."""
    role = {
        "type": "worker",
        "replicas": replicas,
        "restartPolicy": {"policy": "Never", "limit": 0},
        "template": {"spec": _pod_spec("echo begun; exec sleep 1000", "main")},
    }
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "GenericJob",
        "metadata": {"name": "gen", "labels": {"suite": "script"}, **metadata},
        "spec": {"replicaSpecs": [role]},
    }


TF: Body = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "tf"},
    "spec": {
        "runPolicy": {"cleanPodPolicy": "None"},
        "tfReplicaSpecs": {
            "Worker": {
                "replicas": 1,
                "restartPolicy": "Never",
                "template": {"spec": _pod_spec("for i in 1 2 3; do echo step $i; done; sleep 2", "tensorflow")},
            }
        },
    },
}
PADDLE: Body = {
    "apiVersion": "batch.paddlepaddle.org/v1",
    "kind": "PaddleJob",
    "metadata": {"name": "pd"},
    "spec": {
        "cleanPodPolicy": "Never",
        "worker": {"replicas": 1, "template": {"spec": _pod_spec("echo trained; sleep 2", "paddle")}},
    },
}
AI: Body = {
    "apiVersion": "elasticdeeplearning.ai/v1",
    "kind": "AITrainingJob",
    "metadata": {"name": "ai"},
    "spec": {
        "cleanPodPolicy": "None",
        "replicaSpecs": {
            "trainer": {"replicas": 1, "template": {"spec": _pod_spec("echo failed; sleep 2; exit 3", "aitj-trainer")}}
        },
    },
}
SETTINGS: Body = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "settings", "labels": {"suite": "script"}},
    "data": {"rate": "0.1", "steps": "100"},
}
#: Standard output and standard error are two pipes, so only time keeps their lines in order.
_LOOP = "i=0; while [ $i -lt 5 ]; do i=$((i+1)); echo line $i; done; sleep 2; echo to stderr >&2; sleep 2; echo end"


def _changed(body: Body, **data: Any) -> Body:
    return {**body, "data": {**body["data"], **data}}


def _listed(*names: str) -> Body:
    """A List of settings, as `kubectl get -o json` prints several objects."""
    items = [{**SETTINGS, "metadata": {**SETTINGS["metadata"], "name": name}} for name in names]
    return {"apiVersion": "v1", "kind": "List", "items": items}


FILES = {
    "gen.json": json.dumps(generic()),
    "gen-3.json": json.dumps(generic(3)),
    "gen-typo.json": json.dumps({**generic(), "spec": {**generic()["spec"], "succesRules": []}}),
    "gen-wrong.json": json.dumps({**generic(), "spec": {"replicaSpecs": [{"type": "worker", "replicas": "two"}]}}),
    "tf.json": json.dumps(TF),
    "pd.json": json.dumps(PADDLE),
    "ai.json": json.dumps(AI),
    "settings.json": json.dumps(SETTINGS),
    "settings-2.json": json.dumps(_changed(SETTINGS, rate="0.2")),
    "settings-3.json": json.dumps(_changed(SETTINGS, rate="0.3")),
    "settings-list.json": json.dumps(_listed("first-of-list", "second-of-list")),
    "settings-typo.json": json.dumps({**SETTINGS, "dat": {}}),
    "lines.json": json.dumps(_pod("lines", _LOOP, NODES[1])),
    "again.json": json.dumps(
        _pod("again", "echo try; sleep 1; [ -e done ] || exit 1", NODES[0], restartPolicy="OnFailure")
    ),
    "shell.json": json.dumps(_pod("shell", "echo ready; exec sleep 1000", NODES[1])),
    "note.txt": "a note\n",
    "paths.txt": "{.kind} {.metadata.name}",
    "template.txt": "{{.kind}} {{.metadata.generation}}",
    "columns.txt": "NAME TYPES\n.metadata.name .spec.replicaSpecs[*].type\n",
}
