# SPDX-License-Identifier: Apache-2.0
"""Lists: selectors, pages, and the answer if the server no longer has the rest of a list."""

import asyncio

import pytest
from api_server import CONFIG_MAPS, JOBS, TABLE, ServedStore, config_map, generic_job

from trainwright.api import lists
from trainwright.model.job import Body
from trainwright.runtime.ports import JOBS as ALL_JOBS

GENERIC_JOBS = ALL_JOBS["genericjob"]


async def _fill(api: ServedStore, count: int) -> None:
    for number in range(count):
        body = config_map(f"m{number}", number=str(number))
        body["metadata"]["labels"] = {"even": str(number % 2 == 0).lower()}
        await api.make(CONFIG_MAPS, body)


def _names(body: Body) -> list[str]:
    return [one["metadata"]["name"] for one in body["items"]]


async def test_a_list_has_its_kind_and_version(api: ServedStore) -> None:
    await _fill(api, 2)
    body = await api.get(CONFIG_MAPS)
    assert (body["kind"], body["apiVersion"], _names(body)) == ("ConfigMapList", "v1", ["m0", "m1"])
    assert int(body["metadata"]["resourceVersion"]) >= int(body["items"][1]["metadata"]["resourceVersion"])
    assert _names(await api.get("/api/v1/configmaps")) == ["m0", "m1"]
    assert _names(await api.get("/api/v1/namespaces/elsewhere/configmaps")) == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("labelSelector=even%3Dtrue", ["m0", "m2"]),
        ("labelSelector=even+in+%28false%29", ["m1", "m3"]),
        ("fieldSelector=metadata.name%3Dm3", ["m3"]),
        ("fieldSelector=metadata.name%21%3Dm3,metadata.namespace%3Ddefault", ["m0", "m1", "m2"]),
        ("labelSelector=even%3Dtrue&limit=1", ["m0"]),
    ],
)
async def test_selectors(api: ServedStore, query: str, names: list[str]) -> None:
    await _fill(api, 4)
    assert _names(await api.get(f"{CONFIG_MAPS}?{query}")) == names


async def test_pages_show_the_list_as_it_was_when_it_began(api: ServedStore) -> None:
    await _fill(api, 5)
    first = await api.get(f"{CONFIG_MAPS}?limit=2")
    assert (_names(first), first["metadata"]["remainingItemCount"]) == (["m0", "m1"], 3)
    await api.ask("DELETE", f"{CONFIG_MAPS}/m3")
    await api.make(CONFIG_MAPS, config_map("m2b"))
    token = first["metadata"]["continue"]
    second = await api.get(f"{CONFIG_MAPS}?limit=2&continue={token}")
    assert _names(second) == ["m2", "m3"]
    last = await api.get(f"{CONFIG_MAPS}?limit=2&continue={second['metadata']['continue']}")
    assert (_names(last), "continue" in last["metadata"]) == (["m4"], False)
    assert {page["metadata"]["resourceVersion"] for page in (first, second, last)} == {
        first["metadata"]["resourceVersion"]
    }
    # A client that got no answer may ask again.
    assert _names(await api.get(f"{CONFIG_MAPS}?limit=2&continue={token}")) == ["m2", "m3"]


async def test_a_token_belongs_to_its_list(api: ServedStore) -> None:
    await _fill(api, 3)
    token = (await api.get(f"{CONFIG_MAPS}?limit=1"))["metadata"]["continue"]
    other = await api.ask("GET", f"/api/v1/namespaces/default/secrets?continue={token}")
    assert (other.code, other.reason) == (400, "BadRequest")
    unknown = await api.ask("GET", f"{CONFIG_MAPS}?continue=nonsense")
    assert (unknown.code, unknown.reason) == (410, "Expired")


async def test_only_some_unfinished_lists_are_remembered(api: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await _fill(api, 3)
    monkeypatch.setattr(lists, "_MAX_LISTS", 2)
    tokens = [(await api.get(f"{CONFIG_MAPS}?limit=1"))["metadata"]["continue"] for _ in range(3)]
    codes = [(await api.ask("GET", f"{CONFIG_MAPS}?continue={token}")).code for token in tokens]
    assert codes == [410, 200, 200]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("resourceVersionMatch=Perhaps&resourceVersion=1", "resourceVersionMatch"),
        ("resourceVersionMatch=Exact", "resourceVersionMatch"),
        ("sendInitialEvents=true", "sendInitialEvents"),
        ("watch=true&sendInitialEvents=true", "resourceVersionMatch"),
    ],
)
async def test_parameters_that_do_not_fit_together_are_invalid(api: ServedStore, query: str, field: str) -> None:
    answer = await api.ask("GET", f"{CONFIG_MAPS}?{query}")
    assert (answer.code, answer.body["details"]["kind"]) == (422, "ListOptions")
    assert [one["field"] for one in answer.body["details"]["causes"]] == [field]


async def test_a_version_of_the_future_is_not_there_yet(api: ServedStore) -> None:
    for path in (CONFIG_MAPS, f"{CONFIG_MAPS}/any"):
        answer = await api.ask("GET", f"{path}?resourceVersion=999999")
        assert (answer.code, answer.reason) == (504, "Timeout")
        assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    "query",
    ["limit=x", "watch=perhaps", "resourceVersion=x", "fieldSelector=%3D", "labelSelector=%28", "includeObject=All",
     "fieldSelector=spec.color%3Dred"],
)  # fmt: skip
async def test_wrong_parameters_are_refused(api: ServedStore, query: str) -> None:
    answer = await api.ask("GET", f"{CONFIG_MAPS}?{query}", accept=TABLE)
    assert (answer.code, answer.reason) == (400, "BadRequest"), answer.body


async def test_a_large_list_is_sent_in_parts_while_others_are_answered(api: ServedStore) -> None:
    for number in range(1000):
        body = generic_job(f"job-{number:04}")
        api.store.create(GENERIC_JOBS, {**body, "metadata": {**body["metadata"], "namespace": "default"}})
    listed, other = await asyncio.gather(api.get(JOBS), api.get("/version"))
    assert len(listed["items"]) == 1000
    assert listed["items"][999]["kind"] == "GenericJob"
    assert other["gitVersion"]


async def test_a_table_of_a_list(api: ServedStore) -> None:
    await _fill(api, 2)
    table = await api.get(CONFIG_MAPS, accept=TABLE)
    assert (table["kind"], [row["cells"][0] for row in table["rows"]]) == ("Table", ["m0", "m1"])
