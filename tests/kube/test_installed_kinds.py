# SPDX-License-Identifier: Apache-2.0
"""An operator on a cluster that lacks the definitions of some kinds, as a process against the store behind HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from kube_store import api, status
from test_kube_operator import Operator, another_ones, operator, until

from patience import PATIENCE
from trainwright.kinds.base import Kind
from trainwright.kinds.jaxjob import JAXJOB
from trainwright.kinds.registry import KINDS
from trainwright.kinds.xgboostjob import XGBOOSTJOB

LEFT_OUT = "the operator leaves out kinds whose definitions it cannot use"
STARTS_AGAIN = "the operator starts again, because new kinds are installed"
#: Search for new kinds without a pause worth mentioning, and do not wait for a lease.
SOON = ("--new-kinds-period=50ms", "--no-leader-elect")


def managed(one: Operator, kind: Kind) -> Callable[[], Awaitable[bool]]:
    """Whether its metrics say that it manages the kind."""

    async def there() -> bool:
        return f'trainwright_kind_managed{{kind="{kind.id}"}} 1.0' in (await one.says("/metrics"))[1]

    return there


def is_ready(one: Operator) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return (await one.says("/readyz"))[0] == 200

    return ready


def forbidding(*kinds: Kind) -> Callable[[web.Request], Awaitable[web.Response | None]]:
    """The role of the version before: it names the definitions that the operator may read."""
    names = {f"{kind.plural}.{kind.group}" for kind in kinds}

    async def before(request: web.Request) -> web.Response | None:
        return status(403, "Forbidden", "you may not") if request.path.rpartition("/")[2] in names else None

    return before


async def test_kinds_that_are_not_installed_are_left_out_and_told_once(tmp_path: Path) -> None:
    async with api() as server:
        for kind in (JAXJOB, XGBOOSTJOB):
            server.uninstall(kind)
        async with operator(tmp_path, server.address, *SOON) as one:
            server.submit("train")
            await until(lambda: server.phase("train") == "Succeeded", "the job succeeds")
            await until(lambda: server.asked.count(f"GET {_path(JAXJOB)}") > 3, "it searches for the kind")
            metrics, ready = (await one.get("/metrics"))[1], (await one.get("/readyz"))[0]
            assert (await one.end())[0] == 0

    (line,) = [line for line in one.log.splitlines() if LEFT_OUT in line]
    assert "level=warning" in line
    assert "kinds=xgboostjob,jaxjob" in line
    assert "`trainwright crds xgboostjob jaxjob | kubectl apply --server-side -f -`" in line
    assert ready == 200
    told = [line for line in metrics.splitlines() if line.startswith("trainwright_kind_managed")]
    expected = {kind.id: float(kind.id not in (JAXJOB.id, XGBOOSTJOB.id)) for kind in KINDS}
    assert sorted(told) == sorted(f'trainwright_kind_managed{{kind="{id_}"}} {one}' for id_, one in expected.items())
    assert not [word for word in server.asked if "jaxjobs" in word and "customresourcedefinitions" not in word]


def _path(kind: Kind) -> str:
    return f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind.plural}.{kind.group}"


async def test_a_kind_is_managed_once_it_is_installed(tmp_path: Path) -> None:
    async with api() as server:
        server.uninstall(JAXJOB)
        async with operator(tmp_path, server.address, *SOON) as one:
            await until(is_ready(one), "it is ready")
            server.submit("before")
            await until(lambda: server.phase("before") == "Succeeded", "the job succeeds")
            server.install([JAXJOB])
            await until(managed(one, JAXJOB), "it manages the new kind")
            await until(is_ready(one), "it is ready again")
            server.submit("after")
            await until(lambda: server.phase("after") == "Succeeded", "the job succeeds")
            assert (await one.end())[0] == 0

    assert one.log.count(STARTS_AGAIN) == 1
    assert any("/jaxjobs" in word and "customresourcedefinitions" not in word for word in server.asked)


async def test_a_kind_is_managed_once_the_role_allows_it(tmp_path: Path) -> None:
    async with api() as server:
        server.before = forbidding(JAXJOB)
        async with operator(tmp_path, server.address, *SOON) as one:
            await until(is_ready(one), "it is ready")
            assert f"{JAXJOB.plural}.{JAXJOB.group}: you may not" in one.log
            server.before = forbidding()
            await until(managed(one, JAXJOB), "it manages the new kind")
            assert (await one.end())[0] == 0


async def test_the_lease_is_released_before_it_starts_again(tmp_path: Path) -> None:
    async with api() as server:
        server.uninstall(JAXJOB)
        async with operator(tmp_path, server.address, "--new-kinds-period=50ms") as one:
            await until(lambda: "this operator leads" in one.log, "it leads")
            server.install([JAXJOB])
            await until(lambda: one.log.count("this operator leads") == 2, "it leads again")
            assert (await one.end())[0] == 0

    first, second = (one.log.index(text) for text in (STARTS_AGAIN, "the lease is released"))
    assert first < second < one.log.rindex("this operator leads")


async def test_a_definition_of_another_owner_does_not_stop_an_operator_that_runs(tmp_path: Path) -> None:
    async with api() as server:
        server.uninstall(JAXJOB)
        async with operator(tmp_path, server.address, *SOON) as one:
            await until(is_ready(one), "it is ready")
            another_ones(server, [JAXJOB])
            await until(lambda: "the operator still leaves out a kind" in one.log, "it says so")
            server.submit("train")
            await until(lambda: server.phase("train") == "Succeeded", "the job succeeds")
            assert (await one.end())[0] == 0

    assert one.log.count("the operator still leaves out a kind") == 1
    assert STARTS_AGAIN not in one.log


async def test_a_kind_of_another_operator_is_left_out_until_its_definition_is_ours(tmp_path: Path) -> None:
    async with api() as server:
        another_ones(server, [JAXJOB])
        async with operator(tmp_path, server.address, *SOON) as one:
            server.submit("train")
            await until(lambda: server.phase("train") == "Succeeded", "the job of our kind succeeds")
            assert not [word for word in server.asked if "jaxjobs" in word and "customresourcedefinitions" not in word]
            server.uninstall(JAXJOB)
            server.install([JAXJOB])
            await until(managed(one, JAXJOB), "it manages the kind")
            assert (await one.end())[0] == 0

    (line,) = [line for line in one.log.splitlines() if LEFT_OUT in line]
    assert "kinds=jaxjob causes=" in line
    assert "belongs to another operator" in line
    assert " install=" not in line  # whoever replaces a definition must first stop the other operator


async def test_a_kind_of_another_operator_that_the_user_names_is_refused(tmp_path: Path) -> None:
    async with api() as server:
        another_ones(server, [JAXJOB])
        async with operator(tmp_path, server.address, "--kinds=tfjob,jaxjob") as one:
            assert await asyncio.wait_for(one.process.wait(), PATIENCE) == 2

    assert "jaxjobs.kubeflow.org belongs to another operator" in one.log


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--kinds=jaxjob",), 2, "not installed: jaxjobs.kubeflow.org; `trainwright crds jaxjob | kubectl"),
        (("--kinds=tfjob,jaxjob",), 2, "not installed: jaxjobs.kubeflow.org"),
    ],
)
async def test_a_kind_that_the_user_names_must_be_installed(
    tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    async with api() as server:
        server.uninstall(JAXJOB)
        async with operator(tmp_path, server.address, *words) as one:
            assert await asyncio.wait_for(one.process.wait(), PATIENCE) == code

    (line,) = [line for line in one.log.splitlines() if line.startswith("trainwright: ")]
    assert told in line
