# SPDX-License-Identifier: Apache-2.0
"""The annotations of restart budgets: which values are read, and what is said about others."""

import pytest

from trainwright.kinds.annotations import check, restart_rates
from trainwright.model.job import BUDGETS, OUTSIDE_BUDGET, PROGRAM_BUDGET, RestartRate
from trainwright.model.meta import ObjectMeta
from trainwright.model.problem import shown

PROGRAM = BUDGETS[PROGRAM_BUDGET]
PATH = f'metadata.annotations["{PROGRAM}"]'


def meta(**annotations: str) -> ObjectMeta:
    return ObjectMeta(name="job", annotations={f"trainwright.dev/{key}": text for key, text in annotations.items()})


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5/1h", RestartRate(5, 3600, "5/1h")),
        (" 5 / 1h30m ", RestartRate(5, 5400, "5/1h30m")),
        ("0/1d", RestartRate(0, 86400, "0/1d")),
        ("999999/60", RestartRate(999_999, 60, "999999/60")),
        ("5/1s", RestartRate(5, 1, "5/1s")),
        ("5/3650d", RestartRate(5, 3650 * 86400, "5/3650d")),
    ],
)
def test_a_number_of_restarts_per_time(text: str, rate: RestartRate) -> None:
    given = meta(**{"restart-budget": text, "outside-restart-budget": "1/1m"})

    assert dict(restart_rates(given)) == {PROGRAM_BUDGET: rate, OUTSIDE_BUDGET: RestartRate(1, 60, "1/1m")}
    assert list(check(given)) == []


WRONG = {
    "5": "5/1h",
    "5/h": "5/1h",
    "5/1 h": "5/1h",
    "5/1hour": "5/1h",
    "5 per hour": "5/1h",
    "5 restarts/2 days": "5/2d",
    "1h/5": "5/1h",
    "5/0s": "5/1s",
    "5/1w": "5/7d",
    "5/week": "5/7d",
    "1000000/1h": "999999/1h",
    "5/0.5ms": "5/1s",
    "5/0.0001": "5/1s",
    "5/1e306": "5/3650d",
    "5/3651d": "5/3650d",
    "5/9999 days": "5/3650d",
    f"5/{'9' * 400}d": "5/1h",
    f"{'9' * 5000}h": "999999/1h",
    f"5/{'0' * 29}1h": "5/1h",
    "five/1h": "",
    "/1h": "",
    "": "",
}


@pytest.mark.parametrize("text", WRONG)
def test_another_value_is_an_error_with_the_nearest_valid_one(text: str) -> None:
    given = meta(**{"restart-budget": text})
    (problem,) = check(given)

    assert (problem.path, problem.warning, problem.nearest) == (PATH, False, WRONG[text])
    wanted = "expected at most 999999 restarts in a time from 1s to 3650d, such as 5/1h"
    assert problem.message == f"{wanted}, found {shown(text)}"
    assert not restart_rates(given)
    if WRONG[text]:
        assert restart_rates(meta(**{"restart-budget": WRONG[text]}))


@pytest.mark.parametrize("key", ["restart-budgets", "outside-budget", "Restart-Budget"])
def test_a_name_that_is_probably_misspelt_is_a_warning(key: str) -> None:
    (problem,) = check(meta(**{key: "5/1h"}))

    assert problem.warning
    assert problem.nearest in BUDGETS.values()
