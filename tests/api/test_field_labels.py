# SPDX-License-Identifier: Apache-2.0
"""Field selectors: which fields a resource supports, and that the store selects the same objects as an API server."""

from typing import Any

import pytest
from field_cases import REFUSED, SUPPORTED

from trainwright.api.field_labels import check_fields
from trainwright.errors import BadRequestError
from trainwright.local.storage.selectors import compiled
from trainwright.runtime.ports import Selection

JOBS = "genericjobs.batch.tensorstack.dev"


@pytest.mark.parametrize(("resource", "fields"), SUPPORTED.items())
def test_supported_fields(resource: str, fields: list[str]) -> None:
    for name in fields:
        assert check_fields(resource, f"{name}=x")


@pytest.mark.parametrize(("resource", "text", "message"), REFUSED)
def test_other_selectors_are_refused(resource: str, text: str, message: str) -> None:
    with pytest.raises(BadRequestError) as error:
        check_fields(resource, text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("metadata.name=a", "metadata.name=a"),
        ("metadata.name==a", "metadata.name=a"),
        ("metadata.name!=a,", "metadata.name!=a"),
        ("metadata.name=", "metadata.name="),
        ("spec.host=a,status.phase!=Failed", "spec.nodeName=a,status.phase!=Failed"),
        ("spec.hostNetwork=false", "spec.hostNetwork!=true"),
        ("spec.hostNetwork!=false", "spec.hostNetwork=true"),
        ("spec.hostNetwork=true", "spec.hostNetwork=true"),
    ],
)
def test_the_selector_for_the_store(text: str, stored: str) -> None:
    assert check_fields("pods", text) == stored


@pytest.mark.parametrize("text", [r"metadata.name=a\,b", "metadata.name=a=b", r"metadata.name=\\"])
def test_escapes_are_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="are not supported"):
        check_fields(JOBS, text)


def node(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n"}, "spec": spec}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spec.unschedulable=false", [True, False, True]),
        ("spec.unschedulable=true", [False, True, False]),
        ("spec.unschedulable!=true", [True, False, True]),
        ("spec.unschedulable!=false", [False, True, False]),
    ],
)
def test_a_missing_truth_value_is_false(text: str, expected: list[bool]) -> None:
    test = compiled(Selection(fields=check_fields("nodes", text)))
    assert test is not None
    assert [test(one) for one in (node(), node(unschedulable=True), node(unschedulable=False))] == expected


def test_the_source_of_an_event() -> None:
    test = compiled(Selection(fields=check_fields("events", "source=scheduler")))
    assert test is not None
    assert test({"metadata": {}, "source": {"component": "scheduler"}})
    assert not test({"metadata": {}, "source": {"component": "kubelet"}})
