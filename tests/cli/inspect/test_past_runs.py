# SPDX-License-Identifier: Apache-2.0
"""The evidence from the folder of a past run, also if the run was killed or its files are odd."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from run_objects import job, status

from trainwright.cli.inspect.events import event_lines, event_reports
from trainwright.cli.inspect.local import collect
from trainwright.cli.record import EVENTS, REPLICAS, RecordedPod, RunInfo, RunRecord
from trainwright.cli.state import NameLocks
from trainwright.model.job import Body
from trainwright.model.meta import Key

KEYS = [Key("default", "demo"), Key("default", "demo-worker-0")]
OUTCOME = {"result": "Succeeded", "reason": "Rule", "at": "2026-11-15T20:00:02Z"}
STARTED = RunInfo(tuple(map(str, KEYS)), 1, "2026-11-15T20:00:00Z")


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRecord:
    """The record of a run of two jobs: the name of one job is the name of a pod of the other job."""
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path))
    with NameLocks(tmp_path, KEYS, datetime(2026, 11, 15, 20, tzinfo=UTC)) as claim:
        found = RunRecord(claim.folder)
    found.write_info(STARTED)
    found.write_manifest([job(key.name) for key in KEYS])
    for key in KEYS:
        pod = f"{key.name}-worker-0"
        found.append(REPLICAS, RecordedPod(str(key), "worker-0", pod, f"uid of {pod}", ("main",)))
    return found


def event(about: Any, reason: str = "Started") -> Body:
    return {"involvedObject": about, "reason": reason, "lastTimestamp": "2026-11-15T20:00:01Z"}


def involved(kind: str, name: str) -> Body:
    return {"kind": kind, "namespace": "default", "name": name}


def test_events_belong_to_the_object_of_their_kind(record: RunRecord) -> None:
    whole = [
        ("GenericJob", "demo"),
        ("Pod", "demo-worker-0"),
        ("Service", "demo-worker-0"),
        ("GenericJob", "demo-worker-0"),
        ("Pod", "demo-worker-0-worker-0"),
    ]
    for kind, name in whole:
        record.append(EVENTS, event(involved(kind, name)))
    record.flush()

    def seen(word: str) -> list[tuple[str, str]]:
        found = (one["involvedObject"] for one in collect(word, "", logs=False).events)
        return [(about["kind"], about["name"]) for about in found]

    assert seen("demo") == whole[:3]
    assert seen("demo-worker-0") == whole[3:]


@pytest.mark.parametrize("odd", ["demo", ["demo"], 1, None])
def test_an_event_about_nothing_is_left_out(record: RunRecord, odd: Any) -> None:
    record.append(EVENTS, event(odd, "Odd"))
    record.append(EVENTS, event(involved("GenericJob", "demo")))
    record.flush()

    assert [one["reason"] for one in collect("demo", "", logs=False).events] == ["Started"]


@pytest.mark.parametrize(("ledger", "known"), [({"outcome": OUTCOME}, True), ({}, False)], ids=["ended", "not ended"])
def test_an_outcome_is_known_if_the_run_was_killed_after_it(
    record: RunRecord, ledger: dict[str, Any], *, known: bool
) -> None:
    record.close([job(key.name, status=status("Succeeded", **ledger)) for key in KEYS], STARTED)

    assert collect("demo", "", logs=False).gaps == (
        () if known else ("how the job and its replicas ended is not known, because the run was killed",)
    )


def test_no_text_of_an_event_reaches_the_terminal_as_an_escape_sequence() -> None:
    odd = event(involved("Pod\x1b[2J", "a\x1b[2J"), "b\x1b[2J") | {"type": "Normal\x1b[2J", "message": "c\x1b[2J"}

    assert list(event_lines(event_reports([odd])))[1].split() == [
        "2026-11-15T20:00:01Z", "Normal", "b", "Pod/a", "1", "c"
    ]  # fmt: skip
