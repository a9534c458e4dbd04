# SPDX-License-Identifier: Apache-2.0
"""Which gang APIs there are, and whether the scheduler that the operator is told is one of them."""

from typing import Any

import pytest

from trainwright.errors import ForbiddenError, NotFoundError, UsageError
from trainwright.kinds.gangs import PLUGINS_API, T9K_API, VOLCANO_API
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.registry import KINDS
from trainwright.kinds.tfjob import TFJOB
from trainwright.kube.operator import check_gang_scheduler, installed_pod_groups
from trainwright.runtime.ports import EVERYTHING, ListPage, Resource, Selection

APIS = (T9K_API, VOLCANO_API, PLUGINS_API)


class FakeApiServer:
    """An API server that has these APIs, and remembers what it was asked."""

    def __init__(self, *apis: str, error: type[Exception] = NotFoundError) -> None:
        self._apis, self._error = apis, error
        self.asked: list[tuple[str, str]] = []

    async def list(self, resource: Resource, scope: Selection = EVERYTHING, **_: Any) -> ListPage:
        self.asked.append((resource.id, scope.namespace))
        if resource.api_version not in self._apis:
            raise self._error("no")
        return ListPage((), "1")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody should ask for {name}")


@pytest.mark.parametrize("there", [(), (VOLCANO_API,), (T9K_API, PLUGINS_API), APIS], ids=len)
async def test_every_api_is_asked_for_and_none_is_assumed(there: tuple[str, ...]) -> None:
    server = FakeApiServer(*there)

    found = await installed_pod_groups(server, KINDS, "")

    assert {resource.api_version for resource in found} == set(there)
    assert {(resource.plural, resource.kind) for resource in found} <= {("podgroups", "PodGroup")}
    assert sorted(server.asked) == sorted((f"podgroups.{api.partition('/')[0]}", "default") for api in APIS)


async def test_only_gangs_of_the_kinds_that_are_looked_after_in_their_namespace() -> None:
    server = FakeApiServer(*APIS)

    assert [resource.api_version for resource in await installed_pod_groups(server, [GENERICJOB], "there")] == [T9K_API]
    assert server.asked == [("podgroups.scheduler.tensorstack.dev", "there")]


async def test_an_api_that_may_not_be_asked_for_is_not_taken_for_absent() -> None:
    with pytest.raises(ForbiddenError):
        await installed_pod_groups(FakeApiServer(error=ForbiddenError), KINDS, "")


@pytest.mark.parametrize(
    ("word", "found", "said"),
    [
        ("volcano", (), f"--gang-scheduler-name volcano: it needs PodGroups of {VOLCANO_API}, which are not installed"),
        ("Volcano", (PLUGINS_API,), f"Volcano: it needs PodGroups of {VOLCANO_API}, which are not installed"),
        ("volcanoo", (VOLCANO_API,), f"{PLUGINS_API}, which are not installed; found volcano ({VOLCANO_API})"),
    ],
)
def test_a_scheduler_that_is_not_there_is_a_mistake(word: str, found: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_gang_scheduler(KINDS, word, found)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "found"),
    [("", ()), ("volcano", (VOLCANO_API,)), ("mine", (PLUGINS_API,)), ("t9k-scheduler", (T9K_API,))],
)
def test_one_that_is_there_or_is_not_asked_for_is_none(word: str, found: tuple[str, ...]) -> None:
    check_gang_scheduler([TFJOB], word, found)


def test_kinds_that_leave_nothing_to_the_operator_do_not_care() -> None:
    check_gang_scheduler([GENERICJOB], "volcano", ())
