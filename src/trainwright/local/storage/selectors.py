# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors in the notation of Kubernetes. Each selector is compiled once.

`compiled(scope)` returns a test for one object, or None if every object is in the scope.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from trainwright.errors import InvalidError
from trainwright.model.job import Body
from trainwright.runtime.ports import Selection

Test = Callable[[Body], bool]
_LabelTest = Callable[[dict[str, str]], bool]
_NAME = r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"[-A-Za-z0-9_.]{0,63}"
_LABEL = re.compile(
    rf"\s*(?:(?P<not>!)\s*(?P<absent>{_NAME})"
    rf"|(?P<set>{_NAME})\s+(?P<word>in|notin)\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\)"
    rf"|(?P<one>{_NAME})\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<number>{_NAME})\s*(?P<order>[<>])\s*(?P<limit>-?[0-9]{{1,18}})"
    rf"|(?P<present>{_NAME}))\s*(?:,(?!\s*$)|$)"
)
_FIELD = re.compile(
    r"\s*(?P<path>[A-Za-z][A-Za-z0-9]*(?:\.[A-Za-z][A-Za-z0-9]*)*)\s*(?P<sign>==|=|!=)\s*(?P<value>[^,=]*)"
)
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_EXPECTED = (
    "expected terms like `a=b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`, `a>1`, `a<1`, `a` or `!a`, separated by commas"
)
_EXPECTED_FIELDS = "expected terms like `spec.nodeName=b` or `status.phase!=b`, separated by commas"


@lru_cache(maxsize=256)
def compiled(scope: Selection) -> Test | None:
    """The test for objects of the scope; None if every object matches. Raises InvalidError for a wrong selector."""
    tests: list[Test] = []
    if scope.namespace:
        tests.append(lambda body: bool(body["metadata"].get("namespace") == scope.namespace))
    if scope.labels.strip():
        labels_match = labels(scope.labels)
        tests.append(lambda body: labels_match(body["metadata"].get("labels") or {}))
    tests.extend(fields(scope.fields))
    if len(tests) > 1:
        return lambda body: all(test(body) for test in tests)
    return tests[0] if tests else None


def labels(text: str) -> _LabelTest:
    """The test for a set of labels: every term of the selector must be true."""
    terms, position = [], 0
    while position < len(text.rstrip()):
        found = _LABEL.match(text, position)
        if found is None:
            raise InvalidError(f"label selector {text!r}: cannot read {text[position:].strip()!r}; {_EXPECTED}")
        terms.append(_term(found))
        position = found.end()
    return terms[0] if len(terms) == 1 else lambda have: all(term(have) for term in terms)


def _term(found: re.Match[str]) -> _LabelTest:
    if found["not"]:
        absent = found["absent"]
        return lambda have: absent not in have
    if found["present"]:
        present = found["present"]
        return lambda have: present in have
    if found["order"]:
        return _beyond(found["number"], int(found["limit"]), above=found["order"] == ">")
    if found["word"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return _one_of(found["set"], values, wanted=found["word"] == "in")
    return _one_of(found["one"], frozenset({found["value"]}), wanted=found["sign"] != "!=")


def _one_of(name: str, values: frozenset[str], *, wanted: bool) -> _LabelTest:
    """The test for one label. As in Kubernetes, an object without the label matches `!=` and `notin`."""
    if wanted:
        return lambda have: have.get(name) in values
    return lambda have: have.get(name) not in values


def _beyond(name: str, limit: int, *, above: bool) -> _LabelTest:
    """The test for a label whose value is a number above or below a limit."""

    def test(have: dict[str, str]) -> bool:
        value = have.get(name, "")
        if not _INTEGER.fullmatch(value):
            return False
        return int(value) > limit if above else int(value) < limit

    return test


def fields(text: str) -> list[Test]:
    """One test for each term of a field selector."""
    return [_field(term, text) for term in text.split(",") if term.strip() or "," in text]


def _field(term: str, text: str) -> Test:
    found = _FIELD.fullmatch(term)
    if found is None:
        raise InvalidError(f"field selector {text!r}: cannot read {term.strip()!r}; {_EXPECTED_FIELDS}")
    path, value, wanted = tuple(found["path"].split(".")), found["value"].strip(), found["sign"] != "!="
    return lambda body: (_value_at(body, path) == value) is wanted


def _value_at(body: Body, path: tuple[str, ...]) -> str:
    """The value at the path as text; a missing value is the empty string, as in Kubernetes."""
    part: Any = body
    for name in path:
        part = part.get(name) if isinstance(part, dict) else None
    if isinstance(part, bool):
        return "true" if part else "false"
    return "" if part is None else str(part)
