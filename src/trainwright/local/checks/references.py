# SPDX-License-Identifier: Apache-2.0
"""Secrets, ConfigMaps and claims that a pod names and that are not there. Pure; asked by `preflight`.

The agent says the same about each container when it comes to it; here it is said of all of them, before anything runs.
"""

from collections.abc import Iterable, Iterator

from trainwright.kinds.paths import item
from trainwright.local.agent.sources import IN_ENVIRONMENT, IN_PROJECTED, IN_VARIABLE, IN_VOLUME
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest


class Known:
    """The objects that a job may refer to: their names and keys, by kind; `coming` are ConfigMaps that it makes."""

    def __init__(self, objects: Iterable[Body], namespace: str, coming: frozenset[str] = frozenset()) -> None:
        self._coming = coming
        self._keys: dict[str, dict[str, set[str]]] = {}
        for body in objects:
            meta = body.get("metadata") or {}
            if (meta.get("namespace") or namespace) == namespace:
                keys = (key for part in ("data", "stringData", "binaryData") for key in body.get(part) or ())
                self._keys.setdefault(str(body.get("kind")), {})[str(meta.get("name"))] = set(keys)

    def lacks(self, kind: str, ref: Body, word: str, path: str) -> Problem | None:
        """What is wrong with a reference to an object, by the word that names it, or with the key that it names."""
        name, key = str(ref.get(word) or ""), ref.get("key")
        if ref.get("optional") or (kind == "ConfigMap" and name in self._coming):
            return None
        known = self._keys.get(kind, {})
        if name not in known:
            has = f"the files have {', '.join(sorted(known))}" if known else f"the files have no {kind}"
            return Problem(f"{path}.{word}", f"there is no {kind} {name!r}; {has}", nearest(name, known))
        if key is not None and key not in known[name]:
            has = ", ".join(sorted(known[name])) or "no keys"
            message = f"{kind} {name!r} has no key {key!r}; it has {has}"
            return Problem(f"{path}.key", message, nearest(str(key), known[name]))
        return None


def of_container(container: Body, path: str, known: Known, given: frozenset[str]) -> Iterator[Problem]:
    """What the environment of a container refers to in vain, but for variables that are given from elsewhere."""
    for index, source in enumerate(container.get("envFrom") or ()):
        for word, kind in IN_ENVIRONMENT:
            if source.get(word):
                yield from _some(known.lacks(kind, source[word], "name", f"{item(f'{path}.envFrom', index)}.{word}"))
    for index, entry in enumerate(container.get("env") or ()):
        for word, kind in IN_VARIABLE:
            ref = (entry.get("valueFrom") or {}).get(word)
            if ref and entry.get("name") not in given:
                place = f"{item(f'{path}.env', index)}.valueFrom.{word}"
                yield from _some(known.lacks(kind, ref, "name", place))


def of_volume(volume: Body, path: str, known: Known) -> Iterator[Problem]:
    """What a volume refers to in vain: an object, or single keys of it."""
    yield from _of_sources(volume, path, known, IN_VOLUME)
    for index, part in enumerate((volume.get("projected") or {}).get("sources") or ()):
        yield from _of_sources(part, item(f"{path}.projected.sources", index), known, IN_PROJECTED)


def _of_sources(body: Body, path: str, known: Known, sources: tuple[tuple[str, str, str], ...]) -> Iterator[Problem]:
    for source, kind, word in sources:
        ref = body.get(source)
        if not ref:
            continue
        absent = known.lacks(kind, ref, word, f"{path}.{source}")
        yield from _some(absent)
        for index, one in enumerate(ref.get("items") or () if absent is None else ()):
            asked = {"optional": ref.get("optional"), word: ref.get(word), "key": one.get("key")}
            yield from _some(known.lacks(kind, asked, word, item(f"{path}.{source}.items", index)))


def _some(problem: Problem | None) -> tuple[Problem, ...]:
    return (problem,) if problem is not None else ()
