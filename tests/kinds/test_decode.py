# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - tables, one case a line
"""All mistakes of a manifest's shape at once, in words; and the value, if there are none."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Struct, UnsetType, field

from trainwright.kinds.decode import MAX_PROBLEMS, read
from trainwright.kinds.scalars import item, parts, under
from trainwright.model.meta import ObjectMeta
from trainwright.model.problem import Problem

#: The machine may be busy with other tests.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def decode(wire: type[Struct], document: dict[str, Any]) -> tuple[Any, tuple[Problem, ...]]:
    reading = read(wire, document)
    return reading.value, reading.found.listed()


class Part(Struct, frozen=True, rename="camel"):
    type: Annotated[
        str, Meta(min_length=1, max_length=8, pattern="^[a-z]([a-z-]*[a-z])?$", description="Lower-case letters.")
    ]
    replicas: Annotated[int, Meta(ge=0, le=100)] = 1


class Spec(Struct, frozen=True, rename="camel"):
    parts_list: Annotated[tuple[Part, ...], Meta(min_length=1, max_length=3)]
    clean_up_policy: Literal["None", "Unfinished", "All"] = "None"
    enabled: bool = False
    above: Annotated[int, Meta(ge=5)] = 5
    at: datetime | None = None
    rank: int | Annotated[str, Meta(max_length=3)] | UnsetType = UNSET
    words: list[str] = field(default_factory=list)
    rules: Annotated[dict[str, Annotated[tuple[int, ...], Meta(min_length=1)]], Meta(max_length=2)] = field(
        default_factory=dict
    )
    two: Annotated[dict[str, int], Meta(min_length=2)] | None = None
    limit: Annotated[int, Meta(le=10)] | UnsetType = UNSET
    inner: Part | None = None
    by_name: dict[str, Part] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    code: Annotated[str, Meta(min_length=3)] = "abc"
    anything: Any = 0


class Thing(Struct, frozen=True, rename="camel"):
    metadata: ObjectMeta
    spec: Spec


def thing(**spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": {"partsList": [{"type": "a"}], **spec}}


def said(document: dict[str, Any]) -> list[str]:
    """Every problem as one line, warnings marked."""
    value, problems = decode(Thing, document)
    assert (value is None) == any(not problem.warning for problem in problems)
    return [("warning: " if problem.warning else "") + str(problem) for problem in problems]


def test_a_right_document_becomes_a_value() -> None:
    document = thing(
        at="2026-01-31T12:00:00Z",
        rank="12",
        rules={"a": [1]},
        template={"b": None},
        anything=[None],
    )
    value, problems = decode(Thing, document)

    assert problems == ()
    assert value is not None
    assert value.spec == Spec(
        parts_list=(Part("a"),),
        at=datetime(2026, 1, 31, 12, tzinfo=UTC),
        rank="12",
        rules={"a": (1,)},
        template={"b": None},
        anything=[None],
    )


def test_null_counts_as_absent() -> None:
    document = thing(cleanUpPolicy=None, rank=None, rules={"a": None, "b": [1]}, enabled=None)
    document["metadata"]["creationTimestamp"] = None
    value, problems = decode(Thing, document)

    assert problems == ()
    assert value is not None
    assert (value.spec.clean_up_policy, value.spec.rank, value.spec.rules) == ("None", UNSET, {"b": (1,)})


def test_null_in_the_place_of_a_whole_object_is_a_mistake() -> None:
    assert said(thing(byName={"a": None, "b": {"type": "b"}})) == [
        "spec.byName.a: expected a mapping, found nothing (null)"
    ]


def test_the_document_is_left_as_it_was() -> None:
    document = thing(cleanUpPolicy=None)
    decode(Thing, document)

    assert document == thing(cleanUpPolicy=None)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cleanUpPolicy": "none"}, "spec.cleanUpPolicy: expected one of All, None, Unfinished, found the text 'none'; did you mean `None`?"),
    ({"cleanUpPolicy": 3}, "spec.cleanUpPolicy: expected one of All, None, Unfinished, found the number 3"),
    ({"cleanUpPolicy": False}, "spec.cleanUpPolicy: expected one of All, None, Unfinished, found false"),
    ({"enabled": 1}, "spec.enabled: expected true or false, found the number 1"),
    ({"enabled": "true"}, "spec.enabled: expected true or false, found the text 'true'; write it without quotes"),
    ({"above": 4}, "spec.above: expected a whole number of at least 5, found the number 4"),
    ({"above": True}, "spec.above: expected a whole number of at least 5, found true"),
    ({"above": 5.5}, "spec.above: expected a whole number of at least 5, found the number 5.5"),
    ({"limit": 11}, "spec.limit: expected a whole number of at most 10, found the number 11"),
    ({"limit": "many"}, "spec.limit: expected a whole number of at most 10, found the text 'many'"),
    ({"above": 10**60}, "spec.above: expected a whole number that fits in 64 bits, found the number a very large number"),
    ({"rank": 2**63}, "spec.rank: expected a whole number that fits in 64 bits, found the number 9223372036854775808"),
    ({"at": "yesterday"}, "spec.at: expected a time such as 2026-01-31T12:00:00Z, found the text 'yesterday'"),
    ({"at": 5}, "spec.at: expected a time such as 2026-01-31T12:00:00Z, found the number 5"),
    ({"rank": [1]}, "spec.rank: expected a whole number or text, found a list of 1"),
    ({"rank": True}, "spec.rank: expected a whole number or text, found true"),
    ({"rank": "1234"}, "spec.rank: expected at most 3 characters, found 4"),
    ({"code": "ab"}, "spec.code: expected at least 3 characters, found 2"),
    ({"words": "a b"}, "spec.words: expected a list, found the text 'a b'; a list is written [a, b] or with one `- ` per entry"),
    ({"words": {"a": 1}}, "spec.words: expected a list, found a mapping with 1 key; a list is written [a, b] or with one `- ` per entry"),
    ({"words": [None]}, "spec.words[0]: expected text, found nothing (null)"),
    ({"words": [1.5]}, "spec.words[0]: expected text, found the number 1.5; put it in quotes"),
    ({"rules": {"a": []}}, "spec.rules.a: may not be empty"),
    ({"rules": {"a/b": ["x"]}}, 'spec.rules["a/b"][0]: expected a whole number, found the text \'x\''),
    ({"rules": {"a": [1], "b": [1], "c": [1]}}, "spec.rules: expected at most 2 entries, found 3"),
    ({"two": {"a": 1}}, "spec.two: expected at least 2 entries, found 1"),
    ({"inner": "x"}, "spec.inner: expected a mapping, found the text 'x'"),
    ({"inner": {}}, "spec.inner.type: missing; expected text"),
    ({"template": []}, "spec.template: expected a mapping, found a list of 0"),
    ({"partsList": []}, "spec.partsList: may not be empty"),
    ({"partsList": None}, "spec.partsList: missing; expected a list"),
    ({"partsList": [{"type": "a"}] * 4}, "spec.partsList: expected at most 3 entries, found 4"),
    ({"partsList": [5] * 4}, "spec.partsList: expected at most 3 entries, found 4"),
    ({"partsList": [{"type": ""}]}, "spec.partsList[0].type: may not be empty"),
    ({"partsList": [{"type": "B_"}]}, "spec.partsList[0].type: the text 'B_' is not allowed here; expected: Lower-case letters"),
    ({"partsList": [{"type": "a\n"}]}, "spec.partsList[0].type: the text 'a\\n' is not allowed here"),
    ({"partsList": [{"type": "a", "replicas": "4"}]}, "spec.partsList[0].replicas: expected a whole number from 0 to 100, found the text '4'; write it without quotes"),
    ({"partsList": [{"type": "a", "replicas": -1}]}, "spec.partsList[0].replicas: expected a whole number from 0 to 100, found the number -1"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "expected"), WRONG, ids=[f"{next(iter(spec))}-{text[:70]}" for spec, text in WRONG])
def test_mistakes_in_words(spec: dict[str, Any], expected: str) -> None:
    (message,) = said(thing(**spec))

    assert message.startswith(expected)


class Even(Struct, frozen=True):
    number: Annotated[int, Meta(multiple_of=2, description="Of pairs.")] = 0


def test_what_only_msgspec_checks_is_a_problem_too() -> None:
    value, problems = decode(Even, {"number": 3})

    assert value is None
    assert [str(problem) for problem in problems] == [
        "(document): Expected `int` that's a multiple of 2 - at `$.number`"
    ]


def test_all_mistakes_at_once_in_document_order() -> None:
    document = {
        "spec": {"partsList": [{"replicas": 101}, 5], "cleanUpPolcy": "All", "enabled": 0},
        "metdata": {},
    }

    assert said(document) == [
        "spec.partsList[0].replicas: expected a whole number from 0 to 100, found the number 101",
        "spec.partsList[0].type: missing; expected text",
        "spec.partsList[1]: expected a mapping, found the number 5",
        "warning: spec.cleanUpPolcy: unknown field; did you mean `cleanUpPolicy`?",
        "spec.enabled: expected true or false, found the number 0",
        "metdata: unknown field, and the required metadata is missing; did you mean `metadata`?",
    ]


def test_unknown_fields_only_warn() -> None:
    assert said(thing(enable=True, **{"odd/one": 1})) == [
        "warning: spec.enable: unknown field; did you mean `enabled`?",
        'warning: spec["odd/one"]: unknown field',
    ]


def test_metadata_of_an_api_server_does_not_warn() -> None:
    document = thing()
    document["metadata"] |= {
        "managedFields": [{}],
        "selfLink": "/x",
        "generateName": "x-",
        "creationTimestamp": "2026-01-31T12:00:00Z",
        "uid": "1",
        "resourceVersion": "5",
        "annotations": {"a/b": "c"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "y", "uid": "2"}],
    }

    assert said(document) == []
    assert said(thing(managedFields=[])) == ["warning: spec.managedFields: unknown field"]


def test_the_list_of_problems_ends_somewhere() -> None:
    document = thing(words=[1] * 1000, **{f"odd{number}": 1 for number in range(1000)})
    problems = decode(Thing, document)[1]

    assert len(problems) == 2 * MAX_PROBLEMS + 1
    assert str(problems[-1]) == "(document): 1800 more problems are not listed"


def test_warnings_never_hide_an_error() -> None:
    value, problems = decode(Thing, thing(**{f"odd{number}": 1 for number in range(1000)}, enabled=5))

    assert value is None
    assert any(not problem.warning for problem in problems)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.builds(lambda: 10**5000)
NAMES = st.sampled_from([one.encode_name for kind in (Thing, Spec, Part) for one in msgspec.structs.fields(kind)])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)


@CALM
@given(st.dictionaries(NAMES, TREES))
def test_no_tree_raises(document: dict[str, Any]) -> None:
    said(document)
    said(thing(**document))


def test_a_deep_tree_is_no_trouble() -> None:
    deep: dict[str, Any] = {}
    for _ in range(64):
        deep = {"a": [deep]}

    assert said(thing(template=deep)) == []
    assert said(thing(inner=deep)) == [
        "warning: spec.inner.a: unknown field",
        "spec.inner.type: missing; expected text",
    ]


@CALM
@given(st.lists(st.text(max_size=80) | st.integers(0, 10**8)))
def test_paths_are_read_as_they_are_written(keys: list[str | int]) -> None:
    path = ""
    for key in keys:
        path = item(path, key) if isinstance(key, int) else under(path, key)

    assert tuple(keys) == parts(path)
    assert "\n" not in path


def test_a_long_key_is_cut() -> None:
    assert under("a", "k" * 1000) == 'a["' + "k" * 77 + '..."]'
