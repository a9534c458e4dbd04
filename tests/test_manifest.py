# SPDX-License-Identifier: Apache-2.0
"""Text in, documents or one clear refusal out; the expectations about values are kubectl's."""

import time
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright.errors import ManifestError
from trainwright.manifest import LARGEST, builder, read

#: The machine may be busy with other tests.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(params=["libyaml", "pure"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both of PyYAML's parsers must lead to the same result."""
    if request.param == "pure":
        monkeypatch.setattr(builder, "_LOADER", yaml.SafeLoader)
    return str(request.param)


def body(text: str) -> dict[str, Any]:
    (document,) = read("job.yaml", text.encode())
    return document.body


def refusal(text: str | bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        read("job.yaml", text if isinstance(text, bytes) else text.encode())
    return str(caught.value)


VALUES: dict[str, object] = {
    "yes": True,
    "y": True,
    "On": True,
    "TRUE": True,
    "no": False,
    "off": False,
    "N": False,
    "null": None,
    "~": None,
    "": None,
    "yep": "yep",
    "'yes'": "yes",
    '"1"': "1",
    "1": 1,
    "-17": -17,
    "+3": 3,
    "010": 8,
    "0o10": 8,
    "08": 8,
    "0x1F": 31,
    "0b101": 5,
    "1_000": 1000,
    "18446744073709551615": 2**64 - 1,
    "1.5": 1.5,
    ".5": 0.5,
    "2.0": 2,
    "1e3": 1000,
    "1e999": "1e999",
    "22:22": "22:22",
    "1:30:00": "1:30:00",
    "2026-01-31": "2026-01-31",
    "2026-01-31T12:00:00Z": "2026-01-31T12:00:00Z",
    "500m": "500m",
    "1.2.3": "1.2.3",
    "!!str 5": "5",
    "!!int '5'": 5,
    "!!float 1": 1,
    "!!bool yes": True,
    "!!null ''": None,
    "ä": "ä",
}


@pytest.mark.parametrize("text", VALUES)
def test_words_mean_what_they_mean_to_kubectl(loader: str, text: str) -> None:
    value = body(f"a: {text}\nb: 1")["a"]

    assert VALUES[text] == value
    assert type(VALUES[text]) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("1: a", {"1": "a"}, id="whole number"),
        pytest.param("0x10: a", {"16": "a"}, id="hexadecimal"),
        pytest.param("on: a", {"true": "a"}, id="boolean"),
        pytest.param("'1.5': a", {"1.5": "a"}, id="quoted"),
        pytest.param("? a\n: b", {"a": "b"}, id="explicit"),
        pytest.param("x: &k key\n*k : b", {"x": "key", "key": "b"}, id="alias"),
        pytest.param('"<<": b', {"<<": "b"}, id="quoted merge sign"),
    ],
)
def test_keys_become_text(loader: str, text: str, expected: dict[str, Any]) -> None:
    assert expected == body(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: &a {x: 1}\nb: {<<: *a, z: 2}", {"x": 1, "z": 2}, id="one"),
        pytest.param("a: &a {x: 1}\nb: {<<: *a, x: 2}", {"x": 2}, id="written out wins"),
        pytest.param("a: &a {x: 1}\nb: {x: 2, <<: *a}", {"x": 2}, id="written out wins even before"),
        pytest.param(
            "a: [&a {x: 1}, &c {x: 2, z: 3}]\nb: {<<: [*a, *c]}", {"x": 1, "z": 3}, id="first of several wins"
        ),
        pytest.param("a: &a {x: {z: 1}}\nb: {<<: *a}", {"x": {"z": 1}}, id="nested"),
        pytest.param("b: {<<: {x: 1}}", {"x": 1}, id="in place"),
        pytest.param("b: {<<: []}", {}, id="nothing"),
    ],
)
def test_merge_keys(loader: str, text: str, expected: dict[str, Any]) -> None:
    assert expected == body(text)["b"]


def test_each_alias_has_its_own_copy() -> None:
    found = body("a: &a {x: [1]}\nb: *a\nc: {<<: *a}")
    found["b"]["x"].append(2)

    assert found["a"]["x"] == [1]
    assert found["c"]["x"] == [1]


def test_an_anchor_may_be_given_anew_even_inside_its_former_self() -> None:
    assert body("a: &x [&x 1, *x]\nb: &x 2\nc: *x") == {"a": [1, 1], "b": 2, "c": 2}


def test_documents_are_numbered_without_the_empty_ones(loader: str) -> None:
    found = read("job.yaml", b"# nothing\n---\n---\na: 1\n---\nnull\n---\nb: 2\n...\n")

    assert [(one.number, one.body) for one in found] == [(1, {"a": 1}), (2, {"b": 2})]


def test_anchors_end_with_their_document() -> None:
    assert refusal("a: &x 1\n---\nb: *x") == "job.yaml:3:4: document 2: there is no anchor `&x` above this alias"


def test_a_list_is_taken_apart() -> None:
    text = (
        b"apiVersion: v1\nkind: List\nitems:\n- a: 1\n- apiVersion: v1\n  kind: List\n  items:\n  - b: 2\n---\nc: 3\n"
    )
    found = read("job.yaml", text)

    assert [(one.number, one.body, one.line("")) for one in found] == [
        (1, {"a": 1}, 4),
        (2, {"b": 2}, 8),
        (3, {"c": 3}, 10),
    ]


def test_byte_order_mark_and_windows_line_ends() -> None:
    (document,) = read("job.yaml", b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: 2\r\n")

    assert document.body == {"a": 1, "b": {"c": 2}}
    assert document.line("b.c") == 3


LINES = """\
# comment
metadata:
  name: x
  labels: {"a/b": c, "d.e": f}
spec:
  replicaSpecs:
    - type: worker
      template: &t
        spec:
          containers:
            - name: a
            - name: b
    -
      type: ps
      template: *t
    - {<<: *t, other: 1}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("metadata.name", 3),
        ('metadata.labels["a/b"]', 4),
        ('metadata.labels["d.e"]', 4),
        ("spec", 5),
        ("spec.replicaSpecs[0]", 7),
        ("spec.replicaSpecs[0].type", 7),
        ("spec.replicaSpecs[0].template.spec.containers[1].name", 12),
        ("spec.replicaSpecs[0].restartPolicy.limit", 7),
        ("spec.replicaSpecs[1].type", 14),
        ("spec.replicaSpecs[1].template", 15),
        ("spec.replicaSpecs[1].template.spec.containers[0]", 11),
        ("spec.replicaSpecs[2].spec", 9),
        ("spec.replicaSpecs[2].other", 16),
        ("spec.replicaSpecs[9].type", 6),
        ("spec.replicaSpecs.type", 6),
        ("metadata.name.first", 3),
        ("nothing.like.it", 2),
        ("[3]", 2),
        ('"', 2),
    ],
)
def test_lines(loader: str, path: str, line: int) -> None:
    (document,) = read("job.yaml", LINES.encode())

    assert line == document.line(path)


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + level, 98 + level, b",".join([b"*%c" % (97 + level)] * 10)) for level in range(10)
)
MERGE_BOMB = b"a: &a {x: 1}\n" + b"".join(
    b"%c: &%c {<<: [%s], k%d: {<<: *%c}}\n"
    % (98 + level, 98 + level, b",".join([b"*%c" % (97 + level)] * 10), level, 97 + level)
    for level in range(20)
)
#: Each stays below the limit; all of them would not.
MANY_BOMBS = (b"a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [" + b"*a," * 10 + b"]\nc: [" + b"*b," * 10 + b"]\n---\n") * 20_000

HOSTILE: dict[str, tuple[bytes, str]] = {
    "flow lists 100,000 deep": (b"[" * 100_000, "nested more than 64 levels deep"),
    "flow mappings 100,000 deep": (b"{a: " * 100_000, "nested more than 64 levels deep"),
    "block lists 100,000 deep": (b"- " * 100_000, "nested more than 64 levels deep"),
    "block keys 100,000 deep": (b"? " * 100_000, "nested more than 64 levels deep"),
    "block mappings as deep as 3 MiB hold": (
        b"\n".join(b" " * depth + b"a:" for depth in range(2400)),
        "nested more than 64 levels deep",
    ),
    "depth by aliases": (
        b"a: &a " + b"[" * 40 + b"]" * 40 + b"\nb: " + b"[" * 40 + b"*a" + b"]" * 40,
        "nested more than 64 levels deep",
    ),
    "alias bomb": (BOMB, "more than 50,000 values"),
    "merge bomb": (MERGE_BOMB, "more than 50,000 values"),
    "many small bombs": (MANY_BOMBS[: LARGEST - 1], "more than 50,000 values"),
    "a million aliases": (b"a: &a x\nb: [" + b"*a," * 1_000_000 + b"]", "more than 50,000 values"),
    "three megabytes of keys": (b"".join(b"k%d: 1\n" % i for i in range(260_000)), "more than 50,000 values"),
    "three megabytes of empty documents": (b"---\n" * 750_000, "more than 50,000 values"),
    "three megabytes of tag directives": (b"%TAG !a! b\n" * 280_000, "lines begin with `%`"),
    "ten megabytes": (b"nonsense: [" * 1_000_000, "larger than 3 MiB"),
    "NUL": (b"a: 1\nb: x\0y", "job.yaml:2:5: control character U+0000"),
    "binary": (bytes(range(256)) * 1000, "not UTF-8 text"),
    "invalid UTF-8": (b"a: 1\nb: \xff", "job.yaml:2: not UTF-8 text (byte 0xff)"),
    "UTF-16": ("a: 1".encode("utf-16"), "save it as UTF-8"),
    "integer of 5,000 digits": (b"a: " + b"9" * 5_000, "a number of 5000 characters is too long"),
    "fraction of a million digits": (b"a: 1." + b"9" * 1_000_000, "is too long"),
    "half a surrogate pair": (b'a: "\\ud800"', "job.yaml:1:"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_at_once(name: str) -> None:
    text, expected = HOSTILE[name]
    start = time.process_time()

    assert expected in refusal(text)
    assert time.process_time() - start < 5  # `tests/cli` holds the real bound; this one must bear a coverage tool


@pytest.mark.parametrize("name", ["flow lists 100,000 deep", "alias bomb", "merge bomb", "half a surrogate pair"])
def test_the_other_parser_is_guarded_alike(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(builder, "_LOADER", yaml.SafeLoader)
    text, expected = HOSTILE[name]

    assert expected in refusal(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "job.yaml: the file has no documents"),
        ("# only\n---\n", "job.yaml: the file has no documents"),
        ("hello", "job.yaml:1: document 1: expected a mapping that begins with `apiVersion:`, found the text 'hello'"),
        (
            "a: 1\n---\n- b",
            "job.yaml:3: document 2: expected a mapping that begins with `apiVersion:`, found a list of 1",
        ),
        ("5", "found the number 5"),
        ("apiVersion: v1\nkind: List\nitems: 3", "job.yaml:3: document 1: `items` of a List must be a list"),
        ("apiVersion: v1\nkind: List\nitems:\n- x", "job.yaml:4: document 1: expected a mapping"),
        ("apiVersion: v1\nkind: List\nitems: []", "job.yaml: the file has no documents"),
        ("a: 1\nb: 2\na: 3", "job.yaml:3:1: document 1: key 'a' is given twice, on lines 1 and 3"),
        ("a: {x: 1, 'x': 2}", "key 'x' is given twice, on lines 1 and 1"),
        ("1: a\n'1': b", "key '1' is given twice"),
        ("a: &a {}\nb: {<<: *a, <<: *a}", "key '<<' is given twice"),
        ("a: &a [*a]", "job.yaml:1:8: document 1: alias `*a` is inside the value of its own anchor"),
        ("a: &a {<<: *a}", "is inside the value of its own anchor"),
        ("a: *b", "there is no anchor `&b`"),
        ("a: {<<: 1}", "`<<` takes a mapping or a list of mappings"),
        ("a: {<<: [{}, 1]}", "`<<` takes a mapping or a list of mappings"),
        ("a: !!python/object/apply:os.system [ls]", "tag '!!python/object/apply:os.system' is not allowed"),
        ("a: !!python/name:os.system", "tag '!!python/name:os.system' is not allowed"),
        ("a: !foo x", "tag '!foo' is not allowed"),
        ("a: !!binary aGk=", "tag '!!binary' is not allowed"),
        ("a: !!set {b}", "tag '!!set' is not allowed"),
        ("a: !!int x", "'x' is not a value of the type !!int in its tag"),
        ("a: .nan", ".nan is not a number that a manifest can hold"),
        ("a: -.Inf", "-.Inf is not a number that a manifest can hold"),
        ("a: 18446744073709551616", "does not fit in 64 bits"),
        ("1.5: a", "key 1.5 is a number with a fraction; put it in quotes"),
        ("~: a", "a key is missing before the colon, or is null"),
        ("[a]: b", "a key must be text"),
        ("a: {{ .Values.x }}", "is this a template with `{{ }}`?"),
        (
            "a:\n\tb: 1",
            "job.yaml:2:1: document 1: not valid YAML: a value cannot begin with this character: indent with spaces",
        ),
        ("a: b: c", "job.yaml:1:5: document 1: not valid YAML: a second `: ` in one line"),
        (
            "b: 1\na: 'x\nc: 1",
            "job.yaml:2:4: document 1: not valid YAML: the quotes that are opened here are never closed",
        ),
        ("a:\n  - b\n\t- c", "job.yaml:3:1: document 1: not valid YAML: indent with spaces, not tabs"),
        ("a: 1\nb", "expected `key: value`"),
    ],
)
def test_refusals_say_where_and_why(text: str, expected: str) -> None:
    message = refusal(text)

    assert expected in message
    assert "\n" not in message


def _harmless(text: bytes) -> None:
    message = ""
    try:
        found = read("job.yaml", text)
    except ManifestError as error:
        message = str(error)
        found = ()
    assert all(isinstance(one.body, dict) and one.line("") for one in found)
    assert found or (message.startswith("job.yaml") and "\n" not in message)


WORDS = st.sampled_from(
    ["a", "1", "&a ", "*a", "<<", ": ", ":", "- ", "[", "]", "{", "}", ",", "\n", "  ", "\t", "'", '"', "|", ">",
     "!!int ", "!x ", "---\n", "...",
     "#", "%", "? ", "~", ".nan", "0x", "9" * 30, "\\", "\ufeff", "\x85", "é", "items", "kind"]
)  # fmt: skip


@CALM
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(text: bytes) -> None:
    _harmless(text)


@CALM
@given(st.text(max_size=200))
def test_no_text_raises_anything_else(text: str) -> None:
    _harmless(text.encode("utf-8", "surrogatepass"))


@settings(CALM, max_examples=400)
@given(st.lists(WORDS, max_size=40).map("".join))
def test_no_arrangement_of_yaml_raises_anything_else(text: str) -> None:
    _harmless(text.encode())


@settings(CALM, max_examples=100)
@given(st.lists(WORDS, max_size=40).map("".join))
def test_nor_does_it_with_the_other_parser(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "_LOADER", yaml.SafeLoader)
        _harmless(text.encode())


TEXT = st.text(st.characters(exclude_categories=["C"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@CALM
@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_what_pyyaml_writes_is_read_back(value: dict[str, Any]) -> None:
    value = {"apiVersion": "x", **value}

    # In quotes, for PyYAML takes words such as `y` and `1e3` for text, and kubectl does not.
    assert value == body(yaml.safe_dump(value, default_style='"'))
