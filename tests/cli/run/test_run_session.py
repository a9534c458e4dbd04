# SPDX-License-Identifier: Apache-2.0
"""A session with a real engine in this process: what no command line can bring about from outside."""

import time
from pathlib import Path
from typing import Any

import pytest
from run_command import demo, worker
from run_objects import container, job, pod

from trainwright.cli.record import RunInfo, RunRecord, read_pods, read_run_info
from trainwright.cli.run.follow import RunFollower, last_lines
from trainwright.cli.run.intake import JobToRun, RunInput
from trainwright.cli.run.model import RunModel
from trainwright.cli.run.session import RunConfig, RunOptions, RunSession, RunStart
from trainwright.cli.show.news import Frame, JobEnding, Line, News, ReplicaNews
from trainwright.errors import EngineError
from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.local.engine import Engine, EngineSettings
from trainwright.manifest import Document
from trainwright.model.job import Body
from trainwright.node.devices.inventory import GPU, DeviceSet
from trainwright.runtime.ports import WallClock


class RecordingView:
    """A view that records what it is given."""

    busy = False
    gone = False

    def __init__(self) -> None:
        self.items: list[News] = []
        #: Lines and phases of replicas, in the order in which they came.
        self.order: list[str] = []
        self.lines: list[str] = []
        self.notices: list[str] = []
        self.endings: list[JobEnding] = []
        self.folder = ""

    def news(self, items: list[News]) -> None:
        self.items += items
        self.order += [one.phase for one in items if isinstance(one, ReplicaNews)]

    def logs(self, lines: list[Line]) -> None:
        self.lines += [text for _, text in lines]
        self.order += [text for _, text in lines]

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def tick(self, frame: Frame) -> None:
        pass

    def end(self, endings: list[JobEnding], folder: str) -> None:
        self.endings, self.folder = endings, folder

    def close(self, patience: float) -> bool:  # noqa: ARG002 - a view
        return True


def task(body: Body) -> JobToRun:
    named = body | {"metadata": {"namespace": "default", **body["metadata"]}}
    return JobToRun(Document("job.yaml", 1, named, (1, {})), GENERICJOB, named, load(GENERICJOB, named))


class SessionRig:
    """A session, its engine and its view."""

    def __init__(self, folder: Path, body: Body, **more: Any) -> None:
        self.view = RecordingView()
        self.folder = folder
        self.engine = Engine(
            EngineSettings(
                folder=folder,
                volumes=folder / "volumes",
                working=folder,
                runtime="process",
                devices={GPU: DeviceSet()},
            )
        )
        order = RunConfig(
            intake=RunInput((task(body),), ()),
            record=RunRecord(folder),
            view=self.view,
            start=RunStart(time.monotonic(), WallClock(), RunInfo(("default/demo",), 1, "2026-11-15T20:00:00Z")),
            options=RunOptions(**more),
        )
        self.session = RunSession(self.engine, order)


async def nothing() -> None:
    pass


async def test_a_job_from_start_to_end(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path, demo(worker("echo hello")))

    assert await rig.session.run(nothing) == 0
    assert rig.view.lines == ["hello"]
    assert rig.view.order[-2:] == ["hello", "Succeeded"]  # its last words come before the news of its end
    assert [one.outcome for one in rig.view.endings] == ["Succeeded"]
    kept = read_run_info(tmp_path)
    assert kept is not None
    assert (kept.runtime, kept.endings) == ("process", tuple(rig.view.endings))


async def test_an_engine_that_breaks(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path, demo(worker("sleep 60")))

    async def breaking() -> None:
        rig.engine.broken.set_exception(EngineError("the roof fell in"))

    assert await rig.session.run(breaking) == 3
    assert rig.view.notices[-1] == "the engine failed: the roof fell in"
    assert [(one.outcome, one.exit_code) for one in rig.view.endings] == [("Broken", 3)]


async def test_a_run_that_is_refused_at_the_last_moment_starts_nothing(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path, demo(worker("touch started")))

    async def refusing() -> None:
        raise EngineError("no")

    with pytest.raises(EngineError, match="no"):
        await rig.session.run(refusing)
    assert not (tmp_path / "run.json").exists()
    assert not (tmp_path / "started").exists()
    assert rig.view.endings == []


async def test_a_reader_that_goes_ends_the_run(tmp_path: Path) -> None:
    rig = SessionRig(tmp_path, demo(worker("sleep 60")))
    rig.view.gone = True

    assert await rig.session.run(nothing) == 141
    assert [one.outcome for one in rig.view.endings] == ["Interrupted"]


async def test_logs_wait_for_a_reader_that_is_behind(tmp_path: Path) -> None:
    """What ended meanwhile is shown all the same: nothing is lost."""
    rig = SessionRig(tmp_path, demo(worker("echo one; sleep 0.3; echo two")))
    rig.view.busy = True

    assert await rig.session.run(nothing) == 0
    assert rig.view.lines == ["one", "two"]


def test_what_was_not_read_when_everything_ended_is_read_then(tmp_path: Path) -> None:
    view, model = RecordingView(), RunModel([(GENERICJOB, job())])
    follower = RunFollower(model, view, RunRecord(tmp_path))
    follower.jobs([(job(), False)])
    follower.pods([(pod(containers=[container("running")]), False)])
    log = tmp_path / "logs/demo-worker-0/00000000-main-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\nlast words")
    follower.drain()

    assert view.lines == ["one", "last words"]
    assert follower.last_lines("demo-worker-0", 0, "main") == ("one", "last words")
    assert follower.last_lines("demo-worker-0", 0, "") == ("one", "last words")
    assert follower.last_lines("demo-worker-0", 7, "main") == follower.last_lines("demo-worker-9", 0, "") == ()


def test_what_was_shown_can_be_found_by_logs_even_if_the_run_is_killed_at_once(tmp_path: Path) -> None:
    known: list[str] = []

    class Killed(RecordingView):
        def logs(self, lines: list[Line]) -> None:
            super().logs(lines)
            known.extend(one.replica for one in read_pods(tmp_path))

    log = tmp_path / "logs/demo-worker-0/00000000-main-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    follower = RunFollower(RunModel([(GENERICJOB, job())]), Killed(), RunRecord(tmp_path))
    follower.pods([(pod(containers=[container("running")]), False)])
    follower.poll_logs()

    assert known == ["worker-0"]


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n\n" for number in range(99_999)))

    assert last_lines(log) == tuple(f"line {number}" for number in range(99_984, 99_999))
