# SPDX-License-Identifier: Apache-2.0
"""Every loss: where it is reported, and what the report says. A setting that loses nothing is not reported."""

from typing import Any

import pytest
from conversion_driver import Body, generic, to

from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import CleanPods, RestartScope

IMAGE = "busybox"


def template(container: str = "xgboost", **spec: Any) -> Body:
    return {"spec": {"containers": [{"name": container, "image": IMAGE, "command": ["train"]}], **spec}}


def kubeflow(kind: str = "XGBoostJob", policy: str = "OnFailure", workers: int = 2, **run: Any) -> Body:
    """A job of Kubeflow v1 with a master and workers."""
    field, container = {
        "XGBoostJob": ("xgbReplicaSpecs", "xgboost"),
        "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
        "TFJob": ("tfReplicaSpecs", "tensorflow"),
    }[kind]
    one = {"restartPolicy": policy, "template": template(container)}
    roles = {"Master": {"replicas": 1, **one}} | ({"Worker": {"replicas": workers, **one}} if workers else {})
    return document("kubeflow.org/v1", kind, {field: roles, "runPolicy": run})


def document(api: str, kind: str, spec: Body, **metadata: Any) -> Body:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "demo", **metadata}, "spec": spec}


def training(spec: Body | None = None, annotations: Body | None = None, **trainer: Any) -> Body:
    """An AITrainingJob with one role of two replicas."""
    role = {"replicas": 2, "template": template("aitj-main"), **trainer}
    metadata = {"annotations": annotations} if annotations else {}
    body = {"replicaSpecs": {"trainer": role}, **(spec or {})}
    return document("elasticdeeplearning.ai/v1", "AITrainingJob", body, **metadata)


def paddle(workers: int = 2, **spec: Any) -> Body:
    worker = {"replicas": workers, "template": template("paddle")}
    return document("batch.paddlepaddle.org/v1", "PaddleJob", {"worker": worker, **spec})


def with_worker(job: Body, **changed: Any) -> Body:
    """The job, in which the worker has other fields."""
    specs = job["spec"]["xgbReplicaSpecs"]
    return job | {"spec": job["spec"] | {"xgbReplicaSpecs": specs | {"Worker": specs["Worker"] | changed}}}


SIDECAR = {"spec": {"containers": [*template()["spec"]["containers"], {"name": "tail", "image": IMAGE}]}}
RUN, XGB, AI = "spec.runPolicy", "spec.xgbReplicaSpecs.Worker", "spec.replicaSpecs.trainer"

#: (source, path, a part of the message)
LOSSES: dict[str, tuple[Body, str, str]] = {
    "deadline": (kubeflow(activeDeadlineSeconds=90), f"{RUN}.activeDeadlineSeconds", "the result has no deadline"),
    "ttl": (kubeflow(ttlSecondsAfterFinished=60), f"{RUN}.ttlSecondsAfterFinished", "stays until you delete it"),
    "backoff": (
        kubeflow(backoffLimit=4),
        f"{RUN}.backoffLimit",
        "restarted 3 times; the result allows as many for each",
    ),
    "old place": (
        document("kubeflow.org/v1", "TFJob", {**kubeflow("TFJob")["spec"], "ttlSecondsAfterFinished": 60}),
        "spec.ttlSecondsAfterFinished",
        "the job is removed",
    ),
    "managed": (kubeflow(managedBy="kueue.x-k8s.io/multikueue"), f"{RUN}.managedBy", "another controller manages"),
    "gang": (
        kubeflow(schedulingPolicy={"queue": "a"}),
        f"{RUN}.schedulingPolicy",
        "the result is none with scheduling.volcano",
    ),
    "exit codes": (
        with_worker(kubeflow(), restartPolicy="ExitCode"),
        f"{XGB}.restartPolicy",
        "after exit code 128 and above, an eviction for its own resource use or a refusal by the node; the result",
    ),
    "exit codes with a limit": (
        kubeflow(policy="ExitCode", workers=0, backoffLimit=4),
        "spec.xgbReplicaSpecs.Master.restartPolicy",
        "only after exit code 128 and above; the result restarts them after every failure",
    ),
    "sidecar": (
        with_worker(kubeflow(), template=SIDECAR),
        f"{XGB}.template",
        "the end of xgboost decides about the replica; in the result the end of every container",
    ),
    "emptyDir": (
        with_worker(kubeflow(), template=template(volumes=[{"name": "scratch", "emptyDir": {}}])),
        f"{XGB}.template",
        "a restarted container finds its files in scratch again",
    ),
    "restart budget": (
        kubeflow() | {"metadata": {"name": "demo", "annotations": {"trainwright.dev/restart-budget": "5/1h"}}},
        "metadata.annotations",
        "the restart budget of the annotation applies",
    ),
    "no success": (
        training({"completePolicy": "None"}),
        "spec.completePolicy",
        "succeeds never by a rule; the result succeeds by trainer 0 and trainer 1",
    ),
    "no failure": (training({"failPolicy": "None"}), "spec.failPolicy", "the job fails never by a rule"),
    "role limit": (
        training(restartPolicy="OnFailure", restartScope="Pod", restartLimit=2),
        f"{AI}.restartLimit",
        "the whole role may be restarted 2 times; in the result each replica 2 times",
    ),
    "restart count": (
        training(),
        f"{AI}.template",
        "programs get TRAININGJOB_REPLICA_RESTARTCOUNT; the result does not",
    ),
    "elastic": (
        training(minReplicas=1, maxReplicas=4),
        f"{AI}.minReplicas",
        "a user may change the number of replicas from 1 to 4",
    ),
    "autosized": (
        training(edlPolicy="Auto", minReplicas=1),
        f"{AI}.edlPolicy",
        "the controller may change the number of replicas from 1 to 2",
    ),
    "time limit": (training({"timeLimit": 60}), "spec.timeLimit", "1m00s after all replicas ran"),
    "end by annotation": (
        training(annotations={"Preempted": "go"}),
        "metadata.annotations",
        "annotation Preempted ends",
    ),
    "codes of sidecars": (
        training(
            {"restartingExitCode": 137},
            restartPolicy="ExitCode",
            restartLimit=1,
            replicas=1,
            template={"spec": {"containers": [{"name": "aitj-a", "image": IMAGE}, {"name": "b", "image": IMAGE}]}},
        ),
        f"{AI}.restartPolicy",
        "only the main container may cause a restart",
    ),
    "addresses": (paddle(), "spec.intranet", "pods wait for the addresses of all pods"),
    "host ports": (paddle(intranet="Host"), "spec.intranet", "each replica gets free ports of its node"),
    "etcd": (paddle(elastic=1), "spec.elastic", "replicas look up a new size in etcd"),
    "clean-up": (
        paddle(cleanPodPolicy="OnCompletion"),
        "spec.cleanPodPolicy",
        "after success, all pods are removed; in the result unfinished pods",
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_is_reported_with_its_path(case: str) -> None:
    source, path, text = LOSSES[case]
    found = [problem for problem in to("genericjob", source).losses if text in problem.message]

    assert [problem.path for problem in found] == [path], to("genericjob", source).losses


def test_a_role_that_the_new_kind_does_not_have() -> None:
    found = to("jaxjob", kubeflow())

    assert ("spec.xgbReplicaSpecs.Master", "the role has 1 replica; the result does not have it") in [
        (problem.path, problem.message) for problem in found.losses
    ]


def test_a_job_that_the_new_kind_cannot_have_gives_no_manifest() -> None:
    found = to("xgboostjob", training())

    assert found.document is None
    assert [problem.message for problem in found.losses] == [
        "the result would be no valid XGBoostJob: spec.xgbReplicaSpecs: may not be empty"
    ]


def test_scope_of_restarts() -> None:
    two = training(
        {
            "replicaSpecs": {
                name: {
                    "replicas": 2,
                    "restartPolicy": "Always",
                    "restartScope": "Replica",
                    "template": template("aitj-a"),
                }
                for name in ("trainer", "pserver")
            }
        }
    )

    texts = [problem.message for problem in to("genericjob", two).losses]
    assert "a restart restarts all replicas of the role; in the result the whole job" in texts
    one = generic(training(restartPolicy="Always", restartScope="Replica"))
    assert load(GENERICJOB, one).job.roles[0].restart.scope is RestartScope.JOB


# -- what is not lost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize("kind", ["XGBoostJob", "PyTorchJob", "TFJob"])
@pytest.mark.parametrize("clean", ["None", "Running", "All"])
def test_the_usual_settings_lose_nothing(kind: str, policy: str, clean: str) -> None:
    source = kubeflow(kind, policy, cleanPodPolicy=clean, suspend=True)
    found = to("genericjob", source)

    assert found.losses == ()
    assert found.document is not None
    life = load(GENERICJOB, found.document).job.lifecycle
    assert life.suspended
    assert life.clean.failed is {"None": CleanPods.NONE, "Running": CleanPods.UNFINISHED, "All": CleanPods.ALL}[clean]


def test_a_limit_of_one_replica_is_not_lost() -> None:
    found = to("genericjob", kubeflow(workers=0, backoffLimit=4))

    assert found.losses == ()
    assert found.document is not None
    assert found.document["spec"]["replicaSpecs"][0]["restartPolicy"] == {"policy": "OnFailure", "limit": 3}


def test_notes_lose_nothing() -> None:
    notes = [problem.message for problem in to("genericjob", kubeflow("TFJob", "Never")).notes]

    assert notes == [
        "the result also restarts replicas after a preemption or drain or the loss of a node",
        "the result also restarts replicas after a preemption or drain or the loss of a node",
        "in the result, TF_CONFIG contains short host names, which resolve in the job's namespace",
        "pods of the result do not have the labels training.kubeflow.org/operator-name, "
        "training.kubeflow.org/job-name, training.kubeflow.org/replica-type, training.kubeflow.org/replica-index: "
        "adapt selectors that use them",
        "the value of TF_CONFIG in the result fits this number of replicas: "
        "to change it, change the original and convert again",
    ]
