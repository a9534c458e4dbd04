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
from trainwright.model.units import parse_duration, spell_exactly

#: The highest number of restarts in a budget.
_MOST_RESTARTS = 999_999
#: A time as people write it: `1h`, `h`, `2 hours`, `per day`.
_LOOSE_TIME = re.compile(r"(?<![a-z])([0-9]*) *([smhdw])[a-z]*", re.IGNORECASE)
#: The longest value, in characters without spaces. Messages in the status contain the value.
_LONGEST_RATE = 32
#: The shortest and the longest time window of a budget, in seconds.
_SHORTEST_WINDOW, _LONGEST_WINDOW = 1.0, 3650 * 86400.0
#: The first characters of a wrong value in which a number of restarts and a time are searched.
_SEARCHED_CHARACTERS = 256
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
    found, short = _split(text), "".join(text.split())
    if found is None or len(short) > _LONGEST_RATE or not _SHORTEST_WINDOW <= found[1] <= _LONGEST_WINDOW:
        return None
    return RestartRate(*found, short)


def _split(text: str) -> tuple[int, float] | None:
    """The number of restarts and the seconds of the window, which may be too short or too long."""
    match = _RATE.fullmatch(text)
    seconds = parse_duration(match[2]) if match is not None else None
    return (int(match[1]), seconds) if match is not None and seconds is not None else None


def _meant(text: str) -> str:
    """The valid value that is probably meant; empty if the text has no number of restarts."""
    found = _split(text)
    if found is not None and not _SHORTEST_WINDOW <= found[1] <= _LONGEST_WINDOW:
        return _written(found[0], min(max(found[1], _SHORTEST_WINDOW), _LONGEST_WINDOW))
    text = text[:_SEARCHED_CHARACTERS]
    time = _LOOSE_TIME.search(text)
    number, unit = (int(time[1] or 1) or 1, time[2].lower()) if time is not None else (1, "h")
    rest = text.replace(time[0], "", 1) if time is not None else text
    restarts = re.search("[0-9]+", rest)
    if restarts is None:
        return ""
    count = min(int(restarts[0]), _MOST_RESTARTS)
    near = f"{count}/{number * 7}d" if unit == "w" else f"{count}/{number}{unit}"
    return near if _rate(near) is not None else _written(count, _LONGEST_WINDOW)


def _written(restarts: int, seconds: float) -> str:
    return f"{restarts}/{spell_exactly(seconds)}"


def check(meta: ObjectMeta) -> Iterator[Problem]:
    """Problems of the annotations: values that cannot be read, and names that are probably misspelt."""
    for key, text in (meta.annotations or {}).items():
        path = under("metadata.annotations", key)
        if key in BUDGETS.values():
            if _rate(text) is None:
                window = f"a time from {spell_exactly(_SHORTEST_WINDOW)} to {spell_exactly(_LONGEST_WINDOW)}"
                wanted = f"expected at most {_MOST_RESTARTS} restarts in {window}, such as 5/1h"
                yield Problem(path, f"{wanted}, found {shown(text)}", _meant(text))
        elif key.startswith(f"{PREFIX}/") and "budget" in key.lower() and (meant := nearest(key, BUDGETS.values())):
            yield Problem(path, "is not an annotation of Trainwright", meant, warning=True)


def overridden(job: Job) -> Iterator[Problem]:
    """A warning if a limit of the kind leaves a budget without effect."""
    if PROGRAM_BUDGET in job.restart_rates and job.roles and job.limits_all_restarts:
        path = under("metadata.annotations", BUDGETS[PROGRAM_BUDGET])
        yield Problem(path, "has no effect: the job's own restart limit takes precedence", warning=True)
