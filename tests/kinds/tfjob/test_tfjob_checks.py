# SPDX-License-Identifier: Apache-2.0
"""Everything that is refused or warned of: exact path, message and nearest spelling, all at once."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfjob_driver import container, manifest, policy, replicas

from trainwright.kinds.base import load
from trainwright.kinds.tfjob import TFJOB
from trainwright.model.job import Body
from trainwright.model.problem import Problem

SPECS = "spec.tfReplicaSpecs"
POD = f"{SPECS}.Worker.template.spec"
KNOWN = "Chief, Evaluator, Master, PS, Worker"
NAMES = "use lower-case letters, digits and dashes, with a letter first and no dash at the end"
NOBODY = "there is neither a chief nor a worker, so the job can never succeed"


def error(path: str, message: str, near: str = "") -> Problem:
    return Problem(path, message, near)


def warning(path: str, message: str, near: str = "") -> Problem:
    return Problem(path, message, near, warning=True)


def pod(*containers: Body, **more: Any) -> Body:
    return replicas(pod={"containers": list(containers)} | more)


def bad_name(name: str) -> list[Problem]:
    return [error("metadata.name", f"{name!r} becomes the name of services: {NAMES}")]


CASES: dict[str, tuple[Body, list[Problem]]] = {
    "nothing is wrong": (manifest(Worker=2, PS=1), []),
    "a misspelt worker is told once": (
        manifest(Wroker=2, PS=1),
        [error(f"{SPECS}.Wroker", f"'Wroker' is not a type of replica; expected {KNOWN}", "Worker")],
    ),
    # -- what the original's webhook refuses
    "a name that begins with a digit": (manifest("00test", Worker=1), bad_name("00test")),
    "a name with upper-case letters": (manifest("Test", Worker=1), bad_name("Test")),
    "a name with dots": (manifest("a.b", Worker=1), bad_name("a.b")),
    "a name that ends with a dash": (manifest("a-", Worker=1), bad_name("a-")),
    "no name": (manifest("", Worker=1), [error("metadata.name", "a job needs a name")]),
    "a name of 64 letters": (
        manifest("a" * 64, Worker=1),
        [error("metadata.name", "expected at most 63 characters, found 64")],
    ),
    "no replica specs": (
        manifest() | {"spec": {}},
        [error(SPECS, "missing; expected a mapping")],
    ),
    "null replica specs": (
        manifest() | {"spec": {"tfReplicaSpecs": None}},
        [error(SPECS, "missing; expected a mapping")],
    ),
    "empty replica specs": (manifest(), [error(SPECS, "may not be empty")]),
    "no containers": (
        manifest(Worker=pod()),
        [error(f"{POD}.containers", "may not be empty: a pod needs at least one container")],
    ),
    "no image": (
        manifest(Worker=pod({"name": "tensorflow"})),
        [error(f"{POD}.containers[0].image", "missing; expected the name of an image")],
    ),
    "an empty image": (
        manifest(Worker=pod(container(image=""))),
        [error(f"{POD}.containers[0].image", "missing; expected the name of an image")],
    ),
    "no container that trains": (
        manifest(Worker=pod(container("main"), container("side"))),
        [
            error(
                f"{POD}.containers",
                "no container is called 'tensorflow', which is the one that trains; found main, side",
            )
        ],
    ),
    "nearly a container that trains": (
        manifest(Worker=pod(container("tensorflw"))),
        [
            error(
                f"{POD}.containers",
                "no container is called 'tensorflow', which is the one that trains; found tensorflw",
                "tensorflow",
            )
        ],
    ),
    "a chief and a master": (
        manifest(Chief=1, Master=1, Worker=1),
        [error(SPECS, "must not have more than 1 Chief or Master role: found both")],
    ),
    "managed by nobody known": (
        manifest(spec=policy(managedBy="kubeflow.org/training-operatr"), Worker=1),
        [
            error(
                "spec.runPolicy.managedBy",
                "expected one of kubeflow.org/training-operator, kueue.x-k8s.io/multikueue, "
                "found the text 'kubeflow.org/training-operatr'",
                "kubeflow.org/training-operator",
            )
        ],
    ),
    "managed by an empty word": (
        manifest(spec=policy(managedBy=""), Worker=1),
        [
            error(
                "spec.runPolicy.managedBy",
                "expected one of kubeflow.org/training-operator, kueue.x-k8s.io/multikueue, found the text ''",
            )
        ],
    ),
    # -- what it misses
    "a chief and a master in another case": (
        manifest(chief=1, MASTER=1),
        [error(SPECS, "must not have more than 1 Chief or Master role: found both")],
    ),
    "an unknown type": (
        manifest(Wroker=1, Worker=1),
        [error(f"{SPECS}.Wroker", f"'Wroker' is not a type of replica; expected {KNOWN}", "Worker")],
    ),
    "two keys for one type": (
        manifest(worker=1, WORKER=1),
        [error(f"{SPECS}.WORKER", "'WORKER' and 'worker' are the same type; give it once")],
    ),
    "an evaluator under both names": (
        manifest(Worker=1, Eval=1, Evaluator=1),
        [error(f"{SPECS}.Evaluator", "'Evaluator' and 'Eval' are the same type; give it once")],
    ),
    "null for a type": (
        manifest(Worker=1) | {"spec": {"tfReplicaSpecs": {"Worker": None, "PS": replicas(1)}}},
        [error(f"{SPECS}.Worker", "expected a mapping, found nothing (null)")],
    ),
    "a negative number": (
        manifest(Worker=-1),
        [error(f"{SPECS}.Worker.replicas", "expected a whole number from 0 to 10000, found the number -1")],
    ),
    "no replica of any type": (
        manifest(Worker=0, PS=0),
        [error(SPECS, "every type has 0 replicas; a job needs at least one")],
    ),
    "too many replicas": (
        manifest(Worker=9999, PS=2),
        [error(SPECS, "a job may have 10000 replicas; this one has 10001")],
    ),
    "a replica whose name is too long": (
        manifest("a" * 54, Worker=11),
        [
            error(
                f"{SPECS}.Worker",
                f"the replica's name '{'a' * 54}-worker-10' has 64 characters; at most 63 are allowed: "
                "shorten metadata.name",
            )
        ],
    ),
    "a replica whose name just fits": (manifest("a" * 54, Worker=10), []),
    "no template": (
        manifest(Worker={"replicas": 1}),
        [error(f"{SPECS}.Worker.template", "missing; expected a mapping")],
    ),
    "an empty template": (
        manifest(Worker={"template": {}}),
        [error(f"{POD}", "missing; expected a mapping with a list of containers")],
    ),
    "an unknown restart policy": (
        manifest(Worker=replicas(restartPolicy="OnFailur")),
        [
            error(
                f"{SPECS}.Worker.restartPolicy",
                "expected one of Always, ExitCode, Never, OnFailure, found the text 'OnFailur'",
                "OnFailure",
            )
        ],
    ),
    "an unknown clean-up policy": (
        manifest(spec=policy(cleanPodPolicy="running"), Worker=1),
        [
            error(
                "spec.runPolicy.cleanPodPolicy",
                "expected one of All, None, Running, found the text 'running'",
                "Running",
            )
        ],
    ),
    "negative limits": (
        manifest(spec=policy(backoffLimit=-1, ttlSecondsAfterFinished=-1, activeDeadlineSeconds=-1), Worker=1),
        [
            error(f"spec.runPolicy.{name}", f"expected a whole number {bounds}, found the number -1")
            for name, bounds in (
                ("backoffLimit", "from 0 to 2147483647"),
                ("ttlSecondsAfterFinished", "from 0 to 2147483647"),
                ("activeDeadlineSeconds", "of at least 0"),
            )
        ],
    ),
    "several mistakes at once": (
        manifest("Test", Wroker=1, PS=pod(container("ps", image=""))),
        [
            *bad_name("Test"),
            error(f"{SPECS}.Wroker", f"'Wroker' is not a type of replica; expected {KNOWN}", "Worker"),
            error(
                f"{SPECS}.PS.template.spec.containers",
                "no container is called 'tensorflow', which is the one that trains; found ps",
            ),
            error(f"{SPECS}.PS.template.spec.containers[0].image", "missing; expected the name of an image"),
        ],
    ),
    # -- what looks wrong
    "an unknown success policy": (
        manifest(spec={"successPolicy": "AllWorker"}, Worker=1),
        [
            warning(
                "spec.successPolicy",
                "'AllWorker' is not known and means the same as nothing; expected AllWorkers or none",
                "AllWorkers",
            )
        ],
    ),
    "two chiefs": (
        manifest(Chief=2, Worker=1),
        [warning(f"{SPECS}.Chief.replicas", "TensorFlow knows one chief; with 2 all of them must succeed")],
    ),
    "nobody to succeed": (manifest(PS=1, Evaluator=1), [warning(SPECS, NOBODY)]),
    "no worker to succeed": (manifest(PS=1, Worker=0), [warning(SPECS, NOBODY)]),
    "restarted even after success": (
        manifest(worker=replicas(restartPolicy="Always"), PS=replicas(restartPolicy="Always")),
        [
            warning(
                f"{SPECS}.worker.restartPolicy",
                "Always restarts Worker also after success, so the job never succeeds",
                "OnFailure",
            )
        ],
    ),
    "the default of the old version": (manifest(version="v1alpha2", Worker=1), []),
    "what becomes of it for those who decide": (
        manifest(version="v1alpha2", Worker=replicas(pod={"restartPolicy": "OnFailure"})),
        [],
    ),
    "a deadline of 64 bits": (manifest(spec=policy(activeDeadlineSeconds=2**63 - 1), Worker=1), []),
    "no chief, as a number": (manifest(Chief=0, Worker=1), []),
    "so many that nobody can be told of all": (
        manifest(Worker=5000, PS=1),
        [
            warning(
                SPECS,
                "TF_CONFIG would have about 160025 bytes to name every replica, and Linux starts no program with "
                "a variable of more than 131072",
            )
        ],
    ),
    "nor need they be, with dynamic workers": (manifest(spec={"enableDynamicWorker": True}, Worker=5000, PS=1), []),
    "ports that no pod can have": (
        manifest(
            Worker=pod(container(ports=[{"name": "a", "containerPort": 70000}, {"name": "a", "containerPort": 1}]))
        ),
        [
            error(
                f"{SPECS}.Worker.template.spec.containers[0].ports[0].containerPort",
                "expected a port from 1 to 65535, found the number 70000",
            ),
            error(
                f"{SPECS}.Worker.template.spec.containers[0].ports[1].name",
                f"'a' is already the name of {SPECS}.Worker.template.spec.containers[0].ports[0]; "
                "each port needs its own",
            ),
        ],
    ),
    "a restart policy in the template": (
        manifest(Worker=replicas(pod={"restartPolicy": "OnFailure"}, restartPolicy="ExitCode")),
        [
            warning(
                f"{POD}.restartPolicy",
                "the text 'OnFailure' is overwritten by restartPolicy of the replica spec, which makes it Never",
            )
        ],
    ),
    "the same restart policy in the template": (manifest(Worker=replicas(pod={"restartPolicy": "Never"})), []),
    "a TF_CONFIG of one's own": (
        manifest(Worker=pod(container("side", env=[{"name": "TF_CONFIG"}]), container(env=[{"name": "TF_CONFIG"}]))),
        [
            warning(
                f"{POD}.containers[1].env[0]",
                "TF_CONFIG is written by the controller, whose value comes after this one and wins",
            )
        ],
    ),
    "the old place": (manifest(spec={"cleanPodPolicy": "All", "backoffLimit": 3}, Worker=1), []),
    "the old place and the new": (
        manifest(spec={"cleanPodPolicy": "All", "backoffLimit": 3} | policy(cleanPodPolicy="None"), Worker=1),
        [
            warning(
                "spec.cleanPodPolicy",
                "the text 'All' is ignored: spec.runPolicy.cleanPodPolicy is the text 'None'",
            )
        ],
    ),
    "the same in both places": (manifest(spec={"backoffLimit": 3} | policy(backoffLimit=3), Worker=1), []),
    "a group that is never admitted": (
        manifest(spec=policy(schedulingPolicy={"minAvailable": 3}), Worker=2),
        [
            warning(
                "spec.runPolicy.schedulingPolicy.minAvailable",
                "3 is more than the job's 2 replicas: the group is never admitted",
            )
        ],
    ),
    "an unknown field": (
        manifest(spec={"runPolcy": {}}, Worker=1),
        [warning("spec.runPolcy", "unknown field", "runPolicy")],
    ),
}


@pytest.mark.parametrize(("document", "expected"), CASES.values(), ids=CASES)
def test_what_is_said_of_a_manifest(document: Body, expected: list[Problem]) -> None:
    assert list(load(TFJOB, document).problems) == expected


def read(document: Body) -> Any:
    return load(TFJOB, document).wire


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, []),
        ({}, {"backoffLimit": 1}, []),
        ({"managedBy": "kueue.x-k8s.io/multikueue"}, {}, ["spec.runPolicy.managedBy"]),
        ({}, {"managedBy": "kubeflow.org/training-operator"}, ["spec.runPolicy.managedBy"]),
        ({"schedulingPolicy": {"queue": "a"}}, {"schedulingPolicy": {"queue": "a"}}, []),
        (
            {"schedulingPolicy": {"queue": "a"}},
            {"schedulingPolicy": {"queue": "b"}},
            ["spec.runPolicy.schedulingPolicy.queue"],
        ),
        ({}, {"schedulingPolicy": {"queue": "b"}}, []),
        ({"schedulingPolicy": {"queue": "b"}}, {}, []),
    ],
)
def test_what_may_not_be_changed(before: Body, after: Body, expected: list[str]) -> None:
    stored, edited = (read(manifest(spec=policy(**one), Worker=1)) for one in (before, after))

    assert [problem.path for problem in TFJOB.check_edit(stored, edited)] == expected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["runPolicy", "successPolicy", "enableDynamicWorker", "cleanPodPolicy", "trainwright", "tfReplicaSpecs"]
odd_specs = st.dictionaries(st.sampled_from(FIELDS), anything, max_size=6) | anything
odd_types = st.dictionaries(
    st.sampled_from(["Worker", "ps", "Eval", "odd"]),
    st.dictionaries(st.sampled_from(["replicas", "template", "restartPolicy"]), anything, max_size=3) | anything,
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(spec=odd_specs | odd_types.map(lambda types: {"tfReplicaSpecs": types}), status=anything)
def test_no_manifest_whatever_its_shape_makes_it_raise(spec: Any, status: Any) -> None:
    document = manifest(Worker=1) | {"spec": spec, "status": status}

    for problem in load(TFJOB, document).problems:
        assert msgspec.json.encode(str(problem))
