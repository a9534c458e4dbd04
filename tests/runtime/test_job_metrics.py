# SPDX-License-Identifier: Apache-2.0
"""What becomes of jobs is counted once, whatever happens to passes, writes and operators; and it is logged."""

import asyncio
import logging
from collections import Counter

import pytest
from runtime_rig import JOB, VIRTUAL, Call, ControllerRig, Run, key

from trainwright.errors import ConflictError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT
from trainwright.runtime.telemetry import LogMessage, Telemetry

pytestmark = VIRTUAL


def fails_first(pod: Body) -> Run:
    return Run(code=1 if pod["metadata"]["labels"][ATTEMPT] == "0" else 0)


def there(telemetry: Telemetry) -> dict[str, int]:
    """How many jobs are in each phase."""
    return {phase: stay.count for (_, phase), stay in telemetry.jobs.items() if stay.count}


def facts(telemetry: Telemetry) -> tuple[dict[str, int], dict[str, int], int]:
    """Restarts by cause, ends by result, and how many have come to run."""
    starts = telemetry.time_to_running.get("genericjob")
    return (
        {cause: times for (_, cause), times in telemetry.restarts.items()},
        {result: times for (_, result), times in telemetry.outcomes.items()},
        sum(starts.counts) if starts else 0,
    )


ONCE = ({"Exit": 1}, {"Succeeded": 1}, 1)


async def test_each_step_is_counted_once() -> None:
    rig = ControllerRig(fails_first)
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.until(lambda: rig.phase() == "Running")
        assert there(rig.controller.telemetry) == {"Running": 1}
        await rig.finished()
        await asyncio.sleep(600)

    assert facts(rig.controller.telemetry) == ONCE
    assert there(rig.controller.telemetry) == {"Succeeded": 1}


@pytest.mark.parametrize(
    "error", [ConflictError("somebody was faster"), UnavailableError("no answer")], ids=["conflict", "no answer"]
)
@pytest.mark.parametrize("done", [False, True], ids=["before the write", "after the write"])
async def test_a_status_that_is_refused_or_has_no_answer_is_counted_once(*, done: bool, error: Exception) -> None:
    rig = ControllerRig(fails_first)
    tries: Counter[str] = Counter()

    async def lose(call: Call) -> None:
        if call.verb == "status":
            phase = str(call.body["status"].get("phase"))
            tries[phase] += 1
            if tries[phase] == 1:
                raise error

    if done:
        rig.wire.after = lose
    else:
        rig.wire.before = lose
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.finished()
        await asyncio.sleep(600)

    assert facts(rig.controller.telemetry) == ONCE


async def test_an_operator_that_comes_later_does_not_count_what_was_before() -> None:
    rig = ControllerRig(fails_first)
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.until(lambda: "Restarting" in rig.events())
        await rig.until(lambda: rig.phase() == "Running")
    rig.made()
    async with rig.running():
        rig.submit("other", replicas=1, limit=1)
        await rig.finished("train", "other")

    restarts, ends, _ = facts(rig.controller.telemetry)
    assert (restarts, ends) == ({"Exit": 1}, {"Succeeded": 2})


async def test_only_the_first_start_of_a_job_is_timed() -> None:
    rig = ControllerRig(lambda _: Run(starts=7, lasts=None))
    async with rig.running():
        rig.submit(replicas=1)
        await rig.until(lambda: rig.phase() == "Running")
        for paused in (True, False):
            rig.store.patch(JOB, key(), {"spec": {"runMode": {"pause": {"enabled": paused}}}})
            await asyncio.sleep(60)
        assert rig.phase() == "Running"

    assert facts(rig.controller.telemetry)[2] == 1
    assert rig.controller.telemetry.time_to_running["genericjob"].sum == pytest.approx(7, abs=1)


async def test_a_job_that_is_gone_leaves_nothing() -> None:
    rig = ControllerRig()
    async with rig.running():
        rig.submit(replicas=1)
        await rig.finished()
        rig.store.delete(JOB, key())
        rig.submit("long", replicas=1)
        await rig.finished("long")
        await rig.until(lambda: len(rig.controller._job_metrics) == 1)

    assert there(rig.controller.telemetry) == {"Succeeded": 1}


async def test_goodput_is_the_share_of_time_in_which_everything_was_up() -> None:
    """20 s up, 1 s of back-off and 4 s until its pod runs again, 75 s up."""
    rig = ControllerRig(
        lambda pod: Run(4, 20, 1) if pod["metadata"]["labels"][ATTEMPT] == "0" else Run(starts=4, lasts=75)
    )
    rig.controller.telemetry.time = asyncio.get_running_loop().time
    async with rig.running():
        rig.submit(replicas=1, limit=1)
        await rig.finished()
        told = rig.controller.telemetry.expose()

    found = next(line for line in told.splitlines() if line.startswith("trainwright_goodput_ratio{"))
    assert float(found.split()[-1]) == pytest.approx(0.95, abs=0.005)


async def test_the_life_of_a_job_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    rig = ControllerRig(fails_first)
    async with rig.running():
        uid = rig.submit(replicas=1, limit=1)["metadata"]["uid"]
        await rig.finished()
        await asyncio.sleep(600)

    lines = [
        record.msg
        for record in caplog.records
        if isinstance(record.msg, LogMessage) and record.name.endswith("job_metrics")
    ]
    told = [f"{line.text} {line.about.get('before', line.about.get('cause', ''))}" for line in lines]
    assert told == [
        "phase New",
        "restarting Exit",
        "phase Running",
        "phase Restarting",
        "phase Running",
    ]
    assert all((line.about["job"], line.about["kind"]) == ("default/train", "genericjob") for line in lines)
    assert lines[0].about["uid"] == uid
    assert lines[-1].about["now"] == "Succeeded"
    assert lines[1].about["why"] == "container main exited with code 1"


async def test_an_operator_that_finds_many_jobs_says_nothing_of_each(caplog: pytest.LogCaptureFixture) -> None:
    rig = ControllerRig(lambda _: Run(lasts=None))
    async with rig.running():
        rig.submit(replicas=1)
        await rig.until(lambda: rig.phase() == "Running")
    caplog.set_level(logging.INFO, "trainwright")
    caplog.clear()
    rig.made()
    rig.wire.calls.clear()
    async with rig.running():
        await asyncio.sleep(30)

    assert not [record for record in caplog.records if record.name.endswith("job_metrics")]
    assert rig.wire.made() == []
    assert there(rig.controller.telemetry) == {"Running": 1}
