# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run, also when the disk is full."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from run_objects import job, status

from trainwright.cli.record import (
    EVENTS,
    REPLICAS,
    RecordedPod,
    RunInfo,
    RunRecord,
    read_events,
    read_job,
    read_pods,
    read_run_info,
)
from trainwright.cli.show.news import JobEnding
from trainwright.model.job import Body
from trainwright.model.meta import Key

FACTS = RunInfo(("default/demo",), 42, "2026-11-15T20:00:00Z")
POD = RecordedPod("default/demo", "worker-0", "demo-worker-0", "12345678-9", ("main",), 1, "node-0")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk with little room on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False, capture_output=True)  # noqa: S607
    if made.returncode:
        pytest.skip("may not mount here")
    yield disk
    subprocess.run(["umount", disk], check=True)  # noqa: S607


def test_everything_is_found_again(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.write_info(FACTS)
    record.append(REPLICAS, POD)
    record.append(EVENTS, {"reason": "Running"})
    record.flush()
    assert read_run_info(tmp_path) == FACTS
    assert read_pods(tmp_path) == [POD]

    done = msgspec.structs.replace(
        FACTS, ended="x", endings=(JobEnding("default", "demo", "Failed", 1, 2.5, 0, "x", code=3),)
    )
    record.append(EVENTS, {"reason": "Failed"})
    record.close([job(status=status("Failed")), job("other", namespace="lab")], done)
    assert read_run_info(tmp_path) == done
    assert read_job(tmp_path, Key("default", "demo")) == job(status=status("Failed"))
    assert read_job(tmp_path, Key("lab", "other")) == job("other", namespace="lab")
    assert (tmp_path / EVENTS).read_text(encoding="utf-8") == '{"reason":"Running"}\n{"reason":"Failed"}\n'
    assert record.trouble == ""
    kept = [EVENTS, REPLICAS, "run.json", "status.json", "status.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def test_what_was_never_written(tmp_path: Path) -> None:
    assert read_run_info(tmp_path) is None
    assert read_pods(tmp_path) == []
    assert read_job(tmp_path, Key("a", "b")) == {"metadata": {"namespace": "a", "name": "b"}}


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / REPLICAS).write_bytes(msgspec.json.encode(POD) + b"\n" + msgspec.json.encode(POD)[:20])

    assert read_pods(tmp_path) == [POD]


def test_bytes_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    bad = b'{"job":"\xff"}\n'
    (tmp_path / REPLICAS).write_bytes(bad + msgspec.json.encode(POD) + b"\n")
    (tmp_path / EVENTS).write_bytes(b'{"reason":"a"}\n' + bad)
    (tmp_path / "run.json").write_bytes(b'{"jobs":[],"pid":1,"started":"\xff"}')
    (tmp_path / "status.json").write_bytes(b"[" + bad + b"]")
    (tmp_path / "status.yaml").write_bytes(b"metadata: \xff")

    assert read_pods(tmp_path) == [POD]
    assert read_events(tmp_path) == [{"reason": "a"}]
    assert read_run_info(tmp_path) is None
    assert read_job(tmp_path, Key("a", "b")) == {"metadata": {"namespace": "a", "name": "b"}}


@pytest.mark.parametrize("text", ["kind: Gen", "metadata:", "metadata: a", "[{}]", "[a]", "metadata: {at: 2026-11-00}"])
@pytest.mark.parametrize("file", ["status.json", "status.yaml", "manifest.yaml"])
def test_a_status_that_is_no_job_is_left_out(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")

    assert read_job(tmp_path, Key("a", "b")) == {"metadata": {"namespace": "a", "name": "b"}}


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": []}])
def test_an_odd_job_in_the_status_does_not_hide_the_others(tmp_path: Path, odd: Body) -> None:
    (tmp_path / "status.json").write_bytes(msgspec.json.encode([odd, job()]))

    assert read_job(tmp_path, Key("default", "demo")) == job()


@pytest.mark.parametrize(("keep", "left"), [(True, ["pods"]), (False, [])])
def test_only_what_is_worth_it_is_kept(tmp_path: Path, keep: bool, left: list[str]) -> None:
    record = RunRecord(tmp_path)
    for part in ("nodes/node-0", "pods/1"):
        (tmp_path / part).mkdir(parents=True)
    record.remove_working_files(keep_pods=keep)

    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == left


def fill(disk: Path) -> None:
    with (disk / "log").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


def test_the_final_status_has_its_room_on_a_full_disk(small: Path) -> None:
    record = RunRecord(small)
    record.write_info(FACTS)
    fill(small)
    record.append(EVENTS, {"message": "x" * 9999})
    record.flush()
    assert record.trouble == f"{small / EVENTS} could not be written: No space left on device"

    record.close([job(status=status("Succeeded"))], msgspec.structs.replace(FACTS, ended="now"))
    assert read_job(small, Key("default", "demo"))["status"]["phase"] == "Succeeded"
    ended = read_run_info(small)
    assert ended is not None
    assert ended.ended == "now"


def test_a_disk_that_is_full_from_the_start(small: Path) -> None:
    fill(small)
    record = RunRecord(small)
    record.write_info(FACTS)
    record.close([job()], FACTS)

    assert "No space left on device" in record.trouble


def test_the_copy_of_the_status_does_not_use_the_room_of_the_other_files(small: Path) -> None:
    record = RunRecord(small)
    record.write_info(FACTS)
    record.write_manifest([job()])
    fill(small)
    ended = msgspec.structs.replace(FACTS, ended="now")
    record.close([job(status={"phase": "Succeeded", "text": "x" * 90_000})], ended)

    assert read_run_info(small) == ended
    assert read_job(small, Key("default", "demo"))["status"]["phase"] == "Succeeded"
    assert sorted(path.name for path in small.iterdir()) == ["log", "run.json", "status.yaml"]


def test_the_submitted_jobs_stay_if_the_final_status_has_no_room(small: Path) -> None:
    record = RunRecord(small)
    record.write_info(FACTS)
    record.write_manifest([job()])
    fill(small)
    ended = msgspec.structs.replace(FACTS, ended="now")
    record.close([job(status={"text": "x" * 200_000})], ended)

    assert read_run_info(small) == ended
    assert read_job(small, Key("default", "demo")) == job()
    assert sorted(path.name for path in small.iterdir()) == ["log", "manifest.yaml", "run.json"]
    assert record.trouble == f"{small / 'status.yaml'} could not be written: No space left on device"
