# SPDX-License-Identifier: Apache-2.0
"""`status.tasks` and `status.aggregate`: every replica's phase, exact counts, and a status that stays small."""

from typing import Any

import msgspec
import pytest
from genericjob_driver import (
    Driver,
    aggregate,
    container,
    manifest,
    phases,
    replicas,
    restart_count,
)

from driving import LARGEST_STATUS
from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB, wire
from trainwright.kinds.genericjob.status import MAX_LISTED_CONTAINERS, MAX_LISTED_REPLICAS, _listed
from trainwright.model.cause import LONGEST_MESSAGE, Cause, CauseKind, brief
from trainwright.model.child import ContainerStatus, Observed, Pod, PodSpec, PodStatus
from trainwright.model.job import Body
from trainwright.model.ledger import KEPT_FAILURES, Failure, Hold, Ledger, Phase, RoleLedger
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, Meta
from trainwright.model.plan import ReplicaState, State
from trainwright.model.site import Site
from trainwright.model.units import format_counts, format_indexes
from trainwright.testing import factories
from trainwright.testing.factories import NOW, UID, later

RULES: dict[str, Any] = {"successRules": [{"worker": [0]}], "failureRules": [{"worker": [0]}]}


def line(status: Body, position: int = 0) -> Body:
    """The first type's replica at that position."""
    replica: Body = status["tasks"][0]["replicas"][position]
    return replica


def test_every_phase_of_a_replica_and_the_sum() -> None:
    """Creating has no place yet, Pending has; the rest are the pod's own phases; Deleted is gone for good."""
    job = Driver(manifest(replicas(count=8), **RULES))
    job.go()
    for rank in range(1, 8):
        job.bind(f"demo-worker-{rank}")
    for rank in range(2, 8):
        job.start(f"demo-worker-{rank}")
    job.exit("demo-worker-3")
    job.exit("demo-worker-4", 1)
    job.change("demo-worker-5", phase="Unknown")
    job.exit("demo-worker-6")
    job.go()
    job.vanish("demo-worker-6")
    status = job.go()

    assert list(phases(status).values()) == [
        "Creating",
        "Pending",
        "Running",
        "Succeeded",
        "Failed",
        "Unknown",
        "Deleted",
        "Running",
    ]
    assert status["aggregate"] == {
        "creating": 1,
        "pending": 1,
        "running": 2,
        "succeeded": 1,
        "failed": 1,
        "unknown": 1,
        "deleted": 1,
    }


def test_the_aggregate_has_every_word_from_the_beginning() -> None:
    job = Driver(manifest())
    job.step()

    assert job.status["aggregate"] == aggregate(creating=4)


def test_tasks_are_in_document_order_and_replicas_by_rank() -> None:
    status = Driver(manifest(replicas("worker", 11), replicas("master", 1))).running().status

    assert [task["type"] for task in status["tasks"]] == ["worker", "master"]
    assert list(phases(status)) == [*(f"worker-{rank}" for rank in range(11)), "master-0"]


def test_a_task_exactly() -> None:
    job = Driver(manifest(replicas(count=2, pod={"containers": [container("main"), container("side")]}), **RULES))
    job.running()
    job.change("demo-worker-0", container_statuses=(factories.container("main"), factories.container("side")))
    job.change(
        "demo-worker-1",
        phase="Pending",
        container_statuses=(factories.container("main", exit_code=0), factories.container("side", waiting="X")),
    )
    status = job.go()

    assert status["tasks"] == [
        {
            "type": "worker",
            "replicas": [
                {
                    "name": "demo-worker-0",
                    "uid": "uid-1",
                    "phase": "Running",
                    "containers": [{"name": "main", "state": "Running"}, {"name": "side", "state": "Running"}],
                },
                {
                    "name": "demo-worker-1",
                    "uid": "uid-2",
                    "phase": "Pending",
                    "containers": [
                        {"name": "main", "state": "Terminated", "exitCode": 0},
                        {"name": "side", "state": "Waiting"},
                    ],
                },
            ],
        }
    ]


def test_a_container_without_a_state_waits() -> None:
    job = Driver(manifest())
    job.go()

    assert line(job.containers("demo-worker-0", ContainerStatus("main")))["containers"] == [
        {"name": "main", "state": "Waiting"}
    ]


@pytest.mark.parametrize("code", [0, 1, 137])
def test_the_exit_code_is_shown_even_when_it_is_0(code: int) -> None:
    job = Driver(manifest(**RULES)).running()

    assert line(job.end("worker-1", code=code), 1)["containers"] == [
        {"name": "main", "state": "Terminated", "exitCode": code}
    ]


def test_restart_count_is_left_out_when_it_is_0() -> None:
    job = Driver(manifest(replicas("worker", 2, restartPolicy={"limit": 9}), replicas("ps", 1))).running()
    assert [sorted(task) for task in job.status["tasks"]] == [["replicas", "type"]] * 2

    job.fail_and_restart("worker-0")
    job.fail_and_restart("worker-1")

    assert [task.get("restartCount") for task in job.status["tasks"]] == [2, None]


def test_a_replica_before_its_pod_has_no_uid() -> None:
    job = Driver(manifest())
    job.step()

    assert line(job.status) == {"name": "demo-worker-0", "phase": "Creating", "containers": []}


def test_what_was_cleaned_up_keeps_uid_and_exit_code() -> None:
    job = Driver(manifest(cleanUpPolicy="All", **RULES)).running()
    job.end("worker-2", code=3)
    uids = [job.pod(f"worker-{rank}").metadata.uid for rank in range(4)]
    job.end("worker-0")
    job.reap()
    status = job.go()

    assert status["aggregate"] == aggregate(deleted=4)
    assert [(one["phase"], one["uid"]) for one in status["tasks"][0]["replicas"]] == [("Deleted", uid) for uid in uids]
    assert [one["containers"] for one in status["tasks"][0]["replicas"]] == [
        [{"name": "main", "state": "Terminated", "exitCode": 0}],
        [{"name": "main", "state": "Terminated"}],
        [{"name": "main", "state": "Terminated", "exitCode": 3}],
        [{"name": "main", "state": "Terminated"}],
    ]


def test_what_was_deleted_is_known_from_an_old_status_too() -> None:
    """`tasks[].status` is where the original once kept its replicas."""
    job = Driver(manifest(cleanUpPolicy="All", **RULES)).running()
    job.end("worker-0")
    task = job.document["status"]["tasks"][0]
    task["status"] = task.pop("replicas")
    job.reap()

    assert line(job.go()) == {
        "name": "demo-worker-0",
        "uid": "uid-1",
        "phase": "Deleted",
        "containers": [{"name": "main", "state": "Terminated", "exitCode": 0}],
    }


def test_an_externally_deleted_pod_is_made_again() -> None:
    job = Driver(manifest()).running()
    job.vanish("demo-worker-1")
    job.catch_up()
    plan = job.step()
    assert [create.name for create in plan.creates] == ["demo-worker-1"]
    assert job.status["aggregate"] == aggregate(creating=1, running=3)

    job.start_all()

    assert job.status["aggregate"] == aggregate(running=4)
    assert restart_count(job.status) is None


def test_of_a_huge_job_those_in_trouble_are_listed_first() -> None:
    job = Driver(manifest(replicas(count=300), **RULES)).running()
    job.end("worker-299", code=1)
    status = job.go()
    listed = list(phases(status).items())

    assert len(listed) == 256
    assert listed[-1] == ("worker-299", "Failed")
    assert [name for name, _ in listed[:-1]] == [f"worker-{rank}" for rank in range(255)]
    assert status["aggregate"] == aggregate(running=299, failed=1)


def test_which_of_a_huge_job_are_listed() -> None:
    """Failed, unknown, pending, creating, running, succeeded, deleted; of each the lowest ranks."""
    spread = {"Failed": 40, "Unknown": 40, "Pending": 40, "Creating": 40, "Running": 40, "Succeeded": 40, "Deleted": 60}
    wanted = [phase for phase, times in spread.items() for _ in range(times)]
    rules = [{"worker": [160]}]
    job = Driver(manifest(replicas(count=300), successRules=rules, failureRules=rules))
    job.go()
    for rank, phase in enumerate(wanted):
        name = f"demo-worker-{rank}"
        if phase != "Creating":
            job.bind(name)
        if phase in ("Succeeded", "Deleted"):
            job.exit(name)
        elif phase not in ("Creating", "Pending"):
            job.change(name, phase=phase)
    job.go()
    for rank in range(240, 300):
        job.vanish(f"demo-worker-{rank}")
    status = job.go()

    assert status["aggregate"] == {phase.lower(): times for phase, times in spread.items()}
    assert list(phases(status).items()) == [(f"worker-{rank}", wanted[rank]) for rank in range(256)]


@pytest.mark.parametrize("worst", ["Failed", "Unknown", "Pending", "Creating"])
def test_trouble_is_listed_before_what_runs_well(worst: str) -> None:
    """Whatever its rank; and worse trouble before lesser."""
    words = ["Deleted", "Succeeded", "Running", "Creating", "Pending", "Unknown", "Failed"]
    better = words[words.index(worst) - 1]
    lines = {"worker": [(ReplicaState(rank, 0, State.RUNNING), better if rank < 256 else worst) for rank in range(258)]}

    assert _listed(lines) == {("worker", rank) for rank in (*range(254), 256, 257)}


# -- ten thousand replicas in the worst state there is -----------------------------------------------------------------

COUNT = 10_000
JOB = "j" * 27
TYPE = "t" * 30
CONTAINERS = tuple(letter * 63 for letter in "abc")


def _pod(rank: int, attempt: int, phase: str) -> Pod:
    """Three containers with the longest names; ended ones have exit codes of three digits."""
    state: Any = {"exit_code": 255} if phase in ("Failed", "Succeeded") else {}
    return Pod(
        Meta(
            f"{JOB}-{TYPE}-{rank}",
            "lab",
            f"{rank:08d}-2222-3333-4444-555555555555",
            labels={KIND: "genericjob", JOB_UID: UID, ROLE: TYPE, INDEX: str(rank), ATTEMPT: str(attempt)},
            owner_references=(factories.OWNER,),
        ),
        PodSpec("node"),
        PodStatus(phase, container_statuses=tuple(factories.container(name, **state) for name in CONTAINERS)),
    )


def huge(letter: str = "x", base: int = 10, deciding: int = 0) -> tuple[Body, Observed]:
    """Neighbours always differ: succeeded, failed, held back; each with its own number of tries, `base` and up.

    `deciding`: the job's failure rule names so many of those that have failed.
    """
    tries = {rank: base + rank % 2 for rank in range(COUNT)}
    succeeded, failed, held = ([*range(start, COUNT, 3)] for start in range(3))
    cause = Cause(
        CauseKind.EXIT,
        code=255,
        signal=127,
        reason="r" * 63,
        message=brief(letter * (LONGEST_MESSAGE + 1)),
        container=CONTAINERS[0],
        node="n" * 63,
    )
    entry = RoleLedger(
        TYPE,
        retries=format_counts(tries),
        restarts={CauseKind.EXIT.value: 70_000, CauseKind.DISRUPTED.value: sum(tries.values()) - 70_000},
        succeeded=format_indexes(succeeded),
        failed=format_indexes(failed),
        reached=COUNT,
        holds=tuple(Hold(later(100 + group), format_indexes(held[group::32])) for group in range(32)),
    )
    failures = (Failure(TYPE, rank, f"{JOB}-{TYPE}-{rank}", base, NOW, cause) for rank in failed[-KEPT_FAILURES:])
    ledger = Ledger(Phase.RUNNING, 1, (entry,), failures=tuple(failures))
    spec = replicas(TYPE, COUNT, restartPolicy={"policy": "OnFailure", "limit": 100_000})
    rules = {"successRules": [{TYPE: [2]}], "failureRules": [{TYPE: failed[-deciding:] if deciding else [2]}]}
    document = manifest(spec, name=JOB, **rules) | {"status": {"trainwright": msgspec.to_builtins(ledger)}}
    pods = [_pod(rank, tries[rank], "Succeeded") for rank in succeeded]
    pods += [_pod(rank, tries[rank], "Failed") for rank in failed]
    return document, Observed(pods=tuple(pods))


@pytest.mark.parametrize(
    ("letter", "base"),
    [
        pytest.param("x", 10, id="plain messages"),
        pytest.param("\N{CJK UNIFIED IDEOGRAPH-4E2D}", 10, id="messages in Chinese"),
        pytest.param("x", 100, id="hundreds of disruptions each"),
        pytest.param("\N{CJK UNIFIED IDEOGRAPH-4E2D}", 100, id="both"),
        pytest.param("\x1b", 100, id="messages of escape codes"),
    ],
)
def test_ten_thousand_replicas_in_the_worst_state_keep_a_small_status(letter: str, base: int) -> None:
    document, observed = huge(letter, base)
    loaded = load(GENERICJOB, document)
    assert loaded.errors == ()
    plan = reconcile(loaded.job, observed, Site(), NOW)
    status = GENERICJOB.render(loaded.status, loaded.job, plan.status, NOW)
    encoded = msgspec.json.encode(status)

    assert status["phase"] == "Running"
    assert status["aggregate"] == aggregate(succeeded=3334, failed=3333, creating=3333)
    assert restart_count(status, TYPE) == 70_000
    assert len(status["tasks"][0]["replicas"]) == MAX_LISTED_REPLICAS == 256
    assert {one["phase"] for one in status["tasks"][0]["replicas"]} == {"Failed"}
    assert sum(len(one["containers"]) for one in status["tasks"][0]["replicas"]) == MAX_LISTED_CONTAINERS == 256
    assert msgspec.json.decode(encoded, type=wire.GenericJobStatus).trainwright == plan.status.ledger
    assert load(GENERICJOB, document | {"status": status}).errors == ()
    assert len(encoded) < LARGEST_STATUS


@pytest.mark.parametrize(
    ("letter", "base"),
    [
        pytest.param("x", 10, id="plain messages"),
        pytest.param("\N{CJK UNIFIED IDEOGRAPH-4E2D}", 10, id="messages in Chinese"),
        pytest.param("x", 100, id="hundreds of disruptions each"),
        pytest.param("\N{CJK UNIFIED IDEOGRAPH-4E2D}", 100, id="both"),
    ],
)
def test_so_it_does_when_the_longest_rule_ends_the_job(letter: str, base: int) -> None:
    document, observed = huge(letter, base, 1024)
    loaded = load(GENERICJOB, document)
    plan = reconcile(loaded.job, observed, Site(), NOW)
    status = GENERICJOB.render(loaded.status, loaded.job, plan.status, NOW)

    assert status["phase"] == "Failed"
    assert status["aggregate"] == aggregate(succeeded=3334, failed=3333, deleted=3333)
    assert load(GENERICJOB, document | {"status": status}).errors == ()
    assert len(msgspec.json.encode(status)) < LARGEST_STATUS


def test_a_huge_status_is_rendered_the_same_twice() -> None:
    document, observed = huge()
    encoded = []
    for _ in range(2):
        loaded = load(GENERICJOB, document)
        plan = reconcile(loaded.job, observed, Site(), NOW)
        encoded.append(msgspec.json.encode(GENERICJOB.render(loaded.status, loaded.job, plan.status, NOW)))

    assert encoded[0] == encoded[1]


def test_long_messages_of_evictions_are_cut() -> None:
    job = Driver(manifest(replicas(count=8, restartPolicy={"limit": 99}))).running()
    for rank in range(8):
        job.change(f"demo-worker-{rank}", phase="Failed", reason="Evicted", message="x" * 32_768)
    status = job.go()

    assert job.load().errors == ()
    assert len(msgspec.json.encode(status)) < LARGEST_STATUS


def test_a_long_rule_can_be_read_back() -> None:
    """The longest text of a condition is 4096; a rule may name 8 types with 1024 ranks each."""
    rule = {kind: list(range(600)) for kind in ("master", "worker")}
    job = Driver(manifest(replicas("master", 600), replicas("worker", 600), failureRules=[rule])).running()
    job.end(*(f"{kind}-{rank}" for kind in rule for rank in range(600)), code=1)

    assert job.load().errors == ()
    assert job.status["phase"] == "Failed"
