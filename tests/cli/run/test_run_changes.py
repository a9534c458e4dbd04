# SPDX-License-Identifier: Apache-2.0
"""`--set PATH=VALUE`: what it changes, and what it is told when the way leads nowhere."""

from copy import deepcopy
from typing import Any

import pytest
from run_objects import job, role

from trainwright.cli.run.changes import apply, parse
from trainwright.errors import UsageError

JOB = job(roles=[role("ps", 1), role("worker", 2)], spec={"service": {"ports": []}})


def edited(*texts: str) -> Any:
    body = JOB
    before = deepcopy(JOB)
    for text in texts:
        body = apply(body, parse(text))
    assert before == JOB
    return body


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=1.5", 1.5),
        ("a=true", True),
        ("a=text", "text"),
        ('a="1"', "1"),
        ("a=", ""),
        ("a=null", None),
        ("a=b=c", "b=c"),
        ("a=[sh, -c, 'x y']", ["sh", "-c", "x y"]),
        ("a={b: 1}", {"b": 1}),
        ("a=16Gi", "16Gi"),
    ],
)
def test_values_are_yaml(text: str, value: object) -> None:
    assert parse(text).value == value


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("spec.replicaSpecs[0].replicas", ("spec", "replicaSpecs", 0, "replicas")),
        ("spec.replicaSpecs[worker].replicas", ("spec", "replicaSpecs", "worker", "replicas")),
        ('metadata.annotations["a.b/c=d"]', ("metadata", "annotations", "a.b/c=d")),
    ],
)
def test_paths_are_written_as_problems_write_them(path: str, way: tuple[object, ...]) -> None:
    assert parse(f"{path}=1").steps == way


@pytest.mark.parametrize("text", ["", "a", "=1", "a.b", "a[0", "a]=1", '["a=1'])
def test_what_is_no_change(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected PATH=VALUE with a path such as spec.replicaSpecs\[0\].replicas"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("a=[1", "the value is not valid YAML: did not find"), ("a=1\n---\n2", "the value is 2 documents; expected one")],
)
def test_values_that_are_not_yaml(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse(text)


def test_fields_are_changed_made_and_taken_away() -> None:
    body = edited(
        "spec.replicaSpecs[1].replicas=8",
        "spec.replicaSpecs[ps].replicas=3",
        "spec.runMode.pause.enabled=true",
        "spec.replicaSpecs[worker].template.spec.containers[main].command[0]=sleep",
        "spec.service=null",
        "spec.nothing=null",
    )

    ps, worker = body["spec"]["replicaSpecs"]
    assert (ps["replicas"], worker["replicas"]) == (3, 8)
    assert worker["template"]["spec"]["containers"][0]["command"] == ["sleep"]
    assert ps["template"]["spec"]["containers"][0]["command"] == ["true"]
    assert body["spec"]["runMode"] == {"pause": {"enabled": True}}
    assert "service" not in body["spec"]
    assert "nothing" not in body["spec"]


def test_entries_are_taken_away() -> None:
    assert [one["type"] for one in edited("spec.replicaSpecs[ps]=null")["spec"]["replicaSpecs"]] == ["worker"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "spec.replicaSpec[0].replicas=1",
            "--set spec.replicaSpec[0].replicas=1: spec has no 'replicaSpec'; it has replicaSpecs, service; did you "
            "mean `replicaSpecs`?",
        ),
        (
            "spec.replicaSpecs[wroker].replicas=1",
            "--set spec.replicaSpecs[wroker].replicas=1: spec.replicaSpecs has no entry with the name 'wroker'; "
            "it has ps, worker; did you mean `worker`?",
        ),
        (
            "spec.replicaSpecs[2].replicas=1",
            "--set spec.replicaSpecs[2].replicas=1: spec.replicaSpecs has 2 entries, counted from 0; there is no [2]",
        ),
        ("spec[0]=1", "--set spec[0]=1: spec is a mapping with 2 keys, not a list"),
        (
            "spec.replicaSpecs.replicas=1",
            "--set spec.replicaSpecs.replicas=1: spec.replicaSpecs is a list of 2, which has no key 'replicas'",
        ),
        ("kind.x=1", "--set kind.x=1: kind is the text 'GenericJob', which has no key 'x'"),
    ],
)
def test_a_way_that_leads_nowhere(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        edited(text)
    assert str(error.value) == why
