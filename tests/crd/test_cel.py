# SPDX-License-Identifier: Apache-2.0
"""The CEL rules in the CRD, run by the reference engine: a table of verdicts, and agreement with `checks`."""

from typing import Any

import msgspec
import pytest
from apiserver import admit, errors
from cel_expr_python import cel
from hypothesis import example, given
from hypothesis import strategies as st

from trainwright.crd.schema import schema
from trainwright.kinds.genericjob import GENERICJOB, wire
from trainwright.kinds.genericjob.checks import CEL_RULES

Body = dict[str, Any]

SCHEMA = schema(wire.GenericJob)["properties"]["spec"]
TEMPLATE: Body = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}

_ENV = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
PROGRAMS = [(_ENV.compile(rule), "oldSelf" in rule, message) for rule, message in CEL_RULES]


def refusals(new: Body, old: Body | None = None) -> list[str]:
    """What a server would answer to creating `new`, or to updating `old` to it."""
    new, old = admit(new, SCHEMA), admit(old, SCHEMA)
    assert errors(new, SCHEMA) == []
    asked = [(program, message) for program, transition, message in PROGRAMS if old is not None or not transition]
    answers = [(program.eval(data={"self": new, "oldSelf": old or {}}), message) for program, message in asked]
    assert [answer.value() for answer, _ in answers if not isinstance(answer.value(), bool)] == []
    return [message for answer, message in answers if not answer.value()]


def replicas(name: str, count: int | None = None) -> Body:
    return {"type": name, "template": TEMPLATE} | ({} if count is None else {"replicas": count})


def spec(**more: Any) -> Body:
    return {"replicaSpecs": [replicas("worker", 2), replicas("ps")]} | more


def ports(*names: str | None, **more: Any) -> Body:
    several = [{"port": 80 + n} | ({} if name is None else {"name": name}) | more for n, name in enumerate(names)]
    return spec(service={"ports": several})


def debug(*types: str) -> Body:
    return spec(runMode={"debug": {"enabled": True, "replicaSpecs": [{"type": name} for name in types]}})


def pause(*types: str, **more: Any) -> Body:
    return spec(runMode={"pause": {"resumeSpecs": [{"type": name} for name in types]} | more})


UNKNOWN = "may only name types that replicaSpecs has"
RANK = "may only name ranks that their type has, counted from 0"
TWICE = "may have each type once"
CREATED: list[tuple[str, Body, list[str]]] = [
    ("no rules", spec(), []),
    ("a rule on every rank", spec(successRules=[{"worker": [0, 1], "ps": [0]}]), []),
    ("ranks as text", spec(successRules=[{"worker": ["0", "00001"]}]), []),
    ("the same rank twice", spec(successRules=[{"worker": [1, "1", 1]}]), []),
    ("empty lists everywhere", spec(successRules=[], failureRules=[], service={"ports": []}), []),
    ("empty objects everywhere", spec(runMode={"debug": {}, "pause": {}}, service={}, scheduler={}), []),
    ("a type twice", {"replicaSpecs": [replicas("a"), replicas("b"), replicas("a")]}, [f"replicaSpecs {TWICE}"]),
    (
        "no replica of any type",
        {"replicaSpecs": [replicas("a", 0), replicas("b", 0)]},
        ["replicaSpecs must have at least one replica in all"],
    ),
    ("no replica of one type", {"replicaSpecs": [replicas("a", 0), replicas("b")]}, []),
    ("unknown type in a success rule", spec(successRules=[{"wroker": [0]}]), [f"successRules {UNKNOWN}"]),
    ("unknown type in a failure rule", spec(failureRules=[{"ps": [0]}, {"x": [7]}]), [f"failureRules {UNKNOWN}"]),
    ("rank beyond", spec(successRules=[{"worker": [0, 1, 2]}]), [f"successRules {RANK}"]),
    ("rank beyond the default of one", spec(successRules=[{"ps": [1]}]), [f"successRules {RANK}"]),
    ("rank beyond, as text", spec(failureRules=[{"worker": ["2"]}]), [f"failureRules {RANK}"]),
    ("rank beyond, later", spec(failureRules=[{"worker": [0]}, {"worker": [9]}]), [f"failureRules {RANK}"]),
    ("rank 9 is not after rank 10", {
        "replicaSpecs": [replicas("worker", 10)], "successRules": [{"worker": ["9", 9]}]}, []),
    ("debug of a known type", debug("worker"), []),
    ("debug of an unknown type", debug("x"), [f"runMode.debug.replicaSpecs {UNKNOWN}"]),
    ("debug of a type twice", debug("ps", "ps"), [f"runMode.debug.replicaSpecs {TWICE}"]),
    ("debug in the old spelling", spec(runMode={"debug": {"enable": True}}), []),
    ("resume of a known type", pause("worker", "ps"), []),
    ("resume of an unknown type", pause("x"), [f"runMode.pause.resumeSpecs {UNKNOWN}"]),
    ("resume of a type twice", pause("ps", "ps"), [f"runMode.pause.resumeSpecs {TWICE}"]),
    ("pause in the old spelling", pause(enable=True), []),
    ("one port without a name", ports(None), []),
    ("one port with an empty name", ports(""), []),
    ("two ports with names", ports("a", "b"), []),
    ("two ports, one without a name", ports("a", None), ["service.ports need names when there is more than one"]),
    ("two ports, one with an empty name", ports("", "a"), ["service.ports need names when there is more than one"]),
    ("two ports of one name", ports("a", "a"), ["service.ports may have each name once"]),
    ("one port twice", ports("a", "b", port=80), ["service.ports may have each port and protocol once"]),
    (
        "one port twice, once with the protocol spelled out",
        spec(service={"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b", "protocol": "TCP"}]}),
        ["service.ports may have each port and protocol once"],
    ),
    (
        "one port for two protocols",
        spec(service={"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b", "protocol": "UDP"}]}),
        [],
    ),
    (
        "several things at once",
        {"replicaSpecs": [replicas("a"), replicas("a")], "successRules": [{"b": [0]}], "failureRules": [{"a": [5]}]},
        [f"replicaSpecs {TWICE}", f"successRules {UNKNOWN}", f"failureRules {RANK}"],
    ),
]  # fmt: skip

FIXED = ["runMode.pause.resumeSpecs cannot be changed after creation"]
UPDATED: list[tuple[str, Body, Body, list[str]]] = [
    ("nothing changes", pause("worker"), pause("worker"), []),
    ("nothing there, nothing comes", spec(), spec(), []),
    ("pausing", pause("worker", enabled=False), pause("worker", enabled=True), []),
    ("resuming", pause("worker", enabled=True), pause("worker", enabled=False), []),
    ("resuming in the old spelling", pause("worker", enable=True), pause("worker", enable=False), []),
    ("pausing for the first time", spec(), spec(runMode={"pause": {"enabled": True}}), []),
    ("runMode goes, without resumeSpecs", spec(runMode={"pause": {"enabled": True}}), spec(), []),
    ("pause goes, without resumeSpecs", spec(runMode={"pause": {}}), spec(runMode={}), []),
    ("debug comes", pause("worker"), spec(runMode=pause("worker")["runMode"] | {"debug": {"enabled": True}}), []),
    ("an empty list comes", spec(), pause(), []),
    ("an empty list goes", pause(), spec(runMode={"pause": {"enabled": False}}), []),
    ("a default is spelled out", pause("ps"), spec(
        runMode={"pause": {"resumeSpecs": [{"type": "ps", "skipInitContainer": False}]}}), []),
    ("added with runMode", spec(), pause("worker"), FIXED),
    ("added to runMode", spec(runMode={}), pause("worker"), FIXED),
    ("added to pause", spec(runMode={"pause": {"enabled": True}}), pause("worker", enabled=True), FIXED),
    ("removed with runMode", pause("worker"), spec(), FIXED),
    ("removed with pause", pause("worker"), spec(runMode={}), FIXED),
    ("removed from pause", pause("worker", enabled=True), spec(runMode={"pause": {"enabled": True}}), FIXED),
    ("emptied", pause("worker"), pause(), FIXED),
    ("nulled", pause("worker"), spec(runMode={"pause": {"resumeSpecs": None}}), FIXED),
    ("another type", pause("worker"), pause("ps"), FIXED),
    ("one more", pause("worker"), pause("worker", "ps"), FIXED),
    ("another order", pause("worker", "ps"), pause("ps", "worker"), FIXED),
    ("another command", pause("worker"), spec(
        runMode={"pause": {"resumeSpecs": [{"type": "worker", "command": ["x"]}]}}), FIXED),
]  # fmt: skip


@pytest.mark.parametrize(("new", "expected"), [row[1:] for row in CREATED], ids=[row[0] for row in CREATED])
def test_what_a_server_says_to_a_new_job(new: Body, expected: list[str]) -> None:
    assert refusals(new) == expected


@pytest.mark.parametrize(("old", "new", "expected"), [row[1:] for row in UPDATED], ids=[row[0] for row in UPDATED])
def test_what_a_server_says_to_a_changed_job(old: Body, new: Body, expected: list[str]) -> None:
    assert refusals(new, old) == expected


# ------------------------------------------------------------------ the same verdict as `checks`

types = st.sampled_from(["a", "b", "c"])
ranks = st.integers(0, 3) | st.integers(0, 3).map(str)
rules = st.lists(st.dictionaries(types, st.lists(ranks, min_size=1, max_size=3), min_size=1, max_size=2), max_size=2)
entries = st.lists(st.fixed_dictionaries({"type": types}), max_size=2)
port = st.fixed_dictionaries(
    {"port": st.integers(1, 2)},
    optional={"name": st.sampled_from(["", "x", "y"]), "protocol": st.sampled_from(["TCP", "UDP"])},
)
specs = st.fixed_dictionaries(
    {"replicaSpecs": st.lists(st.builds(replicas, types, st.none() | st.integers(0, 4)), min_size=1, max_size=3)},
    optional={
        "successRules": rules,
        "failureRules": rules,
        "service": st.fixed_dictionaries({}, optional={"ports": st.lists(port, max_size=3)}),
        "runMode": st.fixed_dictionaries(
            {},
            optional={
                "debug": st.fixed_dictionaries({"enabled": st.booleans()}, optional={"replicaSpecs": entries}),
                "pause": st.fixed_dictionaries({"enable": st.booleans()}, optional={"resumeSpecs": entries}),
            },
        ),
    },
)


def _problems(new: Body) -> list[str]:
    manifest = msgspec.convert({"metadata": {"name": "j"}, "spec": new}, wire.GenericJob)
    return [str(problem) for problem in GENERICJOB.check(GENERICJOB.default(manifest)) if not problem.warning]


@given(specs)
@example(spec())
@example(pause("x"))
def test_a_server_refuses_exactly_what_the_checks_refuse(new: Body) -> None:
    refused, problems = refusals(new), _problems(new)

    assert bool(refused) == bool(problems), (refused, problems)


@pytest.mark.parametrize("new", [row[1] for row in CREATED], ids=[row[0] for row in CREATED])
def test_the_checks_agree_with_the_table(new: Body) -> None:
    assert bool(refusals(new)) == bool(_problems(new))
