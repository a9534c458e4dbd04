# SPDX-License-Identifier: Apache-2.0
"""Annotations of Trainwright that jobs of every kind may have: restart budgets that refill.

`trainwright.dev/restart-budget: 5/1h` allows five restarts after failures of the program, and productive time refills
them: five per hour. `trainwright.dev/outside-restart-budget` is the same for causes outside the program: a lost node,
a preemption, an eviction. Without these annotations only the limits of the kind hold. A restart that a limit of the
kind counts uses no budget of an annotation.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from trainwright.kinds.scalars import under
from trainwright.model.job import BUDGETS, PROGRAM_BUDGET, Job, RestartRate
from trainwright.model.meta import PREFIX, ObjectMeta
from trainwright.model.problem import Problem, nearest, shown
from trainwright.model.units import parse_duration

#: The highest number of restarts in a budget.
_MOST_RESTARTS = 999_999
#: A time as people write it: `1h`, `h`, `2 hours`, `per day`.
_LOOSE_TIME = re.compile(r"(?<![a-z])([0-9]*) *([smhdw])[a-z]*", re.IGNORECASE)
_RATE = re.compile(r"\s*([0-9]{1,6})\s*/\s*(\S+)\s*")
_NO_RATES: Mapping[str, RestartRate] = MappingProxyType({})


def restart_rates(meta: ObjectMeta) -> Mapping[str, RestartRate]:
    """The refilling restart budgets of a job, by name; annotations that cannot be read are left out."""
    given = meta.annotations
    if not given:
        return _NO_RATES
    found = {name: _rate(given[key]) for name, key in BUDGETS.items() if key in given}
    return MappingProxyType({name: rate for name, rate in found.items() if rate is not None}) if found else _NO_RATES


def _rate(text: str) -> RestartRate | None:
    match = _RATE.fullmatch(text)
    seconds = parse_duration(match[2]) if match is not None else None
    return RestartRate(int(match[1]), seconds, text.strip()) if match is not None and seconds else None


def _meant(text: str) -> str:
    """The valid value that is probably meant; empty if the text has no number of restarts."""
    time = _LOOSE_TIME.search(text)
    number, unit = (int(time[1] or 1) or 1, time[2].lower()) if time is not None else (1, "h")
    rest = text.replace(time[0], "", 1) if time is not None else text
    restarts = re.search("[0-9]+", rest)
    if restarts is None:
        return ""
    shown_time = f"{number * 7}d" if unit == "w" else f"{number}{unit}"
    return f"{min(int(restarts[0]), _MOST_RESTARTS)}/{shown_time}"


def check(meta: ObjectMeta) -> Iterator[Problem]:
    """Problems of the annotations: values that cannot be read, and names that are probably misspelt."""
    for key, text in (meta.annotations or {}).items():
        path = under("metadata.annotations", key)
        if key in BUDGETS.values():
            if _rate(text) is None:
                wanted = f"expected at most {_MOST_RESTARTS} restarts per time, such as 5/1h"
                yield Problem(path, f"{wanted}, found {shown(text)}", _meant(text))
        elif key.startswith(f"{PREFIX}/") and "budget" in key.lower() and (meant := nearest(key, BUDGETS.values())):
            yield Problem(path, "is not an annotation of Trainwright", meant, warning=True)


def overridden(job: Job) -> Iterator[Problem]:
    """A warning if a limit of the kind leaves a budget without effect."""
    if PROGRAM_BUDGET in job.restart_rates and job.roles and job.limits_all_restarts:
        path = under("metadata.annotations", BUDGETS[PROGRAM_BUDGET])
        yield Problem(path, "has no effect: the job's own restart limit takes precedence", warning=True)
