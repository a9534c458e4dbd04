# SPDX-License-Identifier: Apache-2.0
"""Faults of jobs as one table: manifests, what somebody does meanwhile, and the verdict that follows.

The same manifests run on the embedded engine and on a control plane; the nodes have the same names in both. Each fault
lists how the verdict on the control plane may differ. `docs/verdicts.md` has a row for each of these differences.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from cluster_pods import PREFIX
from msgspec import Struct

from trainwright.model.job import BUDGETS, PROGRAM_BUDGET
from trainwright.model.meta import ATTEMPT

Body = dict[str, Any]
#: Node 0 runs all jobs; node 1 runs the jobs whose node is lost.
NODES = ("node-0", "node-1")
#: Devices of each node.
GPUS = 2
_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: Stands for the name of the engine in a manifest, so that a test finds the processes of a job.
PLACE = "{place}"
#: Priority classes: of a pod that preempts others, and of pods that a quota does not allow.
URGENT_CLASS, LIMITED = "urgent", "limited"
PRIORITIES = {URGENT_CLASS: 1, LIMITED: 0}
#: Stands for a node with a kubelet, and the names of the nodes that are used instead.
KUBELET = "{kubelet}"
KUBELETS = {"here": NODES[0], "there": "fake-0"}
_FOREVER = "import time; time.sleep(3600)"


class Act(StrEnum):
    """What somebody does as soon as all replicas run."""

    NOTHING = ""
    KILL = "kill the first replica's process with SIGKILL"
    DELETE = "delete the first replica's pod"
    LOSE_NODE = "kill the agent of node 1"
    EVICT = "evict the first replica by the API"
    PREEMPT = "start a pod with a higher priority that needs the place"


class Difference(StrEnum):
    """The documented differences; the values are the first cells of the table in `docs/verdicts.md`."""

    REFUSED = "missing Secret, ConfigMap or claim"
    SCHEDULER = "replicas that fit on no node"
    NODE_LOST = "lost node"
    KUBELET = "signal"
    CLUSTER_ONLY = "quota, eviction, preemption"


class Fault(Struct, frozen=True):
    """A job, what is done to it, and the parts of its verdict that the table states."""

    name: str
    body: Body
    #: Fields of the verdict, by their names on the wire, on both engines.
    verdict: Mapping[str, Any]
    #: The classes that ended the attempts, oldest first.
    causes: tuple[str, ...]
    act: Act = Act.NOTHING
    differs: Difference | None = None
    #: Fields whose values on the control plane match these patterns; None: there is no such field.
    there: Mapping[str, str | None] = _NOTHING
    #: The embedded engine refuses the manifest, or has no such fault.
    only_there: bool = False


# -- manifests -------------------------------------------------------------------------------------------------------


def _container(name: str, command: list[str], *, message: bool = True, **more: Any) -> Body:
    attempt = {"name": "ATTEMPT", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT}']"}}}
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"} if message else {}
    env = [attempt, *more.pop("env", ())]
    return {"name": name, "image": "none", "command": command, "env": env, **policy, **more}


def _template(container: Body, node: str = NODES[0]) -> Body:
    selector = {"kubernetes.io/hostname": node} if node else {}
    pod = {"terminationGracePeriodSeconds": 1, "nodeSelector": selector, "containers": [container]}
    return {"spec": pod}


def _head(api: str, kind: str, name: str, annotations: Mapping[str, str] = _NOTHING) -> Body:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "annotations": dict(annotations)}}


def generic(name: str, command: list[str], *, limit: int = 0, spec: Mapping[str, Any] = _NOTHING, **more: Any) -> Body:
    """A GenericJob of one worker."""
    role = {"type": "worker", "replicas": 1, "restartPolicy": {"policy": "OnFailure", "limit": limit}}
    role["template"] = _template(_container("main", command, **more))
    return _head("batch.tensorstack.dev/v1beta1", "GenericJob", name) | {"spec": {"replicaSpecs": [role], **spec}}


def tf(
    name: str,
    command: list[str],
    *,
    policy: str = "Never",
    replicas: int = 1,
    run: Mapping[str, Any] = _NOTHING,
    priority: str = "",
    **more: Any,
) -> Body:
    """A TFJob of workers."""
    template = _template(_container("tensorflow", command, **more))
    template["spec"] |= {"priorityClassName": priority} if priority else {}
    worker = {"replicas": replicas, "restartPolicy": policy, "template": template}
    spec = {"runPolicy": dict(run), "tfReplicaSpecs": {"Worker": worker}}
    return _head("kubeflow.org/v1", "TFJob", name) | {"spec": spec}


def paddle(name: str, command: list[str], *, run: Mapping[str, Any] = _NOTHING, **more: Any) -> Body:
    """A PaddleJob of one worker; by default it is not restarted."""
    template = _template(_container("paddle", command, **more))
    template["spec"]["restartPolicy"] = "Never"  # otherwise the node restarts the container in its pod
    worker = {"replicas": 1, "template": template}
    spec = {"runPolicy": {"backoffLimit": 0, **run}, "worker": worker, "intranet": "PodIP"}
    return _head("batch.paddlepaddle.org/v1", "PaddleJob", name) | {"spec": spec}


def training(
    name: str,
    command: list[str],
    *,
    annotations: Mapping[str, str] = _NOTHING,
    trainer: Mapping[str, Any] = _NOTHING,
    spec: Mapping[str, Any] = _NOTHING,
    node: str = NODES[0],
    **more: Any,
) -> Body:
    """An AITrainingJob of one trainer."""
    given = {"replicas": 1, "template": _template(_container("aitj-trainer", command, **more), node), **trainer}
    head = _head("elasticdeeplearning.ai/v1", "AITrainingJob", name, annotations)
    return head | {"spec": {"replicaSpecs": {"trainer": given}, **spec}}


def _python(program: str) -> list[str]:
    return ["python3", "-uSc", program]


def _shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def _waits(name: str) -> list[str]:
    """A program that runs until it is ended, with a word by which a test finds its process."""
    return [*_python(_FOREVER), f"{PLACE}-{name}"]


def on_kubelet(body: Body, code: int) -> Body:
    """The GenericJob on a fake node, which reports what a kubelet reports: the exit code, but no signal."""
    (role,) = body["spec"]["replicaSpecs"]
    role["template"]["metadata"] = {"annotations": {PREFIX + "exit": str(code), PREFIX + "runs": "1"}}
    role["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"] = KUBELET
    return body


def _of_kubelet(message: str) -> Mapping[str, str | None]:
    return {"message": message, "signal": None, "node": KUBELETS["there"]}


def _failed(reason: str, failure: str, replica: str = "", **more: Any) -> Body:
    named = {"replica": replica} if replica else {}
    return {"decision": "Failed", "reason": reason, "class": failure, **named, **more}


_SUCCEEDED = {"decision": "Succeeded", "reason": "Rule"}
_MISSING = "MissingObject"
_BUS = """
import mmap
with open("/tmp/short", "w+b") as file:
    file.truncate(4096)
    mapped = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    mapped[0]
"""
_PORT = "import socket; a = socket.create_server(('127.0.0.1', 5123)); socket.create_server(('127.0.0.1', 5123))"
_MEMORY = "import time; a = bytearray(1 << 28); time.sleep(3600)"
_FIRST_FAILS = "sleep 1; test $ATTEMPT -gt 0 || exit 1"
# The time that it needs to end is longer than the engines need to see that its pod is being deleted.
_UNTIL_ATTEMPT_1 = "trap 'sleep 0.5; exit 1' TERM; test $ATTEMPT -gt 0 && exec sleep 1; sleep 3600 & wait"
_CPUS: Body = {"resources": {"requests": {"cpu": 3}}}
_LIMIT: Body = {"resources": {"limits": {"memory": "64Mi"}}}
_GPU: Body = {"resources": {"limits": {"nvidia.com/gpu": GPUS}}}
_SECRET: Body = {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "token"}}}]}
_MAP: Body = {"envFrom": [{"configMapRef": {"name": "absent"}}]}
_UNSCHEDULABLE = (
    r"the job was active longer than its deadline of 8s; Worker-1: 0/3 nodes are available: "
    r".*1 Insufficient nvidia\.com/gpu.*"
)
_BUDGET = {BUDGETS[PROGRAM_BUDGET]: "1/1h"}

FAULTS = (
    Fault(
        "traceback",
        generic("traceback", _python("raise ValueError('loss is nan')")),
        _failed("Rule", "ProgramError", "worker-0", code=1, container="main", node=NODES[0]),
        ("ProgramError",),
    ),
    Fault(
        "exit-code",
        tf("exit-code", _shell("echo MemoryError; exit 3"), message=False),
        _failed("Rule", "ProgramError", "Worker-0", code=3),
        ("ProgramError",),
    ),
    Fault(
        "import",
        paddle("import", _python("import trian")),
        _failed("Rule", "ImportError", "worker-0", code=1),
        ("ImportError",),
    ),
    Fault(
        "shell-command",
        training("shell-command", _shell("trian")),
        _failed("Rule", "CommandNotFound", "trainer-0", code=127),
        ("CommandNotFound",),
    ),
    Fault(
        "no-program",
        generic("no-program", ["trian"]),
        _failed("Rule", "CommandNotFound", "worker-0"),
        ("CommandNotFound",),
    ),
    Fault(
        "memory",
        tf("memory", _python(_MEMORY), **_LIMIT),
        _failed("Rule", "OutOfMemory", "Worker-0", code=137),
        ("OutOfMemory",),
    ),
    Fault(
        "killed",
        training("killed", _waits("killed")),
        _failed("Rule", "Killed", "trainer-0", code=137, signal=9),
        ("Killed",),
        Act.KILL,
    ),
    Fault(
        "crash",
        paddle("crash", _python("import ctypes; ctypes.string_at(0)")),
        _failed("Rule", "Crashed", "worker-0", code=139, signal=11),
        ("Crashed",),
    ),
    Fault(
        "bus",
        generic("bus", _python(_BUS)),
        _failed("Rule", "SharedMemory", "worker-0", code=135, signal=7),
        ("SharedMemory",),
    ),
    Fault(
        "port",
        tf("port", _python(_PORT)),
        _failed("Rule", "PortInUse", "Worker-0", code=1),
        ("PortInUse",),
    ),
    Fault(
        "unschedulable",
        tf("unschedulable", _python(_FOREVER), replicas=2, run={"activeDeadlineSeconds": 8}, **_GPU),
        _failed("Deadline", "Deadline"),
        ("Deadline",),
        differs=Difference.SCHEDULER,
        there={"message": _UNSCHEDULABLE},
    ),
    Fault(
        "deadline",
        training("deadline", _python(_FOREVER), spec={"timeLimit": 3}),
        _failed("Deadline", "Deadline"),
        ("Deadline",),
    ),
    Fault(
        "backoff",
        paddle("backoff", _shell("exit 101"), run={"backoffLimit": 2}),
        _failed("BackoffLimit", "ProgramError", "worker-0", code=101),
        ("ProgramError", "ProgramError", "ProgramError"),
    ),
    Fault(
        "in-place",
        tf("in-place", _shell("exit 4"), policy="OnFailure", run={"backoffLimit": 2}),
        _failed("BackoffLimit", "ProgramError", "Worker-0", code=4),
        ("ProgramError",),
    ),
    Fault(
        "rule",
        generic("rule", _shell("exit 5"), spec={"failureRules": [{"worker": [0]}]}),
        _failed("Rule", "ProgramError", "worker-0", code=5),
        ("ProgramError",),
    ),
    Fault(
        "budget",
        training("budget", _shell("exit 6"), annotations=_BUDGET, trainer={"restartPolicy": "OnFailure"}),
        _failed("BackoffLimit", "ProgramError", "trainer-0", code=6, attempt=1),
        ("ProgramError", "ProgramError"),
    ),
    Fault(
        "restarted",
        generic("restarted", _shell(_FIRST_FAILS), limit=1),
        _SUCCEEDED,
        ("ProgramError", ""),
    ),
    Fault(
        "requested",
        training("requested", _python(_FOREVER), annotations={"Preempted": "make room"}),
        _failed("External", "Requested"),
        (),
    ),
    Fault(
        "deleted",
        paddle("deleted", _shell(_UNTIL_ATTEMPT_1)),
        _SUCCEEDED,
        ("Deleted", ""),
        Act.DELETE,
    ),
    Fault(
        "replaced",
        tf("replaced", _shell(_UNTIL_ATTEMPT_1), run={"activeDeadlineSeconds": 10}),
        _failed("Deadline", "Deadline"),
        ("Deleted", "Deadline"),
        Act.DELETE,
    ),
    Fault(
        "node-lost",
        training("node-lost", _waits("node-lost"), node=NODES[1]),
        _failed("Rule", "NodeLost", "trainer-0", node=NODES[1]),
        ("NodeLost",),
        Act.LOSE_NODE,
        Difference.NODE_LOST,
        {"message": rf"trainer-0: node {NODES[1]} is lost \(Kubelet stopped posting node status\.\)"},
    ),
    Fault(
        "kubelet-crash",
        on_kubelet(generic("kubelet-crash", _python("import ctypes; ctypes.string_at(0)")), 139),
        _failed("Rule", "Crashed", "worker-0", code=139),
        ("Crashed",),
        differs=Difference.KUBELET,
        there=_of_kubelet("worker-0: container main ended with SIGSEGV, or exit code 139 from the program"),
    ),
    Fault(
        "kubelet-137",
        on_kubelet(generic("kubelet-137", _shell("exit 137")), 137),
        _failed("Rule", "ProgramError", "worker-0", code=137, signal=0),
        ("ProgramError",),
        differs=Difference.KUBELET,
        there={
            **_of_kubelet("worker-0: container main ended with SIGKILL, or exit code 137 from the program"),
            "class": "Killed",
            "action": "find out who sent the signal.*",
        },
    ),
    Fault(
        "secret",
        training("secret", _python(_FOREVER), **_SECRET),
        _failed("Rule", _MISSING, "trainer-0"),
        (_MISSING,),
        differs=Difference.REFUSED,
        only_there=True,
    ),
    Fault(
        "config-map",
        generic("config-map", _python(_FOREVER), **_MAP),
        _failed("Rule", _MISSING, "worker-0"),
        (_MISSING,),
        differs=Difference.REFUSED,
        only_there=True,
    ),
    Fault(
        "quota",
        tf("quota", _python(_FOREVER), run={"activeDeadlineSeconds": 6}, priority=LIMITED),
        _failed("Deadline", "Deadline"),
        ("Deadline",),
        differs=Difference.CLUSTER_ONLY,
        there={"message": rf".*: the API server refuses its pod: .*exceeded quota: {LIMITED}, .*"},
        only_there=True,
    ),
    Fault(
        "evicted",
        paddle("evicted", _shell(_UNTIL_ATTEMPT_1)),
        _SUCCEEDED,
        ("Disrupted", ""),
        Act.EVICT,
        Difference.CLUSTER_ONLY,
        only_there=True,
    ),
    Fault(
        "preempted",
        paddle("preempted", _shell(_UNTIL_ATTEMPT_1), **_CPUS),
        _SUCCEEDED,
        ("Preempted", ""),
        Act.PREEMPT,
        Difference.CLUSTER_ONLY,
        only_there=True,
    ),
)
#: No pod of this priority class may exist.
QUOTA: Body = {
    "metadata": {"name": LIMITED},
    "spec": {
        "hard": {"pods": "0"},
        "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": [LIMITED]}]},
    },
}
#: A pod that fits only if the job `preempted` is preempted.
URGENT: Body = {
    "metadata": {"name": "urgent"},
    "spec": {
        **_template({"name": "main", "image": "none", "command": ["sleep", "1"], **_CPUS})["spec"],
        "priorityClassName": URGENT_CLASS,
        "restartPolicy": "Never",
    },
}
