# SPDX-License-Identifier: Apache-2.0
"""Several mistakes in one manifest: each is told once, whatever the others are, and nothing is told that is not one."""

from collections.abc import Callable
from copy import deepcopy
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.kinds.base import load
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body

#: The machine may be busy with other tests.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)


class Fault(NamedTuple):
    """One mistake: how it is made, what is told of it, and what it is about."""

    make: Callable[[Body], object]
    path: str
    text: str
    #: Two mistakes about the same thing are not put into one manifest.
    about: frozenset[str]
    warning: bool = False


def at(document: Body, path: str) -> tuple[Any, Any]:
    """The mapping or list that a path ends in, and its key there."""
    *way, last = [int(step) if step.isdigit() else step for step in path.replace("[", ".").replace("]", "").split(".")]
    part: Any = document
    for step in way:
        part = part[step]
    return part, last


def put(path: str, value: Any) -> Callable[[Body], object]:
    def make(document: Body) -> None:
        part, key = at(document, path)
        part[key] = value

    return make


def drop(path: str) -> Callable[[Body], object]:
    def make(document: Body) -> None:
        part, key = at(document, path)
        del part[key]

    return make


def rename(path: str, name: str) -> Callable[[Body], object]:
    def make(document: Body) -> None:
        part, key = at(document, path)
        renamed = {name if one == key else one: value for one, value in part.items()}
        part.clear()
        part.update(renamed)

    return make


def error(make: Callable[[Body], object], path: str, text: str, *about: str) -> Fault:
    return Fault(make, path, text, frozenset(about or (path,)))


def warning(make: Callable[[Body], object], path: str, text: str, *about: str) -> Fault:
    return Fault(make, path, text, frozenset(about or (path,)), warning=True)


def pod(name: str) -> Body:
    return {
        "spec": {
            "containers": [
                {
                    "name": name,
                    "image": "python:3.12",
                    "command": ["python", "train.py"],
                    "env": [{"name": "A", "value": "1"}],
                    "ports": [{"name": f"{name[:4]}-port", "containerPort": 8080}],
                    "resources": {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "2"}},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
    }


def of_pod(path: str) -> tuple[Fault, ...]:
    """What may be wrong with any kind's template."""
    one = f"{path}.spec.containers[0]"
    return (
        error(put(f"{one}.command", "python train.py"), f"{one}.command", "expected a list"),
        error(put(f"{one}.env[0].value", 3), f"{one}.env[0].value", "put it in quotes"),
        error(put(f"{one}.resources.limits.memory", "8GB"), f"{one}.resources.limits.memory", "expected a quantity"),
        error(put(f"{one}.resources.limits.cpu", "1"), f"{one}.resources.limits.cpu", "may not be below requests"),
        error(
            put(f"{one}.volumeMounts[0].name", "date"),
            f"{one}.volumeMounts[0].name",
            "there is no volume 'date'",
            "volumes",
        ),
        error(put(f"{path}.spec.volumes[0].name", 5), f"{path}.spec.volumes[0].name", "expected text", "volumes"),
        error(put(f"{one}.ports[0].containerPort", 70000), f"{one}.ports[0].containerPort", "expected a port", "ports"),
        warning(put(f"{one}.workinDir", "/data"), f"{one}.workinDir", "unknown field", "workingDir"),
        warning(put(f"{path}.spec.colour", "red"), f"{path}.spec.colour", "unknown field"),
    )


GENERIC: Body = {
    "apiVersion": "batch.tensorstack.dev/v1beta1",
    "kind": "GenericJob",
    "metadata": {"name": "job", "labels": {"team": "a"}},
    "spec": {
        "successRules": [{"worker": [0, 3]}],
        "failureRules": [{"ps": [1]}, {"worker": [1]}],
        "service": {"ports": [{"name": "http", "port": 80}]},
        "runMode": {"debug": {"enabled": True}, "pause": {"enabled": False}},
        "cleanUpPolicy": "All",
        "replicaSpecs": [
            {
                "type": "worker",
                "replicas": 4,
                "restartPolicy": {"policy": "OnFailure", "limit": 3},
                "template": pod("main"),
            },
            {"type": "ps", "replicas": 2, "template": pod("main")},
        ],
    },
}
_WORKER = "spec.replicaSpecs[0]"
GENERIC_FAULTS = (
    error(put("metadata.name", 5), "metadata.name", "expected text", "name"),
    error(put("metadata.name", "My_Job"), "metadata.name", "use lower-case letters", "name"),
    error(put("metadata.labels.team", 7), "metadata.labels.team", "expected text"),
    error(put("spec.cleanUpPolicy", "Running"), "spec.cleanUpPolicy", "expected one of"),
    error(put(f"{_WORKER}.replicas", "4"), f"{_WORKER}.replicas", "write it without quotes", "worker's size"),
    error(put(f"{_WORKER}.replicas", -1), f"{_WORKER}.replicas", "from 0 to 10000", "worker's size"),
    error(
        put("spec.successRules[0].worker", [9]),
        "spec.successRules[0].worker",
        "there is no rank 9",
        "worker's size",
        "worker's name",
    ),
    error(
        put("spec.failureRules[0]", {"pss": [0]}),
        "spec.failureRules[0]",
        "there is no replica type 'pss'",
        "ps's name",
        "worker's name",
    ),
    error(put("spec.failureRules[1].worker", []), "spec.failureRules[1].worker", "may not be empty"),
    error(put("spec.failureRules[1].worker", "1"), "spec.failureRules[1].worker", "expected a list"),
    error(
        put(f"{_WORKER}.restartPolicy.policy", "OnFailed"),
        f"{_WORKER}.restartPolicy.policy",
        "expected one of",
        "policy",
    ),
    error(put(f"{_WORKER}.restartPolicy", "Always"), f"{_WORKER}.restartPolicy", "expected a mapping", "policy"),
    warning(
        put(f"{_WORKER}.restartPolicy", {"policy": "Always"}),
        f"{_WORKER}.restartPolicy.limit",
        "never restarts anything",
        "policy",
    ),
    warning(
        put(f"{_WORKER}.restartPolicy", {"policy": "Always", "limt": 3}),
        f"{_WORKER}.restartPolicy.limt",
        "unknown field",
        "policy",
    ),
    error(drop("spec.replicaSpecs[1].type"), "spec.replicaSpecs[1].type", "missing; expected text", "ps's name"),
    error(put("spec.replicaSpecs[1].type", "P_S"), "spec.replicaSpecs[1].type", "is not allowed here", "ps's name"),
    error(
        rename("spec.replicaSpecs", "replicaSpec"),
        "spec.replicaSpec",
        "unknown field, and the required replicaSpecs is missing",
        "specs",
    ),
    error(rename(f"{_WORKER}.replicas", "replcas"), f"{_WORKER}.replcas", "unknown field", "worker's size"),
    error(put("spec.service.ports[0].port", 0), "spec.service.ports[0].port", "from 1 to 65535", "service"),
    error(
        put("spec.service.ports", [{"name": "a", "port": 1}, {"name": "a", "port": 2}]),
        "spec.service.ports",
        "port name 'a' is given 2 times",
        "service",
    ),
    error(
        put(f"{_WORKER}.template.spec.containers[0].args", ["$(service.port[gone])"]),
        f"{_WORKER}.template.spec.containers[0].args[0]",
        "no port of that name",
        "service",
    ),
    warning(put("spec.runMode.pause.enabled", True), "spec.runMode", "both pause and debug"),
    error(
        put("spec.runMode.debug.enabled", "yes"), "spec.runMode.debug.enabled", "expected true or false", "spec.runMode"
    ),
    warning(put("spec.colour", "red"), "spec.colour", "unknown field"),
    warning(
        put("spec.replicaSpecs[1].template.spec.restartPolicy", "Always"),
        "spec.replicaSpecs[1].template.spec.restartPolicy",
        "is ignored",
    ),
    *of_pod(f"{_WORKER}.template"),
)

TF: Body = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "TFJob",
    "metadata": {"name": "job"},
    "spec": {
        "runPolicy": {"backoffLimit": 3, "cleanPodPolicy": "All", "schedulingPolicy": {"minAvailable": 5}},
        "tfReplicaSpecs": {
            "Chief": {"replicas": 1, "restartPolicy": "OnFailure", "template": pod("tensorflow")},
            "Worker": {"replicas": 4, "restartPolicy": "OnFailure", "template": pod("tensorflow")},
        },
    },
}
_CHIEF, _TF_WORKER = "spec.tfReplicaSpecs.Chief", "spec.tfReplicaSpecs.Worker"
TF_FAULTS = (
    error(put("metadata.name", "My_Job"), "metadata.name", "use lower-case letters", "name"),
    error(put("spec.runPolicy.cleanPodPolicy", "Some"), "spec.runPolicy.cleanPodPolicy", "expected one of"),
    error(put("spec.runPolicy.backoffLimit", "3"), "spec.runPolicy.backoffLimit", "write it without quotes", "limit"),
    warning(put("spec.backoffLimit", 4), "spec.backoffLimit", "is ignored", "limit"),
    error(put(f"{_TF_WORKER}.replicas", "4"), f"{_TF_WORKER}.replicas", "write it without quotes", "size"),
    warning(
        put("spec.runPolicy.schedulingPolicy.minAvailable", 9),
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "never admitted",
        "size",
        "type",
    ),
    error(put(f"{_CHIEF}.restartPolicy", "Alway"), f"{_CHIEF}.restartPolicy", "expected one of", "chief"),
    warning(put(f"{_CHIEF}.restartPolicy", "Always"), f"{_CHIEF}.restartPolicy", "the job never succeeds", "chief"),
    error(rename(_TF_WORKER, "Wroker"), "spec.tfReplicaSpecs.Wroker", "not a type of replica", "type", "worker's path"),
    error(put(_TF_WORKER, None), _TF_WORKER, "expected a mapping", "type", "worker's path", "size"),
    error(
        put("spec.tfReplicaSpecs.Master", {"template": pod("tensorflow")}),
        "spec.tfReplicaSpecs",
        "more than 1 Chief or Master",
        "type",
        "chief",
        "size",
    ),
    error(
        put(f"{_CHIEF}.template.spec.containers[0].name", "tensorflw"),
        f"{_CHIEF}.template.spec.containers",
        "no container is called 'tensorflow'",
        "main",
    ),
    error(
        put(f"{_CHIEF}.template.spec.containers[0].name", 5),
        f"{_CHIEF}.template.spec.containers[0].name",
        "expected text",
        "main",
    ),
    error(
        drop(f"{_CHIEF}.template.spec.containers[0].image"),
        f"{_CHIEF}.template.spec.containers[0].image",
        "missing",
        "main",
    ),
    error(
        rename(f"{_CHIEF}.template.spec.containers[0].image", "imag"),
        f"{_CHIEF}.template.spec.containers[0].imag",
        "unknown field",
        "main",
    ),
    error(
        put(f"{_CHIEF}.template.spec.containers", []),
        f"{_CHIEF}.template.spec.containers",
        "may not be empty",
        "main",
        "pod",
    ),
    error(drop(f"{_CHIEF}.template.spec"), f"{_CHIEF}.template.spec", "missing", "main", "pod"),
    warning(put("spec.successPolicy", "Any"), "spec.successPolicy", "is not known"),
    error(put("spec.enableDynamicWorker", "no"), "spec.enableDynamicWorker", "write it without quotes"),
    error(
        rename("spec.tfReplicaSpecs", "tfReplicaSpec"),
        "spec.tfReplicaSpec",
        "unknown field, and the required tfReplicaSpecs is missing",
        "specs",
    ),
    *(one._replace(about=one.about | {"pod"}) for one in of_pod(f"{_CHIEF}.template")),
)

PADDLE: Body = {
    "apiVersion": "batch.paddlepaddle.org/v1",
    "kind": "PaddleJob",
    "metadata": {"name": "job"},
    "spec": {
        "intranet": "Service",
        "cleanPodPolicy": "Never",
        "withGloo": 1,
        "schedulingPolicy": {"minAvailable": 4},
        "ps": {"replicas": 2, "template": pod("paddle")},
        "worker": {"replicas": 2, "template": pod("paddle")},
    },
}
PADDLE_FAULTS = (
    error(put("metadata.name", "My_Job"), "metadata.name", "becomes the name of services", "name"),
    warning(put("spec.cleanPodPolicy", "Some"), "spec.cleanPodPolicy", "is not known", "clean"),
    error(put("spec.cleanPodPolicy", 5), "spec.cleanPodPolicy", "expected text", "clean"),
    warning(put("spec.intranet", "Cable"), "spec.intranet", "is not known", "name", "network"),
    error(put("spec.intranet", 5), "spec.intranet", "expected text", "name", "network"),
    error(put("spec.withGloo", 3), "spec.withGloo", "from 0 to 2", "gloo"),
    error(drop("spec.worker"), "spec.worker", "a job needs at least one worker", "worker", "sizes"),
    error(rename("spec.worker", "wroker"), "spec.wroker", "unknown field", "worker"),
    error(put("spec.worker.replicas", 0), "spec.worker.replicas", "a job needs at least one worker", "worker", "sizes"),
    error(put("spec.worker.replicas", "2"), "spec.worker.replicas", "write it without quotes", "worker", "sizes"),
    warning(
        put("spec.schedulingPolicy.minAvailable", 9), "spec.schedulingPolicy.minAvailable", "never admitted", "sizes"
    ),
    warning(put("spec.elastic", 1), "spec.elastic", "has no effect"),
    error(drop("spec.ps.template"), "spec.ps.template", "missing", "pod"),
    error(put("spec.ps.template", "pod"), "spec.ps.template", "expected a mapping", "pod"),
    warning(
        put("spec.ps.template.spec.restartPolicy", "Always"),
        "spec.ps.template.spec.restartPolicy",
        "never succeeds",
        "pod",
    ),
    warning(
        put("spec.ps.template.spec.containers[0].env[0].name", "PADDLE_PORT"),
        "spec.ps.template.spec.containers[0].env[0]",
        "overrides the value in the job's ConfigMap",
        "pod",
    ),
    *(one._replace(about=one.about | {"pod"}) for one in of_pod("spec.ps.template")),
)

AITJ: Body = {
    "apiVersion": "elasticdeeplearning.ai/v1",
    "kind": "AITrainingJob",
    "metadata": {"name": "job", "annotations": {"note": "x"}},
    "spec": {
        "restartingExitCode": "137,128",
        "priority": "high",
        "timeLimit": 60,
        "replicaSpecs": {
            "trainer": {
                "replicas": 2,
                "minReplicas": 1,
                "maxReplicas": 4,
                "restartPolicy": "ExitCode",
                "template": pod("aitj-main"),
            },
        },
    },
}
_TRAINER = "spec.replicaSpecs.trainer"
AITJ_FAULTS = (
    error(put("metadata.name", "My_Job"), "metadata.name", "use lower-case letters", "name"),
    error(put("metadata.annotations.note", 5), "metadata.annotations.note", "expected text", "annotations"),
    warning(
        put("metadata.annotations.Preempted", "x"),
        "metadata.annotations",
        "ends before it creates any pod",
        "annotations",
    ),
    error(put("spec.restartingExitCode", "many"), "spec.restartingExitCode", "expected exit codes", "codes"),
    warning(put("spec.restartingExitCode", ""), f"{_TRAINER}.restartPolicy", "lists none", "codes", "policy"),
    error(put(f"{_TRAINER}.restartPolicy", "Sometimes"), f"{_TRAINER}.restartPolicy", "expected one of", "policy"),
    error(put("spec.priority", "-high-"), "spec.priority", "cannot be the value of a label", "priority"),
    error(put("spec.priority", 5), "spec.priority", "put it in quotes", "priority"),
    error(put("spec.timeLimit", "1m"), "spec.timeLimit", "expected a whole number"),
    warning(put("spec.cleanPodPolicy", "CleanPodPolicyAll"), "spec.cleanPodPolicy", "counts as All"),
    warning(put("spec.completePolicy", "Rank0"), "spec.completePolicy", "never decides", "complete"),
    warning(
        put(f"{_TRAINER}.completePolicy", "None"), f"{_TRAINER}.completePolicy", "None never completes", "complete"
    ),
    error(put(f"{_TRAINER}.completePolicy", "none"), f"{_TRAINER}.completePolicy", "did you mean `None`?", "complete"),
    error(put(f"{_TRAINER}.minReplicas", 3), f"{_TRAINER}.replicas", "less than minReplicas", "sizes"),
    error(put(f"{_TRAINER}.minReplicas", 5), f"{_TRAINER}.minReplicas", "more than maxReplicas", "sizes"),
    error(put(f"{_TRAINER}.minReplicas", "1"), f"{_TRAINER}.minReplicas", "write it without quotes", "sizes"),
    error(put(f"{_TRAINER}.replicas", "2"), f"{_TRAINER}.replicas", "write it without quotes", "sizes"),
    warning(
        put(f"{_TRAINER}.template.spec.containers[0].name", "main"),
        f"{_TRAINER}.template.spec.containers",
        "no container is called",
        "main",
        "ports",
    ),
    error(
        put(f"{_TRAINER}.template.spec.containers[0].name", 5),
        f"{_TRAINER}.template.spec.containers[0].name",
        "expected text",
        "main",
        "ports",
    ),
    warning(
        put(f"{_TRAINER}.template.spec.containers[0].ports[0].name", "x"),
        f"{_TRAINER}.template.spec.containers[0].ports",
        "its peers learn none",
        "ports",
    ),
    error(
        put(f"{_TRAINER}.template.spec.containers[0].ports[0].name", 5),
        f"{_TRAINER}.template.spec.containers[0].ports[0].name",
        "expected text",
        "ports",
    ),
    *of_pod(f"{_TRAINER}.template"),
)


def none_at_all(path: str, *names: str) -> Callable[[Body], object]:
    def make(document: Body) -> None:
        for name in names:
            put(f"{path}{name}.replicas", 0)(document)

    return make


NO_REPLICA = {
    "GenericJob": error(
        none_at_all("spec.replicaSpecs", "[0]", "[1]"), "spec.replicaSpecs", "a job needs at least one"
    ),
    "TFJob": error(
        none_at_all("spec.tfReplicaSpecs", ".Chief", ".Worker"), "spec.tfReplicaSpecs", "a job needs at least one"
    ),
    "PaddleJob": error(none_at_all("spec", ".worker"), "spec.worker.replicas", "a job needs at least one worker"),
    "AITrainingJob": error(
        none_at_all("spec.replicaSpecs", ".trainer"), "spec.replicaSpecs.trainer.replicas", "0 is less than minReplicas"
    ),
}
TABLES = {
    "GenericJob": (GENERIC, GENERIC_FAULTS),
    "TFJob": (TF, TF_FAULTS),
    "PaddleJob": (PADDLE, PADDLE_FAULTS),
    "AITrainingJob": (AITJ, AITJ_FAULTS),
}
KIND = {kind.title: kind for kind in KINDS}


def independent(faults: tuple[Fault, ...]) -> bool:
    return all(one.about.isdisjoint(other.about) for one, other in combinations(faults, 2))


def moved(fault: Fault, faults: tuple[Fault, ...]) -> str:
    """Its path, if another of the mistakes is in the name of a field above it."""
    path = fault.path
    for one in faults:
        for right, wrong in (("spec.replicaSpecs", "spec.replicaSpec"), ("spec.tfReplicaSpecs", "spec.tfReplicaSpec")):
            if one.path == wrong and (path == right or path.startswith((f"{right}[", f"{right}."))):
                path = wrong + path[len(right) :]
        roles = ("spec.tfReplicaSpecs.Worker.", "spec.tfReplicaSpec.Worker.")
        if one.path == "spec.tfReplicaSpecs.Wroker" and path.startswith(roles):
            path = path.replace("Worker", "Wroker", 1)
    return path


def all_told_once(kind: str, faults: tuple[Fault, ...]) -> None:
    document = deepcopy(TABLES[kind][0])
    # What is renamed is not found any more, so that comes last; and what is removed, first of that.
    for one in sorted(faults, key=lambda fault: fault.make.__qualname__.startswith("rename") * (100 - len(fault.path))):
        one.make(document)

    loaded = load(KIND[kind], document)

    told = sorted((problem.path, problem.warning) for problem in loaded.problems)
    assert told == sorted((moved(one, faults), one.warning) for one in faults), [str(one) for one in loaded.problems]
    for one in faults:
        assert any(problem.path == moved(one, faults) and one.text in str(problem) for problem in loaded.problems)
    errors = [str(problem) for problem in loaded.problems if not problem.warning]
    assert loaded.job.invalid == "; ".join(errors)  # the operator writes the same list into the status


@pytest.mark.parametrize("kind", TABLES)
def test_the_manifest_without_a_mistake_is_fine(kind: str) -> None:
    assert load(KIND[kind], TABLES[kind][0]).problems == ()


@pytest.mark.parametrize(("kind", "fault"), [(kind, fault) for kind, (_, faults) in TABLES.items() for fault in faults])
def test_one_mistake_makes_one_message(kind: str, fault: Fault) -> None:
    all_told_once(kind, (fault,))


@pytest.mark.parametrize("kind", TABLES)
def test_a_job_of_nobody_is_told_once(kind: str) -> None:
    all_told_once(kind, (NO_REPLICA[kind],))


@pytest.mark.parametrize("kind", TABLES)
def test_two_mistakes_are_both_told(kind: str) -> None:
    for pair in combinations(TABLES[kind][1], 2):
        if independent(pair):
            all_told_once(kind, pair)


@CALM
@given(st.data())
@pytest.mark.parametrize("kind", TABLES)
def test_three_mistakes_are_all_told(kind: str, data: st.DataObject) -> None:
    faults: tuple[Fault, ...] = ()
    for _ in range(3):
        rest = [one for one in TABLES[kind][1] if independent((*faults, one))]
        faults = (*faults, data.draw(st.sampled_from(rest)))
    all_told_once(kind, faults)
