# SPDX-License-Identifier: Apache-2.0
"""The five `$(…)` variables of a GenericJob. `checks` finds bad references with `scan`, `dialect` fills in with `fill`.

Textual, several per string, no nesting. `$$` is Kubernetes' escape and stays as it is, and so does every `$(NAME)` that
is not one of the five: the kubelet expands those.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

_VARIABLE = re.compile(
    r"\$\$"  # an escape: whatever follows is not a variable
    r"|\$\((?P<own>type|rank)\)"
    r"|\$\(replicas\[(?P<count>[^\[\]()]+)\]\)"
    r"|\$\(service\.(?P<host>[^\[\]().]+)\[(?P<rank>[0-9]{1,7})\]\.host\)"
    r"|\$\(service\.port\[(?P<port>[^\[\]()]+)\]\)"
    r"|(?P<odd>\$\((?:service\.|replicas\[)[^()]*\))"
)


class Reference(Struct, frozen=True):
    """One variable in a text: what it asks for, of which type, rank or port."""

    text: str
    asks: str
    name: str = ""
    rank: int = -1


def scan(text: str) -> Iterator[Reference]:
    """Every variable of ours in a text; `odd` ones look like ours but follow none of the five forms."""
    for match in _VARIABLE.finditer(text):
        if match.lastgroup is not None:
            yield _reference(match)


def _reference(match: re.Match[str]) -> Reference:
    groups = match.groupdict()
    if groups["own"]:
        return Reference(match[0], groups["own"])
    if groups["host"]:
        return Reference(match[0], "host", groups["host"], int(groups["rank"]))
    asks = next(name for name in ("count", "port", "odd") if groups[name])
    return Reference(match[0], asks, groups[asks])


class Facts(Struct, frozen=True):
    """What the variables of one replica stand for."""

    type: str
    rank: int
    counts: Mapping[str, int]
    ports: Mapping[str, int]
    host: Callable[[str, int], str] | None


def fill(text: str, facts: Facts) -> str:
    """The text with its variables filled in; what cannot be is left as written."""
    return _VARIABLE.sub(lambda match: _value(match, facts), text) if "$(" in text else text


def _value(match: re.Match[str], facts: Facts) -> str:
    if match.lastgroup is None:
        return match[0]
    ref = _reference(match)
    found: object = None
    match ref.asks:
        case "type":
            found = facts.type
        case "rank":
            found = facts.rank
        case "count":
            found = facts.counts.get(ref.name)
        case "port":
            found = facts.ports.get(ref.name)
        case "host":
            known = facts.host is not None and ref.rank < facts.counts.get(ref.name, 0)
            found = facts.host(ref.name, ref.rank) if facts.host is not None and known else None
    return ref.text if found is None else str(found)
