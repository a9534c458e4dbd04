# SPDX-License-Identifier: Apache-2.0
"""Plain lines for pipes and JSON for programs: what is written for everything that can happen."""

import os
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from trainwright.cli.show.news import EventNews, JobEnding, JobNews, LogSource, News, ReplicaNews
from trainwright.cli.show.streams import JsonView, LinesView
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.model.ledger import Outcome, Phase, Reason
from trainwright.model.meta import Key
from trainwright.model.rule import Result

DEMO = Key("default", "demo")
NOW = datetime(2026, 11, 15, 20, 0, 0, 123456, tzinfo=UTC)
WORKER = ReplicaNews(DEMO, "worker", 0, "worker-0", "Running", "demo-worker-0", "u", 1, "node-0", 1)
RUNNING = JobNews(DEMO, "GenericJob", "Running", Phase.RUNNING, 4, {"Running": 2, "Succeeded": 1, "Failed": 1}, 3)
SOURCE = LogSource(DEMO, "worker-0", "demo-worker-0", "main", "worker-0")
GOOD = JobEnding("default", "demo", "Succeeded", 0, 6.42, 0, "")
BAD = JobEnding(
    "default",
    "demo",
    "Failed",
    1,
    3.2,
    2,
    "worker-1 failed",
    rule="any worker fails",
    replica="worker-1",
    pod="demo-worker-1",
    container="main",
    code=137,
    signal=9,
    cause="container main was killed by SIGKILL (exit code 137); 2 of 2 restarts were used",
    last_lines=("step 1", "\x1b[31mstep 2\x07"),
    hint="somebody did it",
)


def outcome(result: Result) -> Outcome:
    return Outcome(result, Reason.RULE, NOW)


class Written:
    """What a view wrote."""

    def __init__(self) -> None:
        self.reader, self.fd = os.pipe()
        self.writer = BackgroundWriter(self.fd)

    def text(self) -> str:
        self.writer.close()
        os.close(self.fd)
        with os.fdopen(self.reader, encoding="utf-8") as reader:
            return reader.read()


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.mark.parametrize(
    ("item", "line"),
    [
        pytest.param(RUNNING, "demo  Running  2 of 4 running, 1 of 4 succeeded, 1 failed", id="job"),
        pytest.param(
            msgspec.structs.replace(RUNNING, phase="Pending", counts={"Waiting": 4}),
            "demo  Pending  0 of 4 running",
            id="pending job",
        ),
        pytest.param(
            msgspec.structs.replace(RUNNING, phase="Failed", outcome=outcome(Result.FAILED)), "demo  Failed", id="ended"
        ),
        pytest.param(msgspec.structs.replace(RUNNING, deleted=True), "demo  deleted", id="deleted"),
        pytest.param(
            msgspec.structs.replace(RUNNING, phase="Paused", step=Phase.SUSPENDED, deleted=True),
            "demo  deleted",
            id="deleted while paused",
        ),
        pytest.param(
            msgspec.structs.replace(RUNNING, phase="Paused", step=Phase.SUSPENDED),
            "demo  Paused  `trainwright resume demo` continues the job",
            id="paused",
        ),
        pytest.param(
            msgspec.structs.replace(RUNNING, key=Key("lab", "demo"), phase="Paused", step=Phase.SUSPENDED),
            "demo  Paused  `trainwright resume lab/demo` continues the job",
            id="paused elsewhere",
        ),
        pytest.param(WORKER, "worker-0  Running  node-0  restart 1", id="restarted replica"),
        pytest.param(msgspec.structs.replace(WORKER, restarts=0), "worker-0  Running  node-0", id="replica"),
        pytest.param(msgspec.structs.replace(WORKER, phase="Succeeded"), "worker-0  Succeeded", id="succeeded"),
        pytest.param(
            msgspec.structs.replace(WORKER, phase="Failed", reason="exit \x1b[2Jcode 1"),
            "worker-0  Failed  exit code 1",
            id="failed",
        ),
        pytest.param(msgspec.structs.replace(WORKER, phase="Starting"), "", id="passing through"),
        pytest.param(
            msgspec.structs.replace(WORKER, phase="Pending", restarts=0, reason="Unschedulable: no cpu"),
            "worker-0  Pending  Unschedulable: no cpu",
            id="held up",
        ),
        pytest.param(
            EventNews(DEMO, "worker-0", "Unhealthy", "probe failed", warning=True),
            "worker-0  Unhealthy: probe failed",
            id="warning",
        ),
        pytest.param(EventNews(DEMO, "demo", "Running", "demo is running."), "", id="ordinary event"),
        pytest.param(EventNews(DEMO, "demo", "Failed", "by rule", warning=True), "", id="the summary will say it"),
    ],
)
def test_a_line_for_what_happens(written: Written, item: News, line: str) -> None:
    LinesView(written.writer, lambda: 12.34).news([item])

    assert written.text() == (f" 12.3s  {line}\n" if line else "")


def test_lines_of_logs_and_notices(written: Written) -> None:
    view = LinesView(written.writer, lambda: 0.0)
    view.logs([(SOURCE, "step 1\tloss \x1b[31m0.5"), (SOURCE, "50%\r100%")])
    view.notice("images are not used")

    assert written.text() == ("worker-0 | step 1  loss 0.5\nworker-0 | 100%\n  0.0s  notice: images are not used\n")


@pytest.mark.parametrize(
    "view",
    [
        lambda writer: LinesView(writer, lambda: 0.0, with_logs=False),
        lambda writer: JsonView(writer, lambda: NOW, with_logs=False),
    ],
    ids=["lines", "json"],
)
def test_logs_may_be_left_out(written: Written, view: Callable[[BackgroundWriter], LinesView | JsonView]) -> None:
    view(written.writer).logs([(SOURCE, "step 1")])

    assert written.text() == ""


def test_the_end_in_words(written: Written) -> None:
    LinesView(written.writer, lambda: 0.0).end([GOOD, BAD], "/state/run")

    assert written.text().splitlines() == [
        "",
        "demo succeeded after 6.4s",
        "demo failed after 3.2s, 2 restarts: worker-1 failed",
        "  rule:    any worker fails",
        "  replica: worker-1 (pod demo-worker-1)",
        "  cause:   container main was killed by SIGKILL (exit code 137); 2 of 2 restarts were used",
        "  last lines of worker-1:",
        "    | step 1",
        "    | step 2",
        "  hint:    somebody did it",
        "logs and final status: /state/run",
    ]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("TimedOut", "demo timed out after 2.0s: --timeout passed"),
        ("Interrupted", "demo was interrupted after 2.0s: --timeout passed"),
        ("Deleted", "demo was deleted after 2.0s: --timeout passed"),
        ("Broken", "demo was lost after 2.0s: --timeout passed"),
    ],
)
def test_ends_without_an_outcome(written: Written, word: str, text: str) -> None:
    end = JobEnding("default", "demo", word, 124, 2.0, 0, "--timeout passed", unsettled=("worker-0 Pending: a", "b"))
    LinesView(written.writer, lambda: 0.0).end([end], "/run")

    assert written.text().splitlines()[1:4] == [text, "  state:   worker-0 Pending: a", "           b"]


def test_the_end_of_many_jobs_is_short(written: Written) -> None:
    LinesView(written.writer, lambda: 0.0).end([GOOD] * 100 + [BAD] * 100, "/run")

    lines = written.text().splitlines()
    assert lines.count("… and 80 more jobs succeeded") == lines.count("… and 80 more jobs did not succeed") == 1
    assert len(lines) < 80


def objects(written: Written) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in written.text().splitlines()]


def test_json_for_everything(written: Written) -> None:
    view = JsonView(written.writer, lambda: NOW)
    view.news([RUNNING, WORKER, EventNews(DEMO, "worker-0", "Unhealthy", "probe failed", warning=True)])
    view.logs([(SOURCE, "50%\r\x1b[31m100%")])
    view.notice("images are not used")
    view.end([BAD], "/state/run")

    at = {"at": "2026-11-15T20:00:00.123Z"}
    place = {"namespace": "default", "job": "demo"}
    job, replica, event, log, notice, end = objects(written)
    assert job == at | place | {
        "type": "job",
        "kind": "GenericJob",
        "phase": "Running",
        "replicas": 4,
        "counts": {"Running": 2, "Succeeded": 1, "Failed": 1},
        "restarts": 3,
    }
    assert replica == at | place | {
        "type": "replica",
        "replica": "worker-0",
        "phase": "Running",
        "pod": "demo-worker-0",
        "attempt": 1,
        "node": "node-0",
        "restarts": 1,
        "reason": "",
    }
    assert event == at | place | {
        "type": "event",
        "about": "worker-0",
        "reason": "Unhealthy",
        "message": "probe failed",
        "warning": True,
    }
    assert log == at | place | {"type": "log", "replica": "worker-0", "container": "main", "text": "50%\r\x1b[31m100%"}
    assert notice == at | {"type": "notice", "text": "images are not used"}
    assert {key: end[key] for key in ("type", "outcome", "exitCode", "code", "signal", "lastLines", "folder")} == {
        "type": "end",
        "outcome": "Failed",
        "exitCode": 1,
        "code": 137,
        "signal": 9,
        "lastLines": ["step 1", "\x1b[31mstep 2\x07"],
        "folder": "/state/run",
    }


def test_a_view_knows_when_its_reader_is_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    view = LinesView(BackgroundWriter(writer), lambda: 0.0)
    assert not view.gone

    view.notice("x")
    view.close(5)
    os.close(writer)
    assert [view.gone, view.busy] == [True, False]
