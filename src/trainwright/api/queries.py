# SPDX-License-Identifier: Apache-2.0
"""The query parameters of requests. A wrong value raises BadRequestError: what was found, and what was expected."""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, json

from trainwright.errors import BadRequestError, ErrorCause, FieldError
from trainwright.runtime.ports import Selection

_TRUE, _FALSE = ("true", "1", "t"), ("false", "0", "f", "")
_NUMBER = re.compile(r"-?[0-9]{1,12}")
_META_GROUP, _MATCH = "meta.k8s.io", "resourceVersionMatch"
EXACT, NOT_OLDER_THAN = "Exact", "NotOlderThan"
_MAX_MANAGER_BYTES, _MAX_DIGITS = 128, 20
_FORCE = "Forbidden: may not be specified for non-apply patch"
FIELD_VALIDATIONS = ("Strict", "Warn", "Ignore")


class ListOptions(Struct, frozen=True, kw_only=True):
    """The parameters of a list or a watch."""

    scope: Selection
    limit: int = 0
    continue_token: str = ""
    watch: bool = False
    version: str = ""
    version_match: str = ""
    bookmarks: bool = False
    initial_events: bool | None = None
    timeout: float | None = None


class WriteOptions(Struct, frozen=True, kw_only=True):
    """The parameters of a write."""

    dry_run: bool = False
    field_validation: str = "Warn"


def list_options(query: Mapping[str, str], namespace: str) -> ListOptions:
    """The parameters of a list or a watch in one namespace; empty: in all namespaces."""
    timeout = number(query, "timeoutSeconds")
    initial_events = truth(query, "sendInitialEvents") if "sendInitialEvents" in query else None
    options = ListOptions(
        scope=Selection(namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")),
        limit=number(query, "limit") or 0,
        continue_token=query.get("continue", ""),
        watch=truth(query, "watch"),
        version=version(query),
        version_match=query.get("resourceVersionMatch", ""),
        bookmarks=truth(query, "allowWatchBookmarks"),
        initial_events=initial_events,
        timeout=float(timeout) if timeout is not None else None,
    )
    _check_versions(options)
    return options


def version(query: Mapping[str, str]) -> str:
    """The version that the answer must have reached; empty if any version will do."""
    text = query.get("resourceVersion", "")
    if text and (not text.isdecimal() or len(text) > _MAX_DIGITS):
        raise BadRequestError(f"resourceVersion: found {text!r}, expected a number")
    return text


def _check_versions(options: ListOptions) -> None:
    found = [*(_watch_causes if options.watch else _list_causes)(options)]
    if found:
        raise FieldError(found, about=(_META_GROUP, "ListOptions"))


def _list_causes(options: ListOptions) -> Iterator[ErrorCause]:
    """What is wrong with the parameters of a list, in the words of an API server."""
    if options.version_match:
        if not options.version:
            yield _forbidden_match("resourceVersionMatch is forbidden unless resourceVersion is provided")
        if options.continue_token:
            yield _forbidden_match("resourceVersionMatch is forbidden when continue is provided")
        if options.version_match not in (EXACT, NOT_OLDER_THAN):
            yield unsupported(_MATCH, f'"{options.version_match}"', EXACT, NOT_OLDER_THAN, "")
        if (options.version_match, options.version) == (EXACT, "0"):
            yield _forbidden_match('resourceVersionMatch "exact" is forbidden for resourceVersion "0"')
    if options.initial_events is not None:
        text = "Forbidden: sendInitialEvents is forbidden for list"
        yield ErrorCause("FieldValueForbidden", text, "sendInitialEvents")


def _watch_causes(options: ListOptions) -> Iterator[ErrorCause]:
    """What is wrong with the parameters of a watch, in the words of an API server."""
    if options.initial_events is not None and options.version_match != NOT_OLDER_THAN:
        yield _forbidden_match("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if options.version_match:
        if options.initial_events is None:
            yield _forbidden_match("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        if options.version_match != NOT_OLDER_THAN:
            yield unsupported(_MATCH, f'"{options.version_match}"', NOT_OLDER_THAN)
    if options.continue_token:
        yield _forbidden_match("resourceVersionMatch is forbidden when continue is provided")


def _forbidden_match(text: str) -> ErrorCause:
    return ErrorCause("FieldValueForbidden", f"Forbidden: {text}", _MATCH)


def unsupported(field: str, found: str, *supported: str) -> ErrorCause:
    """The cause for a value that is none of the supported ones."""
    known = ", ".join(f'"{one}"' for one in supported)
    return ErrorCause("FieldValueNotSupported", f"Unsupported value: {found}: supported values: {known}", field)


def write_options(query: Mapping[str, str], kind: str) -> WriteOptions:
    """The parameters of a write. `kind` is that of the options: CreateOptions, UpdateOptions or PatchOptions."""
    dry_run = [query["dryRun"]] if query.get("dryRun") else []
    found: list[ErrorCause] = []
    validation = query.get("fieldValidation", "") or "Warn"
    if query.get("force") and kind == "PatchOptions":
        found.append(ErrorCause("FieldValueForbidden", _FORCE, "force"))
    if len(query.get("fieldManager", "").encode()) > _MAX_MANAGER_BYTES:
        text = f"Too long: may not be more than {_MAX_MANAGER_BYTES} bytes"
        found.append(ErrorCause("FieldValueTooLong", text, "fieldManager"))
    found.extend(dry_run_causes(dry_run))
    if validation not in FIELD_VALIDATIONS:
        found.append(unsupported("fieldValidation", f'"{validation}"', "", "Ignore", "Strict", "Warn"))
    if found:
        raise FieldError(found, about=(_META_GROUP, kind))
    return WriteOptions(dry_run=bool(dry_run), field_validation=validation)


def dry_run_causes(values: Sequence[str]) -> list[ErrorCause]:
    """What is wrong with the values of `dryRun`."""
    if all(one == "All" for one in values):
        return []
    return [unsupported("dryRun", json.encode(values).decode(), "All")]


def truth(query: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false. Clients write it in different cases; a parameter without a value is true."""
    if name not in query:
        return False
    text = query[name].lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise BadRequestError(f"{name}: found {query[name]!r}, expected true or false")


def number(query: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a number; None if it is missing. A negative number counts as 0."""
    text = query.get(name, "")
    if not text:
        return None
    if not _NUMBER.fullmatch(text):
        raise BadRequestError(f"{name}: found {text!r}, expected a number")
    return max(int(text), 0)
