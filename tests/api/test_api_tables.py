# SPDX-License-Identifier: Apache-2.0
"""Tables have the columns and cells that a real API server computes.

`data/tables.json` has tables of kube-apiserver 1.36.4 by resource: the time of the request, and the columns (name,
type, format, priority); for each row the cells, the conditions and the object, without fields that do not matter here.
`data/custom_columns.json` has the same for a CRD whose columns use every JSONPath that we support.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainwright.api.cells import age, duration
from trainwright.api.columns import custom
from trainwright.api.jsonpath import JsonPath
from trainwright.api.resources import SERVED, ServedResource, find
from trainwright.api.table import IncludeObject, TableRenderer
from trainwright.kinds.base import Column
from trainwright.runtime.ports import Resource

DATA = Path(__file__).parent / "data"
REAL: dict[str, Any] = json.loads((DATA / "tables.json").read_text())
CUSTOM: dict[str, Any] = json.loads((DATA / "custom_columns.json").read_text())["things.example.com"]
BY_ID = {served.resource.id: served for served in reversed(SERVED)}
NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
THINGS = ServedResource(
    resource=Resource("example.com", "v1", "things", "Thing"),
    singular="thing",
    verbs=(),
    columns=custom(Column(*column) for column in CUSTOM["columns"]),
    custom=True,
)
PODS = BY_ID["pods"]


def names(row: dict[str, Any]) -> str:
    return str(row["object"]["metadata"]["name"])


@pytest.mark.parametrize("resource", REAL)
def test_columns_are_those_of_a_real_server(resource: str) -> None:
    found = TableRenderer(BY_ID[resource]).definitions
    assert [[one["name"], one["type"], one["format"], one["priority"]] for one in found] == REAL[resource]["columns"]
    assert all(one["description"] for one in found)


@pytest.mark.parametrize(
    ("resource", "row"), [pytest.param(key, row, id=f"{key}/{names(row)}") for key in REAL for row in REAL[key]["rows"]]
)
def test_row_is_that_of_a_real_server(resource: str, row: dict[str, Any]) -> None:
    found = TableRenderer(BY_ID[resource], IncludeObject.NONE).row(
        row["object"], datetime.fromisoformat(REAL[resource]["now"])
    )
    assert found.pop("object") is None
    assert found == {name: row[name] for name in ("cells", "conditions") if name in row}


@pytest.mark.parametrize("row", CUSTOM["rows"], ids=names)
def test_cells_of_custom_resources_are_those_of_a_real_server(row: dict[str, Any]) -> None:
    found = TableRenderer(THINGS).row(row["object"], datetime.fromisoformat(CUSTOM["now"]))
    assert found["cells"] == [names(row), *row["cells"]]


def test_both_versions_of_a_kind_have_the_same_columns() -> None:
    tables = [find("kubeflow.org", version, "tfjobs") for version in ("v1", "v1alpha2")]
    first, second = (TableRenderer(served).definitions for served in tables if served is not None)
    assert first == second


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1.9, "0s"),
        (-0.1, "0s"),
        (0.9, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (121, "2m1s"),
        (599, "9m59s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (10860, "3h1m"),
        (28799, "7h59m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (176400, "2d1h"),
        (691199, "7d23h"),
        (691200, "8d"),
        (63071999, "729d"),
        (63072000, "2y"),
        (63158400, "2y1d"),
        (252287999, "7y364d"),
        (252288000, "8y"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == text


@pytest.mark.parametrize("stamp", [None, "", 5, "yesterday", "0001-99-01T00:00:00Z"])
def test_age_of_what_is_no_time_is_unknown(stamp: object) -> None:
    assert age(stamp, NOW) == "<unknown>"


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_ages_at_the_ends_of_the_calendar_do_not_fail(stamp: str) -> None:
    assert age(stamp, NOW)


# -- the table ---------------------------------------------------------------------------------------------------------


def pod() -> dict[str, Any]:
    return {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}, "status": {}}


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (
            IncludeObject.METADATA,
            {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": pod()["metadata"]},
        ),
        (IncludeObject.OBJECT, {**pod(), "kind": "Pod", "apiVersion": "v1"}),
        (IncludeObject.NONE, None),
    ],
)
def test_row_contains_what_the_request_asks_for(include: IncludeObject, expected: object) -> None:
    assert TableRenderer(PODS, include).row(pod(), NOW)["object"] == expected


def test_table_of_a_list_and_of_later_events_of_a_watch() -> None:
    renderer = TableRenderer(PODS)
    table = renderer.table([pod(), pod()], {"resourceVersion": "7"}, NOW)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["metadata"] == {"resourceVersion": "7"}
    assert table["columnDefinitions"] == renderer.definitions
    assert [row["cells"][0] for row in table["rows"]] == ["p", "p"]
    assert renderer.table([pod()], {}, NOW, definitions=False)["columnDefinitions"] is None
    assert renderer.table([], {}, NOW)["rows"] == []


def test_reviews_have_no_table() -> None:
    assert {one.resource.plural for one in SERVED if not one.has_table} == {
        "selfsubjectreviews",
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
    }
    with pytest.raises(ValueError, match="has no table"):
        TableRenderer(BY_ID["selfsubjectreviews.authentication.k8s.io"])


def test_row_of_a_bookmark_has_empty_cells() -> None:
    """A real server renders a bookmark as the row of an empty object."""
    body = {"metadata": {"resourceVersion": "585", "annotations": {"k8s.io/initial-events-end": "true"}}}
    found = TableRenderer(BY_ID["configmaps"]).row(body, NOW)
    assert found["cells"] == ["", 0, "<unknown>"]
    assert found["object"]["metadata"] == body["metadata"]


@pytest.mark.parametrize(
    ("resource", "body", "column", "cell"),
    [
        # Our own bodies lack what an API server fills in, and their fields are not sorted.
        ("services", {"spec": {"selector": {"b": "2", "a": "1"}}}, "Selector", "a=1,b=2"),
        ("services", {"spec": {}}, "Type", "ClusterIP"),
        ("services", {"spec": {"clusterIP": "None"}}, "Cluster-IP", "None"),
        ("services", {"spec": {"ports": [{"port": 80}]}}, "Port(s)", "80/TCP"),
        ("secrets", {}, "Type", "Opaque"),
        ("pods", {"status": {"podIP": "10.0.0.1"}}, "IP", "10.0.0.1"),
        ("podgroups.scheduler.tensorstack.dev", {"spec": {"minMember": 4}}, "Min Member", 4),
        ("podgroups.scheduler.tensorstack.dev", {"spec": {"queue": "q"}}, "Queue", "q"),
        ("queues.scheduler.tensorstack.dev", {"spec": {"priority": 7}}, "Priority", 7),
        ("queues.scheduler.tensorstack.dev", {"spec": {"closed": False}}, "Closed", False),
        ("queues.scheduler.tensorstack.dev", {"spec": {}}, "Preemptible", None),
        ("queues.scheduler.tensorstack.dev", {"spec": {"quota": {"requests": {"cpu": "4"}}}}, "CPU", "4"),
        ("queues.scheduler.tensorstack.dev", {"spec": {"quota": {"requests": {"memory": "8Gi"}}}}, "Memory", "8Gi"),
        ("queues.scheduler.tensorstack.dev", {"spec": {"maxDuration": "1d"}}, "Max Duration", "1d"),
    ],
)
def test_cell_of_a_body_without_the_fields_that_a_real_server_adds(
    resource: str, body: dict[str, Any], column: str, cell: object
) -> None:
    renderer = TableRenderer(BY_ID[resource])
    cells = dict(zip((one["name"] for one in renderer.definitions), renderer.row(body, NOW)["cells"], strict=True))
    assert cells[column] == cell


WRONG = ["text", 7, None, True, [], [1, None, "x", []], {}, {"x": 1}, [{"state": [], "name": [], "type": {}}]]
FIELDS = {
    "metadata": ["name", "creationTimestamp", "deletionTimestamp", "labels", "annotations"],
    "spec": [
        "containers",
        "initContainers",
        "readinessGates",
        "nodeName",
        "ports",
        "selector",
        "externalIPs",
        "clusterIPs",
        "type",
        "accessModes",
        "volumeName",
    ],
    "status": [
        "phase",
        "reason",
        "conditions",
        "containerStatuses",
        "initContainerStatuses",
        "podIPs",
        "addresses",
        "nodeInfo",
        "capacity",
        "loadBalancer",
    ],
    "involvedObject": ["kind", "name"],
    "series": ["count", "lastObservedTime"],
    "source": ["component"],
}


@pytest.mark.parametrize("served", [one for one in SERVED if one.has_table], ids=lambda one: one.resource.id)
def test_no_shape_of_an_object_makes_a_row_fail(served: ServedResource) -> None:
    renderer = TableRenderer(served)
    for wrong in WRONG:
        bodies: list[dict[str, Any]] = [{group: wrong} for group in FIELDS]
        bodies += [{group: {field: wrong}} for group, fields in FIELDS.items() for field in fields]
        for body in bodies:
            cells = renderer.row(body, NOW)["cells"]
            assert len(cells) == len(renderer.definitions)
            msgspec.json.encode(cells)


@pytest.mark.parametrize("path", ["status", ".status[", ".a[?(@.b!='c')]", ".a..b", "{.a}"])
def test_path_that_is_not_supported_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="unsupported syntax"):
        JsonPath(path)
