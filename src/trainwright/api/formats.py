# SPDX-License-Identifier: Apache-2.0
"""The forms in which objects are sent: whole, as rows of a Table (kubectl get), or only their metadata.

The client names the forms that it accepts in the header Accept; the first one that the server knows is used.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from trainwright.api.resources import ServedResource
from trainwright.api.table import IncludeObject, TableRenderer
from trainwright.errors import BadRequestError, NotAcceptableError
from trainwright.model.job import Body

_META_GROUP, _META_VERSIONS = "meta.k8s.io", ("v1", "v1beta1")
_TABLE, _METADATA = "Table", ("PartialObjectMetadata", "PartialObjectMetadataList")
_encode = msgspec.json.Encoder().encode


class Form(Struct, frozen=True):
    """One form: `kind` is Table, PartialObjectMetadata, PartialObjectMetadataList, or empty for whole objects."""

    kind: str = ""
    version: str = "v1"
    #: What a row of a Table has besides its cells.
    include: IncludeObject = IncludeObject.METADATA


WHOLE = Form()


def choose(accept: str, query: Mapping[str, str]) -> Form:
    """The first form of the header that the server knows. Raises NotAcceptableError if there is none."""
    for one in accept.split(",") if accept.strip() else ["*/*"]:
        media, *parameters = [part.strip() for part in one.split(";")]
        named = dict(part.partition("=")[::2] for part in parameters)
        if media not in ("application/json", "*/*"):
            continue
        kind = named.get("as", "")
        if not kind:
            return WHOLE
        if named.get("g") == _META_GROUP and named.get("v") in _META_VERSIONS:
            if kind == _TABLE:
                return Form(_TABLE, named["v"], _include(query))
            if kind in _METADATA:
                return Form(kind, named["v"])
    raise NotAcceptableError("only the following media types are accepted: application/json")


def _include(query: Mapping[str, str]) -> IncludeObject:
    given = query.get("includeObject", "") or IncludeObject.METADATA
    if given not in tuple(IncludeObject):
        raise BadRequestError(f"includeObject: found {given!r}, expected {', '.join(IncludeObject)}")
    return IncludeObject(given)


def check_form(form: Form, served: ServedResource, *, is_list: bool) -> None:
    """Raise NotAcceptableError if the client wants the metadata of one object for a list, or the reverse."""
    if form.kind in _METADATA and (form.kind == _METADATA[1]) != is_list:
        what = f"a list ({served.list_kind})" if is_list else f"not a list ({served.resource.kind})"
        raise NotAcceptableError(f"you requested {form.kind}, but the requested object is {what}")


class ObjectFormat:
    """Encodes the objects of one resource in one form."""

    def __init__(self, served: ServedResource, form: Form) -> None:
        self._served, self.form = served, form
        self._api_version = served.resource.api_version
        #: Equal for formats that encode an object in the same way.
        self.key = (self._api_version, served.resource.plural, form)
        self._table = TableRenderer(served, form.include, form.version) if form.kind == _TABLE else None

    def shown(self, body: Body) -> Body:
        """The object in the version of the request. All versions of a kind have the same fields."""
        api_version, kind = self._api_version, self._served.resource.kind
        if body.get("apiVersion") == api_version and body.get("kind") == kind:
            return body
        return {"apiVersion": api_version, "kind": kind, **{k: v for k, v in body.items() if k not in _TYPE}}

    def one(self, body: Body, now: datetime) -> bytes:
        """One object: itself, its metadata, or a Table with one row."""
        if self._table is not None:
            version = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
            return _encode(self._table.table([self.shown(body)], version, now))
        return _encode(self._item(body))

    def items(self, bodies: Iterable[Body], now: datetime) -> Iterator[bytes]:
        """The encoded objects of a list, or its rows. As on an API server, only custom objects repeat their kind."""
        for body in bodies:
            if self._table is not None:
                yield _encode(self._table.row(self.shown(body), now))
            elif self.form.kind or self._served.custom:
                yield _encode(self._item(body))
            else:
                yield _encode({name: part for name, part in body.items() if name not in _TYPE})

    def head(self, metadata: Body) -> tuple[bytes, bytes]:
        """What comes before and after the objects of a list, or the rows of a Table."""
        if self._table is not None:
            return _encode(self._table.head(metadata))[:-1] + b',"rows":[', b"]}\n"
        kind, api_version = self._served.list_kind, self._api_version
        if self.form.kind:
            kind, api_version = _METADATA[1], f"{_META_GROUP}/{self.form.version}"
        elif self._served.custom:
            metadata = {"continue": "", **metadata}
        start = _encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})
        return start[:-1] + b',"items":[', b"]}\n"

    def event(self, what: str, body: Body, now: datetime, *, is_first: bool) -> bytes:
        """One event of a watch. Only the first Table of a watch has the definitions of the columns."""
        content: Body
        if self._table is None:
            content = self._item(body)
        else:
            version = {"resourceVersion": body["metadata"].get("resourceVersion", "")}
            content = self._table.table([self.shown(body)], version, now, definitions=is_first)
        return _encode({"type": what, "object": content}) + b"\n"

    @property
    def is_table(self) -> bool:
        """Whether the form is a Table. Then the cells depend on the time."""
        return self._table is not None

    def bookmark(self, version: str, now: datetime, *, is_first: bool, initial_events_end: bool = False) -> bytes:
        """A bookmark: a watch that has reached this version. In a Table it is a row without content."""
        metadata: Body = {"resourceVersion": version}
        if initial_events_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind, api_version = self._served.resource.kind, self._api_version
        return self.event(
            "BOOKMARK", {"kind": kind, "apiVersion": api_version, "metadata": metadata}, now, is_first=is_first
        )

    def _item(self, body: Body) -> Any:
        if self.form.kind:
            api_version = f"{_META_GROUP}/{self.form.version}"
            return {"kind": _METADATA[0], "apiVersion": api_version, "metadata": body["metadata"]}
        return self.shown(body)


_TYPE = ("apiVersion", "kind")
