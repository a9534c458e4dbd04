# SPDX-License-Identifier: Apache-2.0
"""What is refused of an AITrainingJob, what is warned of, and the edits that people ask for by name."""

from typing import Any

import pytest
from aitrainingjob_driver import container, manifest, ports, replicas

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.aitrainingjob.policies import exit_codes
from trainwright.kinds.base import load
from trainwright.model.job import Body
from trainwright.model.problem import Problem


def problems(document: Body, *, warnings: bool = False) -> list[str]:
    return [str(one) for one in load(AITRAININGJOB, document).problems if one.warning is warnings]


def trainer(count: int | None = 1, **more: Any) -> Body:
    return manifest(trainer=replicas(count, **more))


def test_a_plain_job_has_nothing_wrong_with_it() -> None:
    assert load(AITRAININGJOB, manifest(trainer=2, ps=1)).problems == ()


SPECS = "spec.replicaSpecs"
LETTERS = "use letters, digits and dashes, with a letter first and no dash at the end"
ODD: Body = {"a/b": 1}
REFUSED: dict[str, tuple[Body, str]] = {
    "no name": (manifest(name="", trainer=1), "metadata.name: a job needs a name"),
    "a name no service can have": (
        manifest(name="My_Job", trainer=1),
        "metadata.name: 'My_Job' becomes the name of services: use lower-case letters, digits and dashes, with a "
        "letter first and no dash at the end",
    ),
    "a long name": (manifest(name="a" * 64, trainer=1), "metadata.name: expected at most 63 characters, found 64"),
    "a long name in all": (
        manifest(name="a" * 55, trainer=11),
        f"{SPECS}.trainer: the replica's name '{'a' * 55}-trainer-10' has 66 characters; at most 63 are allowed: "
        "shorten metadata.name or the replica's name",
    ),
    "a long name once scaled": (
        manifest(name="a" * 53, trainer=replicas(1, maxReplicas=11)),
        f"{SPECS}.trainer: the replica's name '{'a' * 53}-trainer-10' has 64 characters; at most 63 are allowed: "
        "shorten metadata.name or the replica's name",
    ),
    "no replica specs": (manifest(), "spec.replicaSpecs: may not be empty"),
    "a null replica spec": (
        manifest(trainer=None),  # type: ignore[arg-type]  # what somebody may write
        f"{SPECS}.trainer: expected a mapping, found nothing (null)",
    ),
    "no replica at all": (manifest(trainer=0), f"{SPECS}: every type has 0 replicas; a job needs at least one"),
    "too many replicas": (
        manifest(trainer=6000, ps=6000),
        f"{SPECS}: a job may have 10000 replicas; this one has 12000",
    ),
    "a replica name with a slash": (
        manifest(**ODD),
        f"{SPECS}[\"a/b\"]: 'a/b' becomes part of object names: {LETTERS}",
    ),
    "two names alike": (
        manifest(trainer=1, Trainer=1),
        f"{SPECS}.Trainer: 'Trainer' and 'trainer' give their pods the same names; rename one",
    ),
    "no containers": (
        trainer(pod={"containers": []}),
        f"{SPECS}.trainer.template.spec.containers: may not be empty: a pod needs at least one container",
    ),
    "no image": (
        trainer(pod={"containers": [{"name": "aitj-a"}]}),
        f"{SPECS}.trainer.template.spec.containers[0].image: missing; expected the name of an image",
    ),
    "an unknown restart policy": (
        trainer(restartPolicy="onFailure"),
        f"{SPECS}.trainer.restartPolicy: expected one of Always, ExitCode, Never, OnFailure, OnNodeFail, "
        "OnNodeFailWithExitCode, found the text 'onFailure'; did you mean `OnFailure`?",
    ),
    "an unknown scope": (
        trainer(restartScope="Pods"),
        f"{SPECS}.trainer.restartScope: expected one of All, Pod, Replica, found the text 'Pods'; did you mean `Pod`?",
    ),
    "an unknown end policy": (
        trainer(failPolicy="rank0"),
        f"{SPECS}.trainer.failPolicy: expected one of All, Any, None, Rank0, found the text 'rank0'; "
        "did you mean `Rank0`?",
    ),
    "an unknown EDL policy": (
        trainer(edlPolicy="auto"),
        f"{SPECS}.trainer.edlPolicy: expected one of Auto, Manual, Never, found the text 'auto'; did you mean `Auto`?",
    ),
    "more than the bounds": (
        trainer(5, minReplicas=1, maxReplicas=4),
        f"{SPECS}.trainer.replicas: 5 is more than maxReplicas, which is 4",
    ),
    "less than the bounds": (
        trainer(1, minReplicas=2),
        f"{SPECS}.trainer.replicas: 1 is less than minReplicas, which is 2",
    ),
    "bounds the wrong way round": (
        trainer(1, minReplicas=3, maxReplicas=2),
        f"{SPECS}.trainer.minReplicas: 3 is more than maxReplicas, which is 2",
    ),
    "a priority no label can have": (
        manifest(trainer=1, spec={"priority": "very high"}),
        "spec.priority: 'very high' cannot be the value of a label: use letters, digits, dashes, dots and underscores, "
        "with a letter or digit at both ends",
    ),
    "a negative time": (
        manifest(trainer=1, spec={"timeLimit": -1}),
        "spec.timeLimit: expected a whole number from 0 to 2147483647, found the number -1",
    ),
}


@pytest.mark.parametrize(("document", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(document: Body, message: str) -> None:
    assert message in problems(document)


WARNED: dict[str, tuple[Body, str]] = {
    "an unknown field": (
        trainer(restartPolicies="Never"),
        f"{SPECS}.trainer.restartPolicies: unknown field; did you mean `restartPolicy`?",
    ),
    "no container with the prefix": (
        trainer(pod={"containers": [container("main")]}),
        f"{SPECS}.trainer.template.spec.containers: no container is called aitj-…, so the first one counts, with all "
        "its ports; did you mean `aitj-main`?",
    ),
    "no port with the prefix": (
        trainer(pod={"containers": [container(ports=[{"containerPort": 80}])]}),
        f"{SPECS}.trainer.template.spec.containers[0].ports: no port is called aitj-…, so its peers learn none; "
        "found one without a name; did you mean `aitj-80`?",
    ),
    "a restart policy in the template": (
        trainer(pod={"restartPolicy": "Always"}),
        f"{SPECS}.trainer.template.spec.restartPolicy: the text 'Always' is overwritten with Never: only the "
        "controller restarts pods",
    ),
    "exit codes that nobody listed": (
        trainer(restartPolicy="ExitCode"),
        f"{SPECS}.trainer.restartPolicy: ExitCode restarts only the codes of spec.restartingExitCode, which lists none",
    ),
    "the README's clean-up policy": (
        manifest(trainer=1, spec={"cleanPodPolicy": "CleanPodPolicyNone"}),
        "spec.cleanPodPolicy: counts as None, which is what it is called; did you mean `None`?",
    ),
    "a job that never completes": (
        manifest(trainer=1, spec={"completePolicy": "Rank0"}),
        "spec.completePolicy: Rank0 never decides over replica types, so the job never completes; did you mean `All`?",
    ),
    "a type that never completes": (
        manifest(trainer=1, pserver=replicas(completePolicy="None")),
        f"{SPECS}.pserver.completePolicy: None never completes, and the job's completePolicy All waits for it",
    ),
    "types of which none completes": (
        trainer(completePolicy="None") | {"spec": {**trainer(completePolicy="None")["spec"], "completePolicy": "Any"}},
        f"{SPECS}.trainer.completePolicy: None never completes, and the job's completePolicy Any waits for it",
    ),
    "a job that ends at once": (
        manifest(trainer=1, meta={"annotations": {"preempted": "x"}}),
        "metadata.annotations: the annotation asks for the end Preempted: the job ends before it creates any pod",
    ),
    "a variable that no program can be started with": (
        trainer(1, maxReplicas=5000),
        f"{SPECS}.trainer: TRAINER_HOSTS would have about 140000 bytes to name every replica, and Linux starts no "
        "program with a variable of more than 131072",
    ),
    "a type whose variables are hidden": (
        manifest(TrainingJob=1),
        f"{SPECS}.TrainingJob: its variable TRAININGJOB_PORTS is overridden by the container's own variable of that"
        " name",
    ),
}


@pytest.mark.parametrize(("document", "message"), WARNED.values(), ids=WARNED)
def test_warned_of(document: Body, message: str) -> None:
    assert message in problems(document, warnings=True)
    assert problems(document) == []


@pytest.mark.parametrize(
    "more", [{"pod": {"containers": [container(ports=ports(1))]}}, {"pod": {"restartPolicy": "Never"}}]
)
def test_nothing_to_warn_of(more: Body) -> None:
    assert problems(trainer(**more), warnings=True) == []


@pytest.mark.parametrize(
    "ports",
    [{}, "80", [80], [None], [{}], [{"name": "aitj-a", "containerPort": "x"}], [{"name": 1, "containerPort": None}]],
    ids=str,
)
def test_ports_of_any_shape_are_told_of_and_break_nothing(ports: Any) -> None:
    assert problems(trainer(pod={"containers": [container(ports=ports)]})) or not ports


# -- exit codes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ("", ()),
        ("137", (137,)),
        ("137,128", (137, 128)),
        (" 137 , 128 ,", (137, 128)),
        (137, (137,)),
        ([137, "128"], (137, 128)),
        (["137,128", 1], (137, 128, 1)),
        ("1,1", (1,)),
        ([], ()),
    ],
)
def test_exit_codes_are_text_a_number_or_a_list(value: Any, expected: tuple[int, ...]) -> None:
    assert exit_codes(value) == expected
    assert problems(manifest(trainer=1, spec={"restartingExitCode": value})) == []


@pytest.mark.parametrize(
    ("value", "path", "found"),
    [
        ("137;128", "", "the text '137;128'"),
        ("137,x", "", "the text 'x'"),
        ([1, True], "[1]", "true"),
        (256, "", "the number 256"),
        (-1, "", "the number -1"),
        ({"codes": 1}, "", "a mapping with 1 key"),
        ([[1]], "[0]", "a list of 1"),
        (1.5, "", "the number 1.5"),
        ("١٣٧", "", "the text '١٣٧'"),
    ],
)
def test_anything_else_is_a_problem_with_a_path(value: Any, path: str, found: str) -> None:
    expected = (
        f"spec.restartingExitCode{path}: expected exit codes from 0 to 255, such as 137, [137, 128] or '137,128', "
    )
    assert problems(manifest(trainer=1, spec={"restartingExitCode": value})) == [f"{expected}found {found}"]


# -- defaults and edits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [False, True])
def test_defaults(empty: bool) -> None:
    words = ("restartPolicy", "restartScope", "failPolicy", "completePolicy", "edlPolicy")
    none: Body = dict.fromkeys(words, "") if empty else {}
    one = replicas(None, **none)
    more = dict.fromkeys(("failPolicy", "completePolicy", "cleanPodPolicy"), "") if empty else {}
    job = load(AITRAININGJOB, manifest(trainer=one, spec=more)).job
    plain = load(AITRAININGJOB, manifest(trainer=replicas(1))).job

    assert job.roles[0].restart == plain.roles[0].restart
    assert (job.success, job.failure, job.lifecycle) == (plain.success, plain.failure, plain.lifecycle)
    assert job.roles[0].replicas == 1


def test_replicas_default_to_what_the_bounds_allow() -> None:
    assert load(AITRAININGJOB, trainer(None, minReplicas=3, maxReplicas=5)).job.roles[0].replicas == 3


def edit(before: Body, after: Body) -> list[str]:
    stored, edited = (load(AITRAININGJOB, one).wire for one in (before, after))
    return [str(one) for one in AITRAININGJOB.check_edit(stored, edited)]


@pytest.mark.parametrize(
    ("policy", "later", "expected"),
    [
        ("Never", "Never", [f"{SPECS}.trainer.replicas: cannot be changed while edlPolicy is Never: it is 2"]),
        ("Never", "Manual", []),
        ("Manual", "Manual", []),
        ("", "", []),
        ("Auto", "Auto", []),
    ],
)
def test_never_refuses_other_sizes(policy: str, later: str, expected: list[str]) -> None:
    assert edit(trainer(2, edlPolicy=policy), trainer(3, edlPolicy=later)) == expected
    assert edit(trainer(2, edlPolicy=policy), trainer(2, edlPolicy=later, restartLimit=1)) == []


def test_a_type_may_be_added_or_taken_away() -> None:
    assert edit(trainer(2, edlPolicy="Never"), manifest(ps=1)) == []


@pytest.mark.parametrize(
    ("one", "role", "count", "expected"),
    [
        (replicas(2), "trainer", 4, {"spec": {"replicaSpecs": {"trainer": {"replicas": 4}}}}),
        (replicas(2), "TRAINER", 0, {"spec": {"replicaSpecs": {"trainer": {"replicas": 0}}}}),
        (
            replicas(2, minReplicas=1, maxReplicas=4),
            "trainer",
            4,
            {"spec": {"replicaSpecs": {"trainer": {"replicas": 4}}}},
        ),
        (
            replicas(2, minReplicas=1, maxReplicas=4),
            "trainer",
            5,
            Problem(f"{SPECS}.trainer.replicas", "expected a whole number from 1 to 4, found the number 5"),
        ),
        (
            replicas(2),
            "trainer",
            -1,
            Problem(f"{SPECS}.trainer.replicas", "expected a whole number from 0 to 10000, found the number -1"),
        ),
        (
            replicas(2, edlPolicy="Never"),
            "trainer",
            3,
            Problem(f"{SPECS}.trainer.replicas", "cannot be changed while edlPolicy is Never"),
        ),
        (
            replicas(2),
            "trainers",
            3,
            Problem(SPECS, "there is no replica type 'trainers'; the job has trainer", "trainer"),
        ),
    ],
)
def test_scale(one: Body, role: str, count: int, expected: Body | Problem) -> None:
    assert AITRAININGJOB.scale(manifest(trainer=one), role, count) == expected


@pytest.mark.parametrize("on", [True, False])
def test_suspend(on: bool) -> None:
    assert AITRAININGJOB.suspend(manifest(trainer=1), on) == {"spec": {"suspend": on}}


def test_a_type_that_nobody_waits_for_need_not_complete() -> None:
    servers = replicas(completePolicy="None")

    assert problems(manifest(trainer=1, pserver=servers, spec={"completePolicy": "Any"}), warnings=True) == []
    assert problems(manifest(trainer=1, pserver=servers | {"replicas": 0}), warnings=True) == []
