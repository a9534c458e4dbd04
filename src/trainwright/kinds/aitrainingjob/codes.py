# SPDX-License-Identifier: Apache-2.0
"""`restartingExitCode`: a text such as `137,128`, a number, or a list of either. For policies and checks.

The original knew the text alone and took blanks for part of a code; a single code without quotes broke its client.
"""

from typing import Any

from trainwright.kinds.paths import item
from trainwright.model.problem import Problem, shown

PATH = "spec.restartingExitCode"
_WANTED = "expected exit codes from 0 to 255, such as 137, [137, 128] or '137,128'"


def codes(value: Any) -> tuple[int, ...]:
    """The codes that it lists, each once; what is none is left to `problems`."""
    return tuple(dict.fromkeys(code for _, one in _entries(value) if (code := _code(one)) is not None))


def problems(value: Any) -> tuple[Problem, ...]:
    """What is no exit code."""
    wrong = [(path, one) for path, one in _entries(value) if _code(one) is None]
    return tuple(Problem(path, f"{_WANTED}, found {shown(one)}") for path, one in wrong)


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Each single code with its path; blanks and empty parts of a text mean nothing."""
    match value:
        case None:
            return []
        case list() | tuple():
            return [pair for place, one in enumerate(value) for pair in _single(one, item(PATH, place))]
        case _:
            return _single(value, PATH)


def _single(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, str):
        return [(path, word.strip()) for word in value.split(",") if word.strip()]
    return [(path, value)]


def _code(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 5:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255 else None
