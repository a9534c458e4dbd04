# SPDX-License-Identifier: Apache-2.0
"""Watches: where they begin, what they send, and how they end."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from api_server import CONFIG_MAPS, TABLE, ServedStore, config_map, served

from trainwright.api import handlers, watches
from trainwright.api.formats import ObjectFormat
from trainwright.model.job import Body


async def test_a_watch_sends_changes_after_its_version(api: ServedStore) -> None:
    await api.make(CONFIG_MAPS, config_map("old"))
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    async with api.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={version}") as events:
        await api.make(CONFIG_MAPS, config_map("new"))
        await api.ask("PATCH", f"{CONFIG_MAPS}/new", {"data": {"a": "b"}}, kind="application/merge-patch+json")
        await api.ask("DELETE", f"{CONFIG_MAPS}/new")
        found = [await events.next() for _ in range(3)]
    assert [(what, body["metadata"]["name"]) for what, body in found] == [
        ("ADDED", "new"),
        ("MODIFIED", "new"),
        ("DELETED", "new"),
    ]
    versions = [int(body["metadata"]["resourceVersion"]) for _, body in found]
    assert versions == sorted(set(versions))
    assert found[0][1]["kind"] == "ConfigMap"


@pytest.mark.parametrize("query", ["watch=1", "watch=True&resourceVersion=0"])
async def test_a_watch_without_a_version_begins_with_all_objects(api: ServedStore, query: str) -> None:
    await api.make(CONFIG_MAPS, config_map("a"))
    await api.make(CONFIG_MAPS, config_map("b"))
    async with api.watch(f"{CONFIG_MAPS}?{query}") as events:
        await api.make(CONFIG_MAPS, config_map("c"))
        assert await events.names(3) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


async def test_initial_events_end_with_a_bookmark(api: ServedStore) -> None:
    await api.make(CONFIG_MAPS, config_map("a"))
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(f"{CONFIG_MAPS}?{query}") as events:
        assert await events.names(1) == [("ADDED", "a")]
        what, body = await events.next()
        assert (what, body["kind"]) == ("BOOKMARK", "ConfigMap")
        assert body["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await api.make(CONFIG_MAPS, config_map("b"))
        assert await events.names(1) == [("ADDED", "b")]


async def test_a_selector_shows_objects_that_begin_and_cease_to_match(api: ServedStore) -> None:
    await api.make(CONFIG_MAPS, config_map("a"))
    async with api.watch(f"{CONFIG_MAPS}?watch=true&labelSelector=x%3Dy") as events:
        for label in ("y", "z"):
            patch = {"metadata": {"labels": {"x": label}}}
            await api.ask("PATCH", f"{CONFIG_MAPS}/a", patch, kind="application/merge-patch+json")
        assert await events.names(2) == [("ADDED", "a"), ("DELETED", "a")]


async def test_bookmarks_only_for_those_who_want_them(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_BOOKMARK_SECONDS", 0.05)
    api.server._handlers.watches._send_bookmarks()
    await api.make(CONFIG_MAPS, config_map("a"))
    version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    path = f"{CONFIG_MAPS}?watch=true&resourceVersion={version}"
    async with api.watch(f"{path}&allowWatchBookmarks=true") as wants, api.watch(path) as others:
        what, body = await wants.next()
        assert (what, body["metadata"]["resourceVersion"]) == ("BOOKMARK", version)
        await asyncio.sleep(0.1)
        await api.make(CONFIG_MAPS, config_map("b"))
        assert await others.names(1) == [("ADDED", "b")]


@pytest.mark.parametrize("accept", ["", TABLE])
async def test_an_event_is_encoded_once_for_all_watches(
    api: ServedStore, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    encoded: list[str] = []
    event = ObjectFormat.event

    def counted(self: ObjectFormat, what: str, body: Body, *rest: Any, **more: Any) -> bytes:
        encoded.append(body["metadata"]["name"])
        return event(self, what, body, *rest, **more)

    monkeypatch.setattr(ObjectFormat, "event", counted)
    async with AsyncExitStack() as stack:
        path = f"{CONFIG_MAPS}?watch=true"
        readers = [await stack.enter_async_context(api.watch(path, accept=accept)) for _ in range(10)]
        for name in ("first", "second"):  # the first Table of each watch has the columns
            await api.make(CONFIG_MAPS, config_map(name))
            for reader in readers:
                await reader.next()
    assert encoded.count("second") == 1


async def test_only_the_first_table_has_the_columns(api: ServedStore) -> None:
    async with api.watch(f"{CONFIG_MAPS}?watch=true", accept=TABLE) as events:
        await api.make(CONFIG_MAPS, config_map("a"))
        await api.make(CONFIG_MAPS, config_map("b"))
        first, second = (await events.next())[1], (await events.next())[1]
    assert first["columnDefinitions"][0]["name"] == "Name"
    assert [second["rows"][0]["cells"][0], second["columnDefinitions"]] == ["b", None]


async def test_a_version_that_is_too_old_is_gone(tmp_path: Path) -> None:
    async with served(tmp_path, history=4) as api:
        await api.make(CONFIG_MAPS, config_map("first"))
        version = (await api.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
        for number in range(10):
            await api.make(CONFIG_MAPS, config_map(f"m{number}"))
        answer = await api.ask("GET", f"{CONFIG_MAPS}?watch=true&resourceVersion={version}")
        assert (answer.code, answer.reason) == (410, "Expired")


async def test_a_watch_ends_at_its_timeout(api: ServedStore) -> None:
    async with api.watch(f"{CONFIG_MAPS}?watch=true&timeoutSeconds=1") as events:
        with pytest.raises(EOFError):
            await events.next()


async def test_a_client_that_does_not_read_gets_no_more_and_then_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "_MAX_UNSENT_BYTES", 1 << 16)
    async with served(tmp_path, history=16) as api:
        async with api.watch(f"{CONFIG_MAPS}?watch=true") as slow:
            large = "x" * 200_000
            for number in range(200):
                await api.make(CONFIG_MAPS, config_map(f"m{number}", large=large))
            unsent = [one._transport.get_write_buffer_size() for one in api.server._handlers.watches._watches]
            assert all(size < 1 << 20 for size in unsent)
            found = await slow.rest()
        assert found[-1][0] == "ERROR"
        assert found[-1][1]["code"] == 410
        names = [body["metadata"]["name"] for what, body in found[:-1]]
        assert names == [f"m{number}" for number in range(len(names))]


async def test_the_number_of_watches_is_limited(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MAX_WATCHES", 2)
    async with api.watch(f"{CONFIG_MAPS}?watch=true"), api.watch(f"{CONFIG_MAPS}?watch=true"):
        answer = await api.ask("GET", f"{CONFIG_MAPS}?watch=true")
        assert (answer.code, answer.reason, answer.headers["Retry-After"]) == (429, "TooManyRequests", "5")
        assert answer.headers["Connection"] == "close", "it does not also keep a connection"


async def test_a_client_that_goes_away_leaves_nothing(api: ServedStore) -> None:
    async with api.watch(f"{CONFIG_MAPS}?watch=true"):
        assert len(api.server._handlers.watches) == 1
    async with asyncio.timeout(5):
        while len(api.server._handlers.watches):
            await asyncio.sleep(0.01)
