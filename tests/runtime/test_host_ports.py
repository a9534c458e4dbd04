# SPDX-License-Identifier: Apache-2.0
"""Which ports are whose: from stored statuses of any shape, and from what was decided a moment ago."""

from typing import Any

from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.model.ledger import Ledger, Outcome, Reason
from trainwright.model.rule import Result
from trainwright.runtime.cache import Cache
from trainwright.runtime.job_state import HostPortIndex
from trainwright.runtime.ports import ListPage, jobs_of
from trainwright.testing.factories import NOW


def port_index(*statuses: Any) -> HostPortIndex:
    cache = Cache(jobs_of(PADDLEJOB))
    bodies = [
        {
            "metadata": {"name": f"job-{place}", "namespace": "a", "uid": f"uid-{place}", "resourceVersion": "1"},
            "status": said,
        }
        for place, said in enumerate(statuses)
    ]
    cache.replace(ListPage(tuple(bodies), "1"))
    return HostPortIndex({"paddlejob": cache})


def test_others_are_those_that_are_stored_of_jobs_that_live() -> None:
    over = {"result": "Succeeded"}
    known = port_index(
        {"trainwright": {"ports": {"x": 35000, "y": 35020}}},
        {"trainwright": {"ports": {"x": 36000}}},
        {"trainwright": {"ports": {"x": 37000}, "outcome": over}},
        None,
        "nonsense",
        {"trainwright": []},
        {"trainwright": {"ports": ["x"]}},
        {"trainwright": {"ports": {"x": "y"}}},
    )

    assert known.others("uid-0") == {36000}
    assert known.others("somebody") == {35000, 35020, 36000}


def test_what_was_just_decided_counts_until_the_job_has_ended_or_gone() -> None:
    known = port_index()
    known.note("a", Ledger(ports={"x": 35000}))
    known.note("b", Ledger(ports={"x": 35020}))
    known.note("c", Ledger())

    assert known.others("a") == {35020}
    assert known.others("c") == {35000, 35020}
    known.forget("b")
    outcome = Outcome(Result.SUCCEEDED, Reason.RULE, NOW)
    known.note("a", Ledger(ports={"x": 35000}, outcome=outcome))
    assert known.others("c") == frozenset()
