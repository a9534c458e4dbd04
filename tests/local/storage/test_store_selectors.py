# SPDX-License-Identifier: Apache-2.0
"""Selectors: every notation, compared with a simple implementation; and the errors of invalid selectors."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InvalidError
from trainwright.local.storage.selectors import compiled
from trainwright.runtime.ports import Selection

NAMES = st.sampled_from(["a", "example.com/b", "c_d.e"])
VALUES = st.sampled_from(["", "x", "y-1", "in", "notin"])
LABELS = st.dictionaries(NAMES, VALUES)
BLANKS = st.sampled_from(["", " "])
Term = tuple[str, str, tuple[str, ...]]


def holds(term: Term, labels: dict[str, str]) -> bool:
    name, word, values = term
    match word:
        case "exists":
            return name in labels
        case "!":
            return name not in labels
        case "=" | "==" | "in":
            return name in labels and labels[name] in values
        case _:
            return name not in labels or labels[name] not in values


def written(term: Term, blank: str) -> str:
    name, word, values = term
    match word:
        case "exists":
            return f"{blank}{name}{blank}"
        case "!":
            return f"{blank}!{blank}{name}"
        case "in" | "notin":
            return f"{name} {word}{blank}({blank}{(',' + blank).join(values)}{blank})"
        case _:
            return f"{name}{blank}{word}{blank}{values[0]}{blank}"


TERMS = st.tuples(
    NAMES,
    st.sampled_from(["exists", "!", "=", "==", "!=", "in", "notin"]),
    st.lists(VALUES, min_size=1, max_size=3).map(tuple),
).map(lambda term: (*term[:2], term[2][:1]) if term[1] in ("=", "==", "!=") else term)


@given(st.lists(TERMS, min_size=1, max_size=3), BLANKS, LABELS)
def test_labels_are_selected_as_they_are_read(terms: list[Term], blank: str, labels: dict[str, str]) -> None:
    test = compiled(Selection(labels=",".join(written(term, blank) for term in terms)))
    assert test is not None
    assert test({"metadata": {"labels": labels}}) == all(holds(term, labels) for term in terms)


@pytest.mark.parametrize("metadata", [{}, {"labels": None}, {"labels": {}}], ids=repr)
def test_no_labels_are_none(metadata: dict[str, Any]) -> None:
    match, differ = compiled(Selection(labels="a=b")), compiled(Selection(labels="a!=b"))
    assert match is not None
    assert differ is not None
    assert not match({"metadata": metadata})
    assert differ({"metadata": metadata})


@pytest.mark.parametrize("scope", [Selection(), Selection(labels=" "), Selection(fields="")], ids=repr)
def test_a_scope_without_terms_lets_everything_through(scope: Selection) -> None:
    assert compiled(scope) is None


BODY: dict[str, dict[str, Any]] = {
    "metadata": {"name": "n", "namespace": "s"},
    "involvedObject": {"uid": "u", "kind": "Pod"},
    "spec": {"unschedulable": True, "replicas": 3, "text": "a b", "list": [1]},
}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=n", True),
        ("metadata.name==m", False),
        ("metadata.name!=m", True),
        ("involvedObject.uid=u,involvedObject.kind=Pod", True),
        ("involvedObject.uid=u,involvedObject.kind=Job", False),
        ("spec.unschedulable=true", True),
        ("spec.unschedulable=false", False),
        ("spec.replicas=3", True),
        ("spec.text=a b", True),
        ("spec.missing=", True),
        ("spec.missing.deeper!=", False),
        ("spec.list.deeper=", True),
        (" metadata.name = n ", True),
    ],
)
def test_fields_are_selected_by_any_path(selector: str, *, expected: bool) -> None:
    test = compiled(Selection(fields=selector))
    assert test is not None
    assert test(BODY) is expected


def test_all_parts_of_a_scope_must_hold() -> None:
    labelled = {**BODY, "metadata": {**BODY["metadata"], "labels": {"a": "b"}}}
    scopes = [("s", "a=b", "metadata.name=n"), ("t", "a=b", ""), ("s", "a=c", ""), ("s", "", "metadata.name=m")]
    tests = [compiled(Selection(*scope)) for scope in scopes]
    assert [test(labelled) for test in tests if test is not None] == [True, False, False, False]


@pytest.mark.parametrize(
    ("scope", "found"),
    [
        (Selection(labels="a=b=c"), "a=b=c"),
        (Selection(labels="ok,a in b"), "a in b"),
        (Selection(labels="a in (b"), "a in (b"),
        (Selection(labels="a notin ()x"), "a notin ()x"),
        (Selection(labels="=b"), "=b"),
        (Selection(labels="a,"), "a,"),
        (Selection(labels="a,,b"), ",b"),
        (Selection(labels="a b"), "a b"),
        (Selection(labels="a=b c"), "a=b c"),
        (Selection(labels="-a"), "-a"),
        (Selection(labels="a/b/c=d"), "a/b/c=d"),
        (Selection(fields="metadata.name"), "metadata.name"),
        (Selection(fields="metadata.name=a,"), "''"),
        (Selection(fields="metadata.name=a=b"), "metadata.name=a=b"),
        (Selection(fields="metadata..name=a"), "metadata..name=a"),
        (Selection(fields=","), "''"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_selector_that_cannot_be_read_says_where_and_what_would_be(scope: Selection, found: str) -> None:
    with pytest.raises(InvalidError, match="expected terms like") as error:
        compiled(scope)
    assert f"cannot read {found!r}" in str(error.value) or f"cannot read {found};" in str(error.value)
