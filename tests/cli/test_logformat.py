# SPDX-License-Identifier: Apache-2.0
"""The operator's log: what a line looks like, and that a server which is away does not fill the disk."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from trainwright.cli.logformat import JsonFormatter, LogfmtFormatter, RateLimitFilter
from trainwright.errors import UnavailableError
from trainwright.model.meta import Key
from trainwright.runtime.telemetry import LogMessage


def record(message: object, level: int = logging.INFO, at: float = 1.25, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("trainwright.x", level, "", 0, message, None, more.get("exc_info"))
    made.created, made.msecs = at, at % 1 * 1000
    return made


LINE = LogMessage("phase", job="default/train", kind="genericjob", why='it said "no"\nand went', times=2)


def test_a_line_of_text_is_one_line() -> None:
    assert LogfmtFormatter().format(record(LINE)) == (
        "time=1970-01-01T00:00:01.250Z level=info msg=phase job=default/train kind=genericjob"
        ' why="it said \\"no\\"\\nand went" times=2'
    )


def test_a_line_of_json_is_one_object() -> None:
    line = JsonFormatter().format(record(LINE))

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "info",
        "msg": "phase",
        "job": "default/train",
        "kind": "genericjob",
        "why": 'it said "no"\nand went',
        "times": 2,
        "logger": "trainwright.x",
    }


@pytest.mark.parametrize("value", [Key("a", "b"), UnavailableError("away")], ids=["a key", "an error"])
def test_whatever_a_line_is_about_is_text(value: object) -> None:
    assert json.loads(JsonFormatter().format(record(LogMessage("x", about=value))))["about"] == str(value)


@pytest.mark.parametrize("text", ["a\x1b[31mb", "", "a b", "a=b", 'a"b', "a\nb", "a\\b", "\u2028"])
def test_no_value_can_pass_for_another_or_begin_a_line(text: str) -> None:
    line = LogfmtFormatter().format(record(LogMessage("x", about=text)))

    assert json.loads(line.partition("about=")[2]) == text
    assert len(line.splitlines()) == 1


def test_what_others_log_is_shown_as_well() -> None:
    made = logging.LogRecord("aiohttp", logging.WARNING, "", 0, "lost %s", ("it",), None)

    assert 'level=warning msg="lost it"' in LogfmtFormatter().format(made)
    assert json.loads(JsonFormatter().format(made))["logger"] == "aiohttp"


def test_a_traceback_is_kept() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record(LogMessage("pass failed"), logging.ERROR, exc_info=sys.exc_info())

    assert LogfmtFormatter().format(made).splitlines()[-1] == "ValueError: broken"
    assert json.loads(JsonFormatter().format(made))["traceback"].endswith("ValueError: broken")


def test_of_a_warning_that_repeats_itself_a_few_are_let_through_and_the_rest_are_counted() -> None:
    calm = RateLimitFilter()
    made = [record(LogMessage("pass to be repeated", job=str(n)), logging.WARNING, 100 + n / 100) for n in range(1000)]
    passed = [one for one in made if calm.filter(one)]
    later = record(LogMessage("pass to be repeated", job="late"), logging.WARNING, 200.0)

    assert len(passed) == 10
    assert calm.filter(later)
    assert "held_back=990" in LogfmtFormatter().format(later)


def test_over_an_hour_of_trouble_there_are_a_few_lines_a_minute() -> None:
    calm = RateLimitFilter()
    passed = [at for at in range(36000) if calm.filter(record("away", logging.WARNING, 1000 + at / 10))]

    assert len(passed) == pytest.approx(370, abs=5)


def test_other_texts_and_the_life_of_jobs_are_never_held_back() -> None:
    calm = RateLimitFilter()
    assert all(calm.filter(record(LogMessage("phase", job=str(n)))) for n in range(100))
    assert all(calm.filter(record(LogMessage(f"trouble {n}"), logging.WARNING)) for n in range(100))


def test_a_run_on_this_machine_loads_none_of_it() -> None:
    program = "import sys, trainwright.cli.run; sys.exit('trainwright.cli.logformat' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
