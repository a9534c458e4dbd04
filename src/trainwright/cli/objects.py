# SPDX-License-Identifier: Apache-2.0
"""Objects that a plan creates, as people want to see them: what runs, with which environment, at which ports.

Replicas that differ in nothing but their name are shown once, and of many that differ only the first few.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from trainwright.model.job import Body
from trainwright.model.meta import ROLE

#: Of more replicas than this only the first ones are shown.
_FEW = 4
_SHOWN = 3
#: Longer text is cut, and so are scripts of more lines.
_LONGEST = 240
_LINES = 8
_PLAIN = re.compile(r"[\w@%+=:,./$()\[\]-]+", re.ASCII)
_PLURAL = {"Pod": "pods", "Service": "services", "PodGroup": "pod groups", "ConfigMap": "config maps"}

Shown = tuple[str, tuple[str, ...]]


def count(kinds: Iterable[str]) -> str:
    """`4 pods, 1 service`."""
    found = Counter(kinds)
    order = sorted(found, key=lambda kind: (list(_PLURAL).index(kind) if kind in _PLURAL else len(_PLURAL), kind))
    return ", ".join(f"{found[kind]} {_word(kind, found[kind])}" for kind in order) or "nothing"


def _word(kind: str, number: int) -> str:
    words = _PLURAL.get(kind, kind)
    return words.removesuffix("s") if number == 1 and kind in _PLURAL else words


def lines(objects: Iterable[Body]) -> Iterator[str]:
    """Objects as text: the job's own first, then pods, then services; role by role."""
    rank = {"Pod": 1, "Service": 2}
    ordered = sorted(objects, key=lambda body: rank.get(body["kind"], 0))
    for (kind, _), group in groupby(ordered, key=lambda body: (body["kind"], body["metadata"]["labels"].get(ROLE))):
        yield from _group(kind, [(body["metadata"]["name"], tuple(_inside(body))) for body in group])


def _group(kind: str, members: list[Shown]) -> Iterator[str]:
    """One role's objects of one kind."""
    if len(members) > 1 and len({inside for _, inside in members}) == 1:
        yield f"{kind} {members[0][0]} … {members[-1][0]}"
        yield from (f"  {line}" for line in members[0][1])
        return
    shown = members if len(members) <= _FEW else members[:_SHOWN]
    for name, inside in shown:
        yield f"{kind} {name}"
        yield from (f"  {line}" for line in inside)
    if len(members) > len(shown):
        yield f"… and {len(members) - len(shown)} more"


def _inside(body: Body) -> Iterator[str]:
    spec = body.get("spec") or {}
    if body["kind"] == "Pod":
        yield from _pod(spec)
    elif body["kind"] == "Service":
        ports = [f"{port.get('name', '')} {port['port']}".strip() for port in spec.get("ports") or ()]
        yield f"ports    {', '.join(ports) or '(none)'}"
    elif body["kind"] == "ConfigMap":
        yield from (f"{key}={_whole(value)}" for key, value in (body.get("data") or {}).items())
    else:
        yield ", ".join(f"{key} {_raw(str(value))}" for key, value in spec.items())


def _pod(spec: Body) -> Iterator[str]:
    if spec.get("schedulerName"):
        yield f"scheduler {_raw(spec['schedulerName'])}"
    for role, group in (("init container", "initContainers"), ("container", "containers")):
        for one in spec.get(group) or ():
            yield f"{role} {_raw(one.get('name'))}, image {_raw(one.get('image'))}"
            yield from (f"  {line}" for line in _container(one))


def _container(one: Body) -> Iterator[str]:
    for key in ("command", "args"):
        if one.get(key):
            yield from _words(key, [str(part) for part in one[key]])
    limits = (one.get("resources") or {}).get("limits") or {}
    if limits:
        yield f"limits   {', '.join(f'{name} {_raw(amount)}' for name, amount in limits.items())}"
    for source in one.get("envFrom") or ():
        yield f"env      {_all_of(source)}"
    for entry in one.get("env") or ():
        yield f"env      {_raw(entry.get('name'))}={_value(entry)}"


def _value(entry: Body) -> str:
    """`value`, or where it will come from."""
    source = entry.get("valueFrom")
    if not isinstance(source, dict):
        return _whole(entry.get("value") or "")
    for key, kind in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
        if source.get(key):
            return f"<from {kind} {source[key].get('name')}/{source[key].get('key')}>"
    if source.get("fieldRef"):
        return f"<field {source['fieldRef'].get('fieldPath')}>"
    return f"<resource {(source.get('resourceFieldRef') or {}).get('resource')}>"


def _all_of(source: Body) -> str:
    kind = "secret" if source.get("secretRef") else "config map"
    name = (source.get("secretRef") or source.get("configMapRef") or {}).get("name")
    return f"{source.get('prefix') or ''}* <from {kind} {name}>"


def _words(key: str, words: list[str]) -> Iterator[str]:
    """A command as a shell-minded reader expects it; scripts go on lines of their own."""
    scripts = [word for word in words if "\n" in word.strip("\n")]
    yield f"{key:<8} {' '.join('|' if word in scripts else _quoted(word) for word in words)}"
    for script in scripts:
        lines = script.strip("\n").split("\n")
        shown = lines if len(lines) <= _LINES else lines[: _LINES - 1]
        yield from (f"         | {_raw(line)}" for line in shown)
        if len(lines) > len(shown):
            yield f"         | … {len(lines) - len(shown)} more lines"


def _quoted(word: str) -> str:
    """Bare if it can be, else in quotes."""
    return word if _PLAIN.fullmatch(word) and len(word) <= _LONGEST else repr(_cut(word))


def _raw(value: object) -> str:
    """As it is, if it is not too long; only what a terminal should not be sent is escaped."""
    return _whole(_cut(str(value)))


def _whole(value: object) -> str:
    """However long it is: in the environment, half of TF_CONFIG or of a list of hosts is of no use."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
