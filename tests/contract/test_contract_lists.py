# SPDX-License-Identifier: Apache-2.0
"""What every engine lists: namespaces, label and field selectors, versions."""

import pytest
from contract_objects import HERE, ONE, PODS_WHOLE, SPACE, TWO, key, names, pod, secret, version

from trainwright.errors import ApiError, UnavailableError
from trainwright.runtime.ports import SECRETS, Cluster, Selection

pytest_plugins = ("contract_engines",)


async def test_a_list_is_in_the_order_of_names(cluster: Cluster) -> None:
    for name in ("b", "c", "a"):
        await cluster.create(SECRETS, secret(name))
    assert await names(cluster, SECRETS) == ["a", "b", "c"]


async def test_a_namespace_is_listed_alone(cluster: Cluster) -> None:
    await cluster.create(SECRETS, secret("a"))
    assert (await cluster.list(SECRETS, Selection(namespace="elsewhere"))).items == ()
    assert len((await cluster.list(SECRETS, HERE)).items) == 1


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", "abcd"),
        ("tier=web", "ab"),
        ("tier==web", "ab"),
        ("tier!=web", "cd"),
        ("tier in (web, db)", "abc"),
        ("tier in (db)", "c"),
        ("tier notin (web)", "cd"),
        ("tier", "abc"),
        ("!tier", "d"),
        ("tier=web,example.com/gpu", "b"),
        ("tier,!example.com/gpu", "ac"),
        ("example.com/gpu in (yes,no),tier!=db", "b"),
        ("tier=", ""),
        ("example.com/empty=", "d"),
    ],
)
async def test_labels_select(cluster: Cluster, selector: str, expected: str) -> None:
    labels = {
        "a": {"tier": "web"},
        "b": {"tier": "web", "example.com/gpu": "yes"},
        "c": {"tier": "db"},
        "d": {"example.com/empty": ""},
    }
    for name, has in labels.items():
        await cluster.create(SECRETS, secret(name, labels=has))
    assert "".join(await names(cluster, SECRETS, labels=selector)) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=one", ["on-one"]),
        ("spec.nodeName!=one", ["nowhere", "on-two"]),
        ("spec.nodeName=", ["nowhere"]),
        ("metadata.name=on-two", ["on-two"]),
        ("status.phase=Pending,spec.nodeName=two", ["on-two"]),
        ("status.phase==Running", []),
        pytest.param(f"metadata.namespace={SPACE}", ["nowhere", "on-one", "on-two"], id="namespace"),
    ],
)
async def test_fields_select(cluster: Cluster, selector: str, expected: list[str]) -> None:
    for name, node in (("on-one", "one"), ("on-two", "two"), ("nowhere", "")):
        await cluster.create(PODS_WHOLE, pod(name, node=node))
    assert await names(cluster, PODS_WHOLE, fields=selector) == expected


@pytest.mark.parametrize(
    "scope",
    [
        Selection(labels="a=b=c"),
        Selection(labels="a in b"),
        Selection(labels="a in (b"),
        Selection(labels="=b"),
        Selection(labels="a,,b"),
        Selection(fields="spec.nodeName"),
        Selection(fields="a=b=c"),
    ],
    ids=lambda scope: scope.labels or scope.fields,
)
async def test_a_selector_that_cannot_be_read_is_refused(cluster: Cluster, scope: Selection) -> None:
    with pytest.raises(ApiError):
        await cluster.list(PODS_WHOLE, scope)


async def test_a_list_is_as_new_as_asked(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a"))
    page = await cluster.list(SECRETS, HERE, not_older_than=version(made))
    assert page.items == (made,)
    assert int(page.version) >= int(version(made))


async def test_a_list_newer_than_anything_is_not_there_yet(cluster: Cluster) -> None:
    page = await cluster.list(SECRETS, HERE)
    with pytest.raises(UnavailableError):
        await cluster.list(SECRETS, HERE, not_older_than=str(int(page.version) + 1_000_000))


async def test_a_list_is_not_changed_by_what_comes_after(cluster: Cluster) -> None:
    made = await cluster.create(SECRETS, secret("a"))
    page = await cluster.list(SECRETS, HERE)
    await cluster.patch(SECRETS, key("a"), {"data": {"a": TWO}, "metadata": {"labels": {"x": "y"}}})
    assert page.items == (made,)
    assert made["data"] == {"a": ONE}
