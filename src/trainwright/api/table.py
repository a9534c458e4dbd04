# SPDX-License-Identifier: Apache-2.0
"""Renders the tables that `kubectl get` prints: the server computes all cells, and kubectl only aligns them.

A table is the answer to a get, a list or a watch whose client accepts `as=Table`. In the table of a list each row also
has the object or its metadata, from which kubectl takes namespaces and labels.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from msgspec import UNSET

from trainwright.api.cells import CELLS, Cells, duration, name_of
from trainwright.api.columns import PrinterColumn
from trainwright.api.jsonpath import JsonPath, printed
from trainwright.api.pod_cells import pod_cells
from trainwright.api.resources import ServedResource
from trainwright.model.job import Body
from trainwright.model.units import Time, parse_time
from trainwright.runtime.ports import PODS

_GROUP = "meta.k8s.io"
_UNKNOWN, _INVALID = "<unknown>", "<invalid>"
#: A float that no 64-bit integer can hold is printed as this integer, as on the real server.
_SMALLEST_INTEGER = -(2**63)
#: The conditions of the rows of pods that have ended, by phase. kubectl hides such rows if it is asked to.
_ROW_CONDITIONS = {
    phase: [{"type": "Completed", "status": "True", "reason": phase, "message": message}]
    for phase, message in (("Succeeded", "The pod has completed successfully."), ("Failed", "The pod failed."))
}


class IncludeObject(StrEnum):
    """What a row contains besides its cells: the parameter `includeObject` of a request."""

    METADATA = "Metadata"
    OBJECT = "Object"
    NONE = "None"


class TableRenderer:
    """Renders objects of one resource. Objects may have any shape: a missing value makes an empty cell.

    Raises ValueError if the resource has no table.
    """

    def __init__(
        self, served: ServedResource, include: IncludeObject = IncludeObject.METADATA, version: str = "v1"
    ) -> None:
        if not served.has_table:
            raise ValueError(f"{served.resource.id} has no table")
        self._served, self._include = served, include
        self._api_version = f"{_GROUP}/{version}"
        self._cells = _cells_of(served)
        self._has_conditions = served.resource.id == PODS.id
        self.definitions: list[Body] = [column.definition() for column in served.columns]

    def row(self, body: Body, now: Time) -> Body:
        """The row of an object. The row shares parts with `body`, so nobody may change it."""
        row: Body = {"cells": self._cells(body, now)}
        if self._has_conditions and (conditions := _row_conditions(body)) is not None:
            row["conditions"] = conditions
        row["object"] = self._object(body)
        return row

    def head(self, metadata: Body, *, definitions: bool = True) -> Body:
        """A table without its rows. `metadata` is that of the list, or the resourceVersion of a single object.

        In a watch only the first table has definitions.
        """
        return {
            "kind": "Table",
            "apiVersion": self._api_version,
            "metadata": metadata,
            "columnDefinitions": self.definitions if definitions else None,
        }

    def table(self, bodies: Iterable[Body], metadata: Body, now: Time, *, definitions: bool = True) -> Body:
        """The table of some objects."""
        return {**self.head(metadata, definitions=definitions), "rows": [self.row(body, now) for body in bodies]}

    def _object(self, body: Body) -> Body | None:
        if self._include is IncludeObject.NONE:
            return None
        if self._include is IncludeObject.METADATA:
            metadata = body.get("metadata") or {}
            return {"kind": "PartialObjectMetadata", "apiVersion": self._api_version, "metadata": metadata}
        resource = self._served.resource
        return {**body, "kind": resource.kind, "apiVersion": resource.api_version}


def _row_conditions(body: Body) -> list[Body] | None:
    status = body.get("status")
    phase = status.get("phase") if isinstance(status, dict) else None
    return _ROW_CONDITIONS.get(phase) if isinstance(phase, str) else None


def _cells_of(served: ServedResource) -> Cells:
    """The function for the cells of a resource. A custom resource has a path for each column but the name."""
    if served.resource.id == PODS.id:
        return pod_cells
    if not served.custom:
        return CELLS[served.resource.id]
    cells = [_cell_of(column) for column in served.columns[1:]]
    return lambda body, now: [name_of(body), *(cell(body, now) for cell in cells)]


def _cell_of(column: PrinterColumn) -> Callable[[Body, Time], Any]:
    """The function for one cell of a custom resource. A cell without a value is None; kubectl shows nothing."""
    path, convert = JsonPath(column.path), _CONVERSIONS[column.type]

    def cell(body: Body, now: Time) -> Any:
        value = path.first(body)
        return None if value is UNSET else convert(value, now)

    return cell


def _integer(value: Any, _: Time) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if -(2.0**63) <= value < 2.0**63 else _SMALLEST_INTEGER


def _number(value: Any, _: Time) -> int | float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def _date(value: Any, now: Time) -> str | None:
    """The time since a date. Unlike `parse_time`, the real server accepts only RFC 3339, with a time and a zone."""
    if not isinstance(value, str):
        return None
    if value in ("", "null"):
        return _UNKNOWN
    time = parse_time(value) if "T" in value else None
    return _INVALID if time is None else duration((now - time).total_seconds())


#: How the value of a cell is made from the value at the path, by the type of the column.
_CONVERSIONS: dict[str, Callable[[Any, Time], Any]] = {
    "string": lambda value, _: printed(value),
    "integer": _integer,
    "number": _number,
    "boolean": lambda value, _: value if isinstance(value, bool) else None,
    "date": _date,
}
