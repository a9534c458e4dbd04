# SPDX-License-Identifier: Apache-2.0
"""Our Kubernetes API and a real API server give the same answers to the same requests, apart from listed differences.

Both servers get the requests of `cluster_requests`. What must differ in every run (UIDs, times, versions) is replaced;
the rest of each answer is compared: code, content type, warnings and the whole body. `cluster_differences` lists what
may differ, and an entry that fits nothing any more fails too.
"""

import asyncio
import secrets
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import aiohttp
import pytest
from api_server import served
from cluster_asks import Body, Scenario
from cluster_compare import Asker, Difference, differences
from cluster_differences import INTENDED, Intended, explained
from cluster_install import install_crds
from cluster_plane import ControlPlane
from cluster_requests import SCENARIOS

#: So many scenarios are played at the same time.
_TOGETHER = 6
Answers: TypeAlias = dict[str, tuple[Body, Body]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """The answers of both servers to all requests, by `scenario/request`: the real server's and ours.

    The control plane has no controllers, since they would change objects at any time.
    """
    folder = tmp_path_factory.mktemp("api")
    with ControlPlane(folder, controllers=False, scheduler=False, first=install_crds) as plane:
        yield asyncio.run(_play_all(plane, folder))


async def _play_all(plane: ControlPlane, folder: Path) -> Answers:
    tls = ssl.create_default_context(cafile=str(plane.authority))
    token = {"Authorization": f"Bearer {plane.tokens['admin']}"}
    connector = aiohttp.TCPConnector(ssl=tls)
    async with (
        served(folder, journal=True) as ours,
        aiohttp.ClientSession(plane.server, headers=token, connector=connector) as to_real,
        aiohttp.ClientSession(ours.server.url, headers={"Authorization": "Bearer admin"}) as to_ours,
    ):
        run, free = f"r{secrets.token_hex(3)}", asyncio.Semaphore(_TOGETHER)
        askers = Asker(to_real, run), Asker(to_ours, run)

        async def play(one: Scenario) -> Answers:
            async with free:
                real, own = await asyncio.gather(*(asker.play(one) for asker in askers))
            return {f"{one.name}/{ask.name}": (real[ask.name], own[ask.name]) for ask in one.asks}

        found: Answers = {}
        for part in await asyncio.gather(*map(play, SCENARIOS)):
            found |= part
        return found


def _differences(answers: Answers, scenario: str = "") -> Iterator[Difference]:
    for request, (real, ours) in answers.items():
        if not scenario or request.startswith(f"{scenario}/"):
            yield from differences(request, real, ours)


def test_there_are_many_requests() -> None:
    assert sum(len(one.asks) for one in SCENARIOS) > 1000
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS)


@pytest.mark.parametrize("scenario", [one.name for one in SCENARIOS])
def test_the_answers_are_those_of_a_real_server(answers: Answers, scenario: str) -> None:
    found = [one for one in _differences(answers, scenario) if explained(one) is None]
    lines = [f"{one.request}: {one.path}\n    real: {one.real!r:.300}\n    ours: {one.ours!r:.300}" for one in found]
    assert not found, "\n".join(lines)


def test_both_servers_answer_at_all(answers: Answers) -> None:
    for request, (real, ours) in answers.items():
        assert real["code"], request
        assert ours["code"], request


@pytest.mark.parametrize("entry", INTENDED, ids=lambda one: one.what[:60])
def test_a_listed_difference_still_exists(answers: Answers, entry: Intended) -> None:
    assert any(explained(one) is entry for one in _differences(answers)), entry.what


def test_each_pattern_of_a_listed_difference_fits_a_request(answers: Answers) -> None:
    """An entry for a request that nobody sends would hide a later difference."""
    for entry in INTENDED:
        for pattern in entry.requests:
            only = Intended(entry.what, entry.why, (pattern,), entry.paths)
            assert any(only.fits(one) for one in _differences(answers)), (entry.what, pattern)
