# SPDX-License-Identifier: Apache-2.0
"""Hooks that the store calls. They check and complete each created or changed object, as an API server does.

Jobs are checked as on the command line. Secrets, ConfigMaps, pods and services get the defaults and checks of
Kubernetes. A hook gets the stored object (or None) and the new object. It returns the new object, perhaps with added
defaults, or raises InvalidError with all problems. It never changes its arguments.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from trainwright.errors import InvalidError
from trainwright.kinds.base import Kind, Loaded, load, stored
from trainwright.kinds.registry import KINDS
from trainwright.kinds.scalars import under
from trainwright.local.storage.metadata import EXPECTED_NAME, OBJECT_NAME, without_nulls
from trainwright.model.job import Body
from trainwright.model.problem import Problem, shown
from trainwright.runtime.ports import CLAIMS, CONFIG_MAPS, PODS, SECRETS, SERVICES, jobs_of

if TYPE_CHECKING:
    from trainwright.local.storage.store import Store
    from trainwright.local.storage.tables import Hook

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def content_problems(body: Body) -> Iterator[Problem]:
    """All problems in the data of a Secret or a ConfigMap."""
    if body.get("kind") == "Secret":
        yield from _text_problems(body.get("stringData"), "stringData")
        yield from _base64_problems(body.get("data"), "data")
    elif body.get("kind") == "ConfigMap":
        yield from _text_problems(body.get("data"), "data")
        yield from _base64_problems(body.get("binaryData"), "binaryData")


def misnamed(body: Body) -> Iterator[Problem]:
    """A problem if the name of the object is missing or not valid."""
    name = (body.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not name:
        yield Problem("metadata.name", "missing; expected a name")
    elif not OBJECT_NAME.fullmatch(name):
        yield Problem("metadata.name", f"{name[:60]!r} cannot be a name; {EXPECTED_NAME}")


def _text_problems(data: Any, path: str) -> Iterator[Problem]:
    """A problem for each key that cannot be a file name and for each value that is not text."""
    if data is None:
        return
    if not isinstance(data, dict):
        yield Problem(path, f"expected a mapping, found {shown(data)}")
        return
    for key, value in data.items():
        if not isinstance(key, str) or not _DATA_KEY.fullmatch(key):
            yield Problem(under(path, str(key)), "a key may have letters, digits, `-`, `_` and `.`")
        if not isinstance(value, str):
            quotes = "; put it in quotes" if isinstance(value, bool | int | float) else ""
            yield Problem(under(path, str(key)), f"expected text, found {shown(value)}{quotes}")


def _base64_problems(data: Any, path: str) -> Iterator[Problem]:
    yield from _text_problems(data, path)
    texts = {key: value for key, value in data.items() if isinstance(value, str)} if isinstance(data, dict) else {}
    for key, text in texts.items():
        try:
            b64decode("".join(text.split()), validate=True)
        except ValueError:
            hint = "; `stringData` takes plain text" if path == "data" else ""
            yield Problem(under(path, str(key)), f"expected text in base64{hint}")


_HOST_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("type", "ClusterIP"),
    ("sessionAffinity", "None"),
    ("ipFamilies", ["IPv4"]),
    ("ipFamilyPolicy", "SingleStack"),
    ("internalTrafficPolicy", "Cluster"),
)
#: `kubectl debug` ends with a panic if a pod has no `securityContext`.
_POD_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("restartPolicy", "Always"),
    ("securityContext", {}),
    ("terminationGracePeriodSeconds", 30),
)


def install(store: "Store") -> None:
    """Register all hooks, and the conversions of jobs to the stored API version."""
    for kind in KINDS:
        store.convert(jobs_of(kind), partial(stored, kind))
        store.admit(jobs_of(kind), job_hook(kind))
    store.admit(PODS, admit_pod)
    store.admit(SERVICES, admit_service)
    store.admit(CLAIMS, admit_claim)
    store.admit(SECRETS, admit_content)
    store.admit(CONFIG_MAPS, admit_content)


def _raise_problems(body: Body, problems: Iterator[Problem] | tuple[Problem, ...]) -> None:
    """Raise InvalidError if there is a problem that is not only a warning."""
    found = "; ".join(str(problem) for problem in problems if not problem.warning)
    if found:
        raise InvalidError(f"{body['kind']} {body['metadata']['name']!r} is invalid: {found}")


# -- jobs -------------------------------------------------------------------------------------------------------------


def job_hook(kind: Kind) -> "Hook":
    """The hook of one kind: it removes nulls and refuses invalid jobs."""

    def admit(before: Body | None, body: Body) -> Body:
        if before is not None and before.get("spec") is body.get("spec"):
            return body  # The spec does not change, so it was checked before.
        loaded = _load(kind, body)
        _raise_problems(body, loaded.errors)
        known = _load(kind, before).wire if before is not None else None
        if known is not None:
            _raise_problems(body, kind.check_edit(known, loaded.wire))
        cleaned: Body = without_nulls(body)
        return cleaned

    return admit


def _load(kind: Kind, body: Body) -> Loaded:
    """Load a job without its status, which belongs to the controller."""
    return load(kind, {part: value for part, value in body.items() if part != "status"})


# -- pods and services ------------------------------------------------------------------------------------------------


def admit_pod(before: Body | None, body: Body) -> Body:
    """Require containers and a name that can be a host name; set the defaults of Kubernetes."""
    spec: Any = body.get("spec")
    if before is not None and (spec is before.get("spec") or not isinstance(spec, dict)):
        return body
    is_named = before is not None or _HOST_NAME.fullmatch(body["metadata"]["name"])
    if not is_named or not isinstance(spec, dict) or not spec.get("containers"):
        _raise_problems(body, _pod_problems(body, spec))
    missing = {name: default for name, default in _POD_DEFAULTS if spec.get(name) is None}
    return {**body, "spec": {**spec, **missing}} if missing else body


def _pod_problems(body: Body, spec: Any) -> Iterator[Problem]:
    yield from _host_name_problems(body)
    if not isinstance(spec, dict):
        yield Problem("spec", f"expected a mapping, found {shown(spec)}")
    elif not spec.get("containers"):
        yield Problem("spec.containers", "may not be empty: a pod needs at least one container")


def admit_service(before: Body | None, body: Body) -> Body:
    """Require a name that can be a host name; set the defaults of Kubernetes, except addresses."""
    if before is None and not _HOST_NAME.fullmatch(body["metadata"]["name"]):
        _raise_problems(body, _host_name_problems(body))
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return body
    if before is None and not body.get("status"):
        body = {**body, "status": {"loadBalancer": {}}}
    missing: Body = {name: default for name, default in _SERVICE_DEFAULTS if spec.get(name) is None}
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        missing["clusterIPs"] = [spec["clusterIP"]]
    if isinstance(spec.get("ports"), list):
        missing["ports"] = [_with_port_defaults(port) for port in spec["ports"]]
    return {**body, "spec": {**spec, **missing}}


def _with_port_defaults(port: Any) -> Any:
    if not isinstance(port, dict) or ("protocol" in port and "targetPort" in port):
        return port
    return {"protocol": "TCP", "targetPort": port.get("port"), **port}


def _host_name_problems(body: Body) -> Iterator[Problem]:
    name = body["metadata"]["name"]
    if not _HOST_NAME.fullmatch(name):
        message = f"{name!r} becomes a host name: use at most 63 lower-case letters, digits and dashes"
        yield Problem("metadata.name", f"{message}, with a letter or digit at both ends")


def admit_claim(before: Body | None, body: Body) -> Body:
    """Set the defaults of Kubernetes."""
    spec = body.get("spec")
    if before is None and not body.get("status"):
        body = {**body, "status": {"phase": "Pending"}}
    if not isinstance(spec, dict) or spec.get("volumeMode"):
        return body
    return {**body, "spec": {**spec, "volumeMode": "Filesystem"}}


# -- secrets and config maps ------------------------------------------------------------------------------------------


def admit_content(before: Body | None, body: Body) -> Body:  # noqa: ARG001 - a hook's signature
    """Check the data of a Secret or a ConfigMap. Move the `stringData` of a Secret into `data`, encoded in base64."""
    _raise_problems(body, content_problems(body))
    if body["kind"] != "Secret":
        return body
    body = body if body.get("type") else {**body, "type": "Opaque"}
    if "stringData" not in body:
        return body
    encoded = {key: b64encode(text.encode()).decode() for key, text in (body["stringData"] or {}).items()}
    rest = {part: value for part, value in body.items() if part != "stringData"}
    return {**rest, "data": {**(body.get("data") or {}), **encoded}}
