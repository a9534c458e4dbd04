# SPDX-License-Identifier: Apache-2.0
"""The table "What each clean-up policy keeps" of docs/compatibility.md is what the kinds' policies compile to."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trainwright.kinds.base import Kind, load
from trainwright.kinds.registry import KINDS
from trainwright.model.job import CleanPods, CleanUp

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")


def pod(container: str) -> dict[str, Any]:
    """A template; kinds of Kubeflow v1 want their container to have a certain name, the others do not mind."""
    return {"spec": {"containers": [{"name": container, "image": "x"}]}}


POD = pod("tensorflow")
#: A spec of each kind, and where its policy is.
SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "GenericJob": ({"replicaSpecs": [{"type": "worker", "replicas": 1, "template": POD}]}, "cleanUpPolicy"),
    "TFJob": ({"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": POD}}}, "cleanPodPolicy"),
    "PaddleJob": ({"worker": {"replicas": 1, "template": POD}}, "cleanPodPolicy"),
    "XGBoostJob": ({"xgbReplicaSpecs": {"Master": {"replicas": 1, "template": pod("xgboost")}}}, "cleanPodPolicy"),
    "PyTorchJob": ({"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": pod("pytorch")}}}, "cleanPodPolicy"),
    "PaddleJob of Kubeflow": (
        {"paddleReplicaSpecs": {"Worker": {"replicas": 1, "template": pod("paddle")}}},
        "cleanPodPolicy",
    ),
    "JAXJob": ({"jaxReplicaSpecs": {"Worker": {"replicas": 1, "template": pod("jax")}}}, "cleanPodPolicy"),
    "AITrainingJob": ({"replicaSpecs": {"trainer": {"replicas": 1, "template": POD}}}, "cleanPodPolicy"),
}
#: What is left after an end: of the pods that have ended, and of those that run.
LEFT = {
    ("kept", "kept"): CleanPods.NONE,
    ("kept", "removed"): CleanPods.UNFINISHED,
    ("removed", "removed"): CleanPods.ALL,
}
#: The ends that the table tells apart, by the fields of `CleanUp`.
ENDS = {
    "any": ("succeeded", "failed", "ended", "lost"),
    "Completed": ("succeeded",),
    "any other": ("failed", "ended", "lost"),
    "Succeed, Failed": ("succeeded", "failed"),
    "Timeout, NodeFail, Preempted, an annotation": ("ended", "lost"),
}


class Row(NamedTuple):
    kind: str
    policy: str
    end: str
    ended: str
    running: str
    crashing: str


def named(kind: Kind) -> str:
    """The kind as the table has it."""
    return f"{kind.name} of Kubeflow" if kind.shares_name else kind.name


def rows() -> list[Row]:
    """An empty cell is that of the row above."""
    section = PAGE.partition("## What each clean-up policy keeps\n")[2].partition("\n## ")[0]
    found: list[Row] = []
    for line in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]:
        cells = [cell.strip() for cell in line.split("|")]
        kind, policy = cells[0] or found[-1].kind, cells[1] or found[-1].policy
        found.append(Row(kind, policy, *(cell.strip("*") for cell in cells[2:6])))
    return found


def cleans(kind: str, word: str | None) -> CleanUp:
    spec, field = SPECS[kind]
    (one,) = (one for one in KINDS if named(one) == kind)
    body = {"apiVersion": f"{one.group}/{one.version}", "kind": one.name, "metadata": {"name": "j", "namespace": "n"}}
    given = {} if word is None else {field: word}
    # Only TFJob also accepts the policy directly under `spec`.
    in_run_policy = one.group == "kubeflow.org" and kind != "TFJob"
    job = load(one, body | {"spec": spec | ({"runPolicy": given} if in_run_policy else given)}).job
    assert not job.invalid
    return job.lifecycle.clean


def test_every_kind_and_every_end_is_there() -> None:
    assert {row.kind for row in rows()} == {named(kind) for kind in KINDS}
    for kind, policy in {(row.kind, row.policy) for row in rows()}:
        ends = [end for row in rows() if (row.kind, row.policy) == (kind, policy) for end in ENDS[row.end]]
        assert sorted(ends) == sorted(ENDS["any"]), (kind, policy)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.kind} {row.policy} {row.end}")
def test_what_a_policy_keeps(row: Row) -> None:
    words: list[str | None] = list(re.findall(r"`(\w+)`", row.policy.partition("(")[0]))
    words += [None] * row.policy.endswith(("(default)", "(default of `v1`)"))
    words += [""] * row.policy.endswith("or empty")
    assert words
    for word in words:
        found = cleans(row.kind, word)
        kept = {end: getattr(found, end) for end in ENDS["any"]} | {"lost": found.lost or found.failed}
        assert {kept[end] for end in ENDS[row.end]} == {LEFT[row.ended, row.running]}
    assert row.crashing == "removed" or row.crashing.startswith("never occur")
