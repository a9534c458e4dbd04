# SPDX-License-Identifier: Apache-2.0
"""The durable state: closed, small, and the same after a trip through JSON."""

from datetime import UTC, datetime

import msgspec
import pytest

from trainwright.model.cause import LONGEST_MESSAGE, Cause, CauseKind
from trainwright.model.ledger import KEPT_FAILURES, Failure, Hold, Ledger, Outcome, Phase, Reason, RoleLedger, Times
from trainwright.model.rule import Result
from trainwright.model.units import format_counts, format_indexes

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
FAILURE = Failure("worker", 1, "job-worker-1", 2, AT, Cause(CauseKind.EXIT, code=1, container="main"))
FULL = Ledger(
    phase=Phase.FAILED,
    generation=3,
    roles=(
        RoleLedger("worker", 1, "0:1,3:2", {"Exit": 3}, "0-1", "2", 4, (Hold(AT, "3"),), 5),
        RoleLedger("chief"),
    ),
    outcome=Outcome(Result.FAILED, Reason.RULE, AT, "worker 2", "because", "", FAILURE),
    times=Times(AT, AT, AT, AT),
    resumes=1,
    failures=(FAILURE,),
    ports={"job-worker-0": 30001},
)


def test_a_new_job_has_nothing_stored() -> None:
    assert msgspec.json.encode(Ledger()) == b"{}"
    assert Ledger() == msgspec.json.decode(b"{}", type=Ledger)


def test_a_full_ledger_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FULL), type=Ledger) == FULL


def test_a_full_ledger_is_stored_under_its_published_names() -> None:
    failure = {
        "role": "worker",
        "index": 1,
        "pod": "job-worker-1",
        "attempt": 2,
        "at": "2026-11-15T12:00:00Z",
        "cause": {"why": "Exit", "code": 1, "container": "main"},
    }

    assert msgspec.json.decode(msgspec.json.encode(FULL)) == {
        "phase": "Failed",
        "generation": 3,
        "roles": [
            {
                "name": "worker",
                "epoch": 1,
                "retries": "0:1,3:2",
                "restarts": {"Exit": 3},
                "succeeded": "0-1",
                "failed": "2",
                "reached": 4,
                "holds": [{"until": "2026-11-15T12:00:00Z", "indexes": "3"}],
                "size": 5,
            },
            {"name": "chief"},
        ],
        "outcome": {
            "result": "Failed",
            "reason": "Rule",
            "at": "2026-11-15T12:00:00Z",
            "rule": "worker 2",
            "message": "because",
            "failure": failure,
        },
        "times": dict.fromkeys(("accepted", "started", "running", "ended"), "2026-11-15T12:00:00Z"),
        "resumes": 1,
        "failures": [failure],
        "ports": {"job-worker-0": 30001},
    }


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"phase": "Dancing"}', id="a phase that is none"),
        pytest.param('{"roles": [{"name": "a", "retries": "0; rm -rf /"}]}', id="index text that is none"),
        pytest.param(
            msgspec.json.encode({"roles": [{"name": "a", "succeeded": "1" * 131073}]}), id="index text without end"
        ),
        pytest.param(msgspec.json.encode({"roles": [{"name": "a"}] * 65}), id="more roles than there are"),
        pytest.param('{"outcome": {"result": "Failed"}}', id="an outcome without a reason"),
        pytest.param('{"times": {"started": "yesterday"}}', id="a time that is none"),
    ],
)
def test_a_status_that_is_not_ours_is_refused_by_its_types(text: str | bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Ledger)


def test_the_worst_ledger_of_ten_thousand_replicas_stays_under_256_kib() -> None:
    everyone = range(10_000)
    failure = Failure(
        "worker",
        9999,
        "j" * 63,
        999,
        AT,
        Cause(CauseKind.EXIT, code=255, message="x" * LONGEST_MESSAGE, container="c" * 63),
    )
    entry = RoleLedger(
        "worker",
        epoch=999,
        retries=format_counts({index: 10 + index % 2 for index in everyone}),
        restarts={why.value: 10**6 for why in CauseKind},
        succeeded=format_indexes(index for index in everyone if index % 3 == 0),
        failed=format_indexes(index for index in everyone if index % 3 == 1),
        reached=10_000,
        holds=tuple(
            Hold(AT, format_indexes(i for i in everyone if i % 3 == 2 and i % 32 == group)) for group in range(32)
        ),
    )
    ledger = msgspec.structs.replace(FULL, roles=(entry,), failures=(failure,) * KEPT_FAILURES)

    stored = msgspec.json.encode(ledger)

    assert len(stored) < 256 * 1024
    assert ledger == msgspec.json.decode(stored, type=Ledger)
