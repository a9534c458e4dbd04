# SPDX-License-Identifier: Apache-2.0
"""A job whose status alone has changed is read as if it were read anew."""

from pathlib import Path
from typing import Any

import pytest

from trainwright.kinds.base import load, reload
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.manifest import read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "genericjob").glob("*.yaml"))
LEDGER = {"phase": "Running", "generation": 3, "resumes": 1, "times": {"started": "2026-11-15T12:00:00Z"}}
STATUSES: dict[str, Any] = {
    "none": None,
    "running": {"phase": "Running", "trainwright": LEDGER},
    "ended by another controller": {"phase": "Failed"},
    "not ours to read": {"phase": 7, "trainwright": LEDGER},
}


def documents() -> list[dict[str, Any]]:
    found = [document.body for file in EXAMPLES for document in read(file.name, file.read_bytes())]
    return [body for body in found if body["kind"] == "GenericJob"]


@pytest.mark.parametrize("status", STATUSES.values(), ids=STATUSES)
def test_reading_another_status_is_reading_the_job_anew(status: Any) -> None:
    for body in documents():
        first = load(GENERICJOB, body)

        again, anew = reload(GENERICJOB, first, status), load(GENERICJOB, body | {"status": status})

        assert again is not None
        assert (again.wire, again.status, again.problems) == (anew.wire, anew.status, anew.problems)
        assert (again.job.ledger, again.job.roles, again.job.lifecycle) == (
            anew.job.ledger,
            anew.job.roles,
            anew.job.lifecycle,
        )


def test_what_is_wrong_is_left_to_a_whole_load() -> None:
    body = documents()[0]
    broken = load(GENERICJOB, body | {"spec": {"replicaSpecs": []}})

    assert reload(GENERICJOB, broken, None) is None
    assert reload(GENERICJOB, load(GENERICJOB, body), {"trainwright": {"phase": "Odd"}}) is None
