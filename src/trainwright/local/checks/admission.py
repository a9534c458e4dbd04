# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a Secret or a ConfigMap. `admission` refuses it; `run` says it, with the line, before that.

What an API server checks and completes when an object is created or changed. `install` gives it to the store.

Jobs pass the same checks as on the command line; Secrets, ConfigMaps, pods and services get what Kubernetes would do to
them. Hooks are functions of (what is stored or None, what is to be stored): they return the latter, perhaps completed,
or raise InvalidError with all that is wrong. They never edit what they are given.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator
from functools import partial
from typing import Any

from trainwright.errors import InvalidError
from trainwright.kinds.base import Kind, Loaded, load, stored
from trainwright.kinds.registry import KINDS
from trainwright.kinds.scalars import under
from trainwright.local.storage.store import Hook, Store
from trainwright.model.job import Body
from trainwright.model.problem import Problem, shown
from trainwright.runtime.ports import CONFIG_MAPS, PODS, SECRETS, SERVICES, jobs_of

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def content_problems(body: Body) -> Iterator[Problem]:
    """All that is wrong with what it holds."""
    if body.get("kind") == "Secret":
        yield from _texts(body.get("stringData"), "stringData")
        yield from _base64(body.get("data"), "data")
    elif body.get("kind") == "ConfigMap":
        yield from _texts(body.get("data"), "data")
        yield from _base64(body.get("binaryData"), "binaryData")


def misnamed(body: Body) -> Iterator[Problem]:
    """What is wrong with its name."""
    name = (body.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        yield Problem("metadata.name", "missing; expected a name")
    elif not _NAME.fullmatch(name):
        expected = "expected lower-case letters, digits, `-` and `.`, with a letter or digit at both ends"
        yield Problem("metadata.name", f"{name[:60]!r} cannot be a name; {expected}, at most 253")


def _texts(data: Any, path: str) -> Iterator[Problem]:
    """Everything that is not a text under a key that can be a file's name."""
    if data is None:
        return
    if not isinstance(data, dict):
        yield Problem(path, f"expected a mapping, found {shown(data)}")
        return
    for key, value in data.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            yield Problem(under(path, str(key)), "a key may have letters, digits, `-`, `_` and `.`")
        if not isinstance(value, str):
            quotes = "; put it in quotes" if isinstance(value, bool | int | float) else ""
            yield Problem(under(path, str(key)), f"expected text, found {shown(value)}{quotes}")


def _base64(data: Any, path: str) -> Iterator[Problem]:
    yield from _texts(data, path)
    for key, value in data.items() if isinstance(data, dict) else ():
        if isinstance(value, str) and not _decodes(value):
            message = "expected text in base64; `stringData` takes it as it is"
            yield Problem(under(path, str(key)), message if path == "data" else "expected text in base64")


def _decodes(text: str) -> bool:
    try:
        b64decode("".join(text.split()), validate=True)
    except (NotBase64, ValueError):
        return False
    return True


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DEFAULTS: tuple[tuple[str, Any], ...] = (("restartPolicy", "Always"), ("terminationGracePeriodSeconds", 30))


def install(store: Store) -> None:
    """Register every hook."""
    for kind in KINDS:
        store.convert(jobs_of(kind), partial(stored, kind))
        store.admit(jobs_of(kind), job_hook(kind))
    for resource, hook in ((PODS, admit_pod), (SERVICES, admit_service), (SECRETS, admit_secret)):
        store.admit(resource, hook)
    store.admit(CONFIG_MAPS, admit_config_map)


def _refuse(body: Body, problems: Iterator[Problem] | tuple[Problem, ...]) -> None:
    """Raise if there is anything wrong."""
    found = "; ".join(str(problem) for problem in problems if not problem.warning)
    if found:
        raise InvalidError(f"{body['kind']} {body['metadata']['name']!r} is invalid: {found}")


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_hook(kind: Kind) -> Hook:
    """The hook of one kind: nulls are dropped, and what cannot be run is refused."""

    def admit(before: Body | None, body: Body) -> Body:
        if before is not None and before.get("spec") is body.get("spec"):
            return body  # Only metadata: the job may stay what it is, even if it could not be made today.
        loaded = _load(kind, body)
        _refuse(body, loaded.errors)
        if before is not None:
            _refuse(body, _edited(kind, before, loaded))
        kept: Body = without_nulls(body)
        return kept

    return admit


def _load(kind: Kind, body: Body) -> Loaded:
    """Read a job by its manifest alone: its status is the controller's."""
    return load(kind, {part: value for part, value in body.items() if part != "status"})


def _edited(kind: Kind, before: Body, after: Loaded) -> tuple[Problem, ...]:
    known = _load(kind, before)
    return kind.check_edit(known.wire, after.wire) if known.wire is not None else ()


def without_nulls(value: Any) -> Any:
    """The value without keys whose value is null, as an API server stores it; entries of lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


# -- pods and services ------------------------------------------------------------------------------------------------


def admit_pod(before: Body | None, body: Body) -> Body:
    """A pod has a name that can be a host name, containers, and the two settings that nobody should have to guess."""
    if before is not None:
        return body
    spec: Any = body.get("spec")
    if not _LABEL.fullmatch(body["metadata"]["name"]) or not isinstance(spec, dict) or not spec.get("containers"):
        _refuse(body, _bad_pod(body, spec))
    missing = {name: given for name, given in _DEFAULTS if spec.get(name) is None}
    return {**body, "spec": {**spec, **missing}} if missing else body


def _bad_pod(body: Body, spec: Any) -> Iterator[Problem]:
    yield from _bad_name(body)
    if not isinstance(spec, dict):
        yield Problem("spec", f"expected a mapping, found {shown(spec)}")
    elif not spec.get("containers"):
        yield Problem("spec.containers", "may not be empty: a pod needs at least one container")


def admit_service(before: Body | None, body: Body) -> Body:
    """A service's name is a host name."""
    if before is None and not _LABEL.fullmatch(body["metadata"]["name"]):
        _refuse(body, _bad_name(body))
    return body


def _bad_name(body: Body) -> Iterator[Problem]:
    name = body["metadata"]["name"]
    if not _LABEL.fullmatch(name):
        message = f"{name!r} becomes a host name: use at most 63 lower-case letters, digits and dashes"
        yield Problem("metadata.name", f"{message}, with a letter or digit at both ends")


# -- secrets and config maps ------------------------------------------------------------------------------------------


def admit_secret(before: Body | None, body: Body) -> Body:  # noqa: ARG001 - a hook's signature
    """`stringData` is folded into `data`, in base64."""
    plain = body.get("stringData") or {}
    _refuse(body, content_problems(body))
    if "stringData" not in body:
        return body
    folded = {key: b64encode(text.encode()).decode() for key, text in plain.items()}
    rest = {part: value for part, value in body.items() if part != "stringData"}
    return {**rest, "data": {**(body.get("data") or {}), **folded}}


def admit_config_map(before: Body | None, body: Body) -> Body:  # noqa: ARG001 - a hook's signature
    """Texts in `data`, base64 in `binaryData`."""
    _refuse(body, content_problems(body))
    return body
