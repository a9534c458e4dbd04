# SPDX-License-Identifier: Apache-2.0
"""Asks an API server the requests of a scenario, makes its answers comparable, and finds where two answers differ."""

import json
import re
import time
from collections.abc import Iterator, Set
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

import aiohttp
from cluster_asks import PATHS, Ask, Body, Scenario
from msgspec import Struct

_VARIABLE = re.compile(r"\{([a-z ]+(?::[\w.]+)?)\}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{6})?Z")
_AGE = re.compile(r"(?:\d+s|0s|<1s)")
_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_VERSION_IN_TEXT = re.compile(
    r"(?<=current: )\d+|(?<=in object meta: )\d+|(?<=in record \()\d+|(?<=\\\"resourceVersion\\\":\\\")\d+"
)
_DAY = 86400
#: A server that does not answer in this time has the code 0 in the comparison.
_SECONDS = 5.0


class Answer(Struct):
    """An answer: `body` is a document, a text, or the list of events of a watch."""

    code: int
    kind: str
    warnings: list[str]
    body: Any

    def document(self) -> Body:
        """Everything that is compared."""
        return {"code": self.code, "contentType": self.kind, "warnings": self.warnings, "body": self.body}


class Difference(Struct, frozen=True):
    """One place where answers differ; `path` begins with code, contentType, warnings or body."""

    request: str
    path: str
    real: Any
    ours: Any


class Asker:
    """Sends requests to one server."""

    def __init__(self, session: aiohttp.ClientSession, run: str) -> None:
        self._session, self._run = session, run

    async def play(self, one: Scenario) -> dict[str, Body]:
        """The comparable answers to all requests of a scenario, by name."""
        namespace = f"{self._run}-{one.name}"
        if not one.name.startswith("nons-"):
            await self._send(Ask("", "POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}), {}, namespace)
        answers: dict[str, Answer] = {}
        for ask in one.asks:
            answers[ask.name] = await self._send(ask, answers, namespace)
        dry = {ask.name for ask in one.asks if "dryRun=All" in ask.path or "'dryRun': ['All']" in str(ask.body)}
        return _Comparable(namespace).all(answers, dry)

    async def _send(self, ask: Ask, known: dict[str, Answer], namespace: str) -> Answer:
        try:
            return await self._answer(ask, known, namespace)
        except TimeoutError:
            return Answer(0, "", [], None)

    async def _answer(self, ask: Ask, known: dict[str, Answer], namespace: str) -> Answer:
        path, body = _filled(ask.path, known, namespace), _filled(ask.body, known, namespace)
        data = None if body is None else BytesIO((body if isinstance(body, str) else json.dumps(body)).encode())
        skip = [name for name in ("Content-Type", "Accept") if name not in ask.headers]
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with self._session.request(
            ask.method, path, data=data, headers=ask.headers, skip_auto_headers=skip, timeout=timeout
        ) as answer:
            warnings = [text for name, text in answer.headers.items() if name.lower() == "warning"]
            kind = answer.headers.get("Content-Type", "")
            if ask.events and answer.status == 200:
                return Answer(answer.status, kind, warnings, await _read_events(answer, ask.events))
            return Answer(answer.status, kind, warnings, _document(await answer.text(), kind))


async def _read_events(answer: aiohttp.ClientResponse, number: int) -> list[Any]:
    found: list[Any] = []
    while len(found) != number:
        line = await answer.content.readline()
        if not line:
            break
        found.append(json.loads(line))
    return found


def _document(text: str, kind: str) -> Any:
    if "json" not in kind:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _filled(value: Any, known: dict[str, Answer], namespace: str) -> Any:
    """The value with the values of its variables."""
    if isinstance(value, dict):
        return {_filled(key, known, namespace): _filled(part, known, namespace) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, known, namespace) for part in value]
    if not isinstance(value, str):
        return value

    def one(found: re.Match[str]) -> str:
        word, _, path = found[1].partition(":")
        if path:
            return _at(known[word].body, path)
        return namespace if word == "ns" else PATHS[word].replace("{ns}", namespace)

    return _VARIABLE.sub(one, value)


def _at(body: Any, path: str) -> str:
    for part in path.split("."):
        try:
            body = body[int(part)] if isinstance(body, list) else body[part]
        except (KeyError, IndexError, TypeError):
            return "missing"
    return str(body)


# -- what must differ between two servers ------------------------------------------------------------------------------


class _Comparable:
    """Replaces what is different in each run: names of namespaces, UIDs, versions, times."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._uids: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._generated: dict[str, str] = {}

    def all(self, answers: dict[str, Answer], dry: Set[str]) -> dict[str, Body]:
        """The comparable answers. In answers to dry runs, only UIDs and versions of stored objects have numbers."""
        stored = [answer.body for name, answer in answers.items() if name not in dry]
        versions = sorted({int(one["resourceVersion"]) for body in stored for one in _metadata(body)})
        self._versions = {str(version): f"<version {index}>" for index, version in enumerate(versions)}
        for body in stored:
            for one in _metadata(body):
                self._uids.setdefault(one["uid"], f"<uid {len(self._uids)}>")
        for body in (answer.body for answer in answers.values()):
            for one in _metadata(body, "generateName"):
                self._generated.setdefault(one["name"], f"{one['generateName']}<generated>")
        return {name: self._value(answer.document()) for name, answer in answers.items()}

    def _value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: self._field(name, part, value) for name, part in value.items() if name != "managedFields"}
        if isinstance(value, list):
            return [self._value(part, key) for part in value]
        return self._text(value, key) if isinstance(value, str) else value

    def _field(self, name: str, value: Any, parent: Body) -> Any:
        if name == "resourceVersion" and isinstance(value, str):
            return self._versions.get(value, "<version>") if "uid" in parent else "<version>"
        if name == "continue" and value:
            return "<continue>"
        return self._value(value, name)

    def _text(self, text: str, key: str) -> str:
        for name, shown in self._generated.items():
            text = text.replace(name, shown)
        text = text.replace(self._namespace, "NS")
        text = _UID.sub(lambda found: self._uids.get(found[0], "<uid>"), text)
        text = _VERSION_IN_TEXT.sub("<version>", text)
        if key == "cells" and _AGE.fullmatch(text):
            return "<age>"
        return _TIME.sub(_shown_time, text)


def _metadata(value: Any, field: str = "resourceVersion") -> Iterator[Body]:
    """The metadata of all objects in a document, if they have this field."""
    if isinstance(value, dict):
        if "uid" in value and "name" in value and isinstance(value.get(field), str):
            yield value
        for part in value.values():
            yield from _metadata(part, field)
    elif isinstance(value, list):
        for part in value:
            yield from _metadata(part, field)


def _shown_time(found: re.Match[str]) -> str:
    """A mark for a time of today; other times are those of the requests."""
    moment = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    is_now = abs(moment - time.time()) < _DAY
    return ("<time with microseconds>" if found[2] else "<time>") if is_now else found[0]


# -- differences -------------------------------------------------------------------------------------------------------


def differences(request: str, real: Any, ours: Any, path: str = "") -> Iterator[Difference]:
    """All places where two documents differ. A value that is missing is shown as `<missing>`."""
    if isinstance(real, dict) and isinstance(ours, dict):
        for name in [*real, *(name for name in ours if name not in real)]:
            under = f"{path}.{name}" if path else name
            yield from differences(request, real.get(name, "<missing>"), ours.get(name, "<missing>"), under)
    elif isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for index, (one, other) in enumerate(zip(real, ours, strict=True)):
            yield from differences(request, one, other, f"{path}[{index}]")
    elif real != ours or type(real) is not type(ours):
        yield Difference(request, path, real, ours)
