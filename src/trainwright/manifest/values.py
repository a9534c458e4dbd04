# SPDX-License-Identifier: Apache-2.0
"""Single words of YAML to values, by kubectl's rules: 1.1 booleans, no base-60 numbers, times left as text.

Called by `builder` for every scalar. A word that has no value in JSON raises ValueError, whose text says what to do.
"""

import re

from yaml import ScalarEvent

Scalar = str | int | float | bool | None

_CORE = "tag:yaml.org,2002:"
_SIGNS = frozenset("+-.0123456789")
_LONGEST_NUMBER = 100


def _spellings(words: str, value: Scalar) -> dict[str, Scalar]:
    return {form: value for word in words.split() for form in (word, word.capitalize(), word.upper())}


_WORDS: dict[str, Scalar] = {
    **_spellings("y yes true on", value=True),
    **_spellings("n no false off", value=False),
    **_spellings("null", value=None),
    "": None,
    "~": None,
}
_NOT_JSON = frozenset(
    sign + word for sign in ("", "+", "-") for word in (".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF")
)
_INT = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def value_of(event: ScalarEvent) -> Scalar:
    """What a scalar means: by its tag if it has one, by its looks if it is neither tagged nor quoted."""
    text = str(event.value)
    if not text.isascii():
        text.encode()  # raises for half a surrogate pair, which PyYAML's own scanner lets pass
    if event.tag is None or event.tag == "!":
        return _plain(text) if event.implicit[0] else text
    wanted = _TAGS.get(event.tag.removeprefix(_CORE) if event.tag.startswith(_CORE) else "")
    if wanted is None:
        raise ValueError(foreign(event.tag))
    value = text if wanted == (str,) else _plain(text)
    if type(value) not in wanted:
        raise ValueError(f"{text[:60]!r} is not of the type that its tag !!{event.tag[len(_CORE) :]} gives it")
    return value


_TAGS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


def foreign(tag: str) -> str:
    """The message for a tag that is not one of YAML's own simple types."""
    return f"tag {tag.replace(_CORE, '!!')[:60]!r} is not allowed in a manifest"


def key_of(value: object) -> str:
    """A mapping's key, which JSON wants to be text; kubectl turns whole numbers and booleans into it."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case None:
            raise ValueError("a key is missing before the colon, or is null; put it in quotes if it is text")
        case float():
            raise ValueError(f"key {value} is a number with a fraction; put it in quotes")
        case _:
            raise ValueError("a key must be text, not a list or a mapping; `{{ }}` of an unfilled template looks so")


def _plain(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if not text or text[0] not in _SIGNS:
        return text
    if text in _NOT_JSON:
        raise ValueError(f"{text} is not a number that a manifest can hold; put it in quotes if it is text")
    return _number(text)


def _number(text: str) -> Scalar:
    digits = text.replace("_", "")
    whole = _INT.fullmatch(digits)
    if whole is None and not _FLOAT.fullmatch(digits):
        return text
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} characters is too long; put it in quotes if it is text")
    return _integer(*whole.groups()) if whole is not None else _fraction(text, float(digits))


def _integer(sign: str, hexa: str | None, binary: str | None, octal: str | None, decimal: str | None) -> int:
    digits, base = next((d, b) for d, b in ((hexa, 16), (binary, 2), (octal, 8), (decimal, 10)) if d is not None)
    value = int(sign + digits, base)
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} does not fit in 64 bits; put it in quotes if it is text")
    return value


def _fraction(text: str, value: float) -> Scalar:
    """As it comes out of kubectl's way through JSON: 2.0 is 2 there, and what overflows stays text."""
    if abs(value) == float("inf"):
        return text
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
