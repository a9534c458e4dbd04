# SPDX-License-Identifier: Apache-2.0
"""Two operators, while jobs are made all the time: one leads; when it is killed or stopped, the other does, in time.

The audit log is the proof: once the new leader has written anything, the old one writes nothing any more.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster_audit import Calls
from cluster_client import until
from cluster_jobs import Jobs, job, pods_born, role
from cluster_operator import DURATION, QUICK, RETRY, Operator, account, holder, started
from cluster_plane import ControlPlane
from msgspec import Struct

pytest_plugins = ("cluster_fixtures",)
#: What a busy machine may take on top.
SLACK = 10.0


class Pair(Struct):
    """The one that leads, and the one that waits."""

    jobs: Jobs
    users: tuple[str, str]
    leader: Operator
    other: Operator

    def taken_over(self, since: float) -> float:
        """Wait until the other leads; in how many seconds."""
        until(lambda: self.other.leads(self.jobs.plane, self.jobs.namespace), "the other one leads")
        return time.monotonic() - since


@pytest.fixture
def pair(plane: ControlPlane, namespace: str, nodes: object, tmp_path: Path) -> Iterator[Pair]:
    found = [account(plane, namespace, name) for name in ("one", "two")]
    words = ("--namespace", namespace, "--lease", f"{namespace}/operator", *QUICK)
    with ExitStack() as stack:
        first = stack.enter_context(started(found[0][1], tmp_path / "one.log", *words))
        until(lambda: first.leads(plane, namespace), "somebody leads")
        second = stack.enter_context(started(found[1][1], tmp_path / "two.log", *words))
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        seen = plane.mark()
        until(lambda: plane.audit(seen).where(user=found[1][0], verb="get"), f"the other one waits for {lease}")
        yield Pair(Jobs(plane, namespace), (found[0][0], found[1][0]), first, second)


@contextmanager
def _made_all_the_time(pair: Pair, log: Path) -> Iterator[None]:
    """Jobs come in, ten a second, until the end of the block; all of them succeed, and no pod is made twice."""
    with pods_born(pair.jobs, log) as born:
        with _submitted(pair.jobs) as names:
            until(lambda: len(pair.jobs.pods()) > 10, "the leader works")
            yield
        for name in names:
            pair.jobs.until(name, "Succeeded")
        # Who watches may lag behind who works.
        expected = {f"{name}-worker-{index}": 1 + (int(name[4:7]) % 5 == 0) for name in names for index in range(2)}
        until(lambda: born().total() >= sum(expected.values()), "every pod was seen")
        assert born() == expected


@contextmanager
def _submitted(jobs: Jobs) -> Iterator[list[str]]:
    names: list[str] = []
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.1):
            name = f"job-{len(names):03}"
            jobs.make(job(name, role(replicas=2, limit=4, exit="1,0" if len(names) % 5 == 0 else "0")))
            names.append(name)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield names
    finally:
        over.set()
        thread.join()


def _writes(calls: Calls, user: str) -> Calls:
    """Whatever they came to; a lease that is asked for in vain is no write."""
    found = calls.where(user=user).writes
    return Calls(one for one in found if not (one.resource.startswith("leases") and one.code >= 400))


def _one_after_the_other(pair: Pair, mark: int) -> None:
    calls = pair.jobs.plane.audit(mark)
    before, after = (_writes(calls, user) for user in pair.users)
    assert before
    assert after
    first = min(call.at for call in after)
    assert [call for call in before if call.at >= first] == []


def test_when_the_leader_is_killed_the_other_takes_over_in_time(
    plane: ControlPlane, pair: Pair, tmp_path: Path
) -> None:
    mark = plane.mark()
    with _made_all_the_time(pair, tmp_path / "pods"):
        pair.leader.kill()
        took = pair.taken_over(time.monotonic())
        time.sleep(1)

    assert took <= DURATION + 1.2 * RETRY + SLACK
    _one_after_the_other(pair, mark)


def test_a_leader_that_was_stopped_past_its_lease_writes_nothing_when_it_goes_on(
    plane: ControlPlane, pair: Pair, tmp_path: Path
) -> None:
    mark = plane.mark()
    with _made_all_the_time(pair, tmp_path / "pods"):
        pair.leader.signal(signal.SIGSTOP)
        took = pair.taken_over(time.monotonic())
        pair.leader.signal(signal.SIGCONT)  # at the worst moment: the other has just begun
        until(lambda: not pair.leader.alive, "the one before gives up")
        time.sleep(1)

    assert took <= DURATION + 1.2 * RETRY + SLACK
    assert "lease" in pair.leader.tail(1)
    _one_after_the_other(pair, mark)


def test_a_leader_that_is_asked_to_end_hands_over_at_once(plane: ControlPlane, pair: Pair, tmp_path: Path) -> None:
    mark = plane.mark()
    with _made_all_the_time(pair, tmp_path / "pods"):
        began = time.monotonic()
        assert pair.leader.end() == 0
        took = pair.taken_over(began)

    assert took < 0.9 * DURATION  # what is not handed over is waited for until it expires
    assert holder(plane, pair.jobs.namespace)
    _one_after_the_other(pair, mark)
