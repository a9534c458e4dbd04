# SPDX-License-Identifier: Apache-2.0
"""Checks of objects that clients write, except jobs, with the rules and texts of an API server: the common mistakes.

The hooks of the store check what the engine needs. These checks are about what surprises a client of an API server:
fields that cannot change, values of a wrong type, and mistakes for which kubectl prints the texts below. An API server
checks much more.
"""

import re
from binascii import Error, a2b_base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from trainwright.api.queries import unsupported
from trainwright.api.queues import queue_problems
from trainwright.errors import BadRequestError, ErrorCause, FieldError
from trainwright.kinds import template
from trainwright.kinds.decode import DecodeProblems
from trainwright.model.job import Body

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=\r\n]")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_BAD_DATA_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    f"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_DATA_KEY.pattern}')"
)
_IMMUTABLE = "Forbidden: field is immutable when `immutable` is set"
_SERVICE_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_CONTAINERS = ("containers", "initContainers")
_CHANGEABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")
_MAX_PORT = 65535
_NO_SUCH_CHANGE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_NO_NEW_CONTAINERS = "Forbidden: pod updates may not add or remove containers"
_DEADLINE_GONE = "Invalid value: null: must not update from a positive integer to nil value"
_GO_TYPES = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}


def check_content(kind: str, before: Body | None, after: Body) -> None:
    """Check a new object (`before` is None) or a changed one. Raises BadRequestError or FieldError."""
    check = _CHECKS.get(kind)
    found = [*check(before, after)] if check is not None else []
    if found:
        raise FieldError(found)
    if kind == "Pod" and (before is None or before.get("spec") != after.get("spec")):
        _check_shape(after)


def _wrong_type(kind: str, value: Any, field: str, expected: str) -> BadRequestError:
    what = f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {_GO_TYPES[type(value)]}'
    return BadRequestError(f"{what} into Go struct field {field} of type {expected}")


def _invalid(field: str, value: Any, what: str) -> ErrorCause:
    return ErrorCause("FieldValueInvalid", f"Invalid value: {msgspec.json.encode(value).decode()}: {what}", field)


def _required(field: str) -> ErrorCause:
    return ErrorCause("FieldValueRequired", "Required value", field)


def _mapping(body: Body, kind: str, field: str, go_type: str) -> Body:
    """The mapping with this name; empty if it is missing."""
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong_type(kind, value, f"{kind}.{field}", go_type)
    return value


# -- config maps and secrets ------------------------------------------------------------------------------------------


def _check_data(before: Body | None, after: Body) -> Iterator[ErrorCause]:
    kind = "ConfigMap" if after.get("kind") == "ConfigMap" else "Secret"
    text_field, byte_field = ("data", "binaryData") if kind == "ConfigMap" else ("stringData", "data")
    texts = _mapping(after, kind, text_field, "map[string]string")
    encoded = _mapping(after, kind, byte_field, "map[string][]uint8")
    for value in texts.values():
        if value is not None and not isinstance(value, str):
            raise _wrong_type(kind, value, f"{kind}.{text_field}", "string")
    for value in encoded.values():
        _check_base64(kind, value, f"{kind}.{byte_field}")
    for field, values in ((text_field, texts), (byte_field, encoded)):
        for key in values:
            if not _DATA_KEY.fullmatch(key):
                yield _invalid(f"{field}[{key}]", key, _BAD_DATA_KEY)
    if kind == "ConfigMap":
        for key in texts.keys() & encoded.keys():
            yield _invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    if before is not None:
        yield from _immutable_causes(before, after)


def _check_base64(kind: str, value: Any, field: str) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise _wrong_type(kind, value, field, "[]uint8")
    wrong = _NOT_BASE64.search(value)
    try:
        if wrong is None:
            a2b_base64(value)
            return
    except Error:
        pass
    where = wrong.start() if wrong is not None else len(value)
    what = f'{kind} in version "v1" cannot be handled as a {kind}'
    raise BadRequestError(f"{what}: illegal base64 data at input byte {where}")


def _immutable_causes(before: Body, after: Body) -> Iterator[ErrorCause]:
    new_type = after.get("type") or before.get("type")
    if new_type != before.get("type"):
        yield _invalid("type", new_type, "field is immutable")
    if before.get("immutable") is not True:
        return
    if after.get("immutable") is not True:
        yield ErrorCause("FieldValueForbidden", _IMMUTABLE, "immutable")
    for field in ("data", "binaryData"):
        if (after.get(field) or {}) != (before.get(field) or {}) or (field == "data" and after.get("stringData")):
            yield ErrorCause("FieldValueForbidden", _IMMUTABLE, field)


# -- pods -------------------------------------------------------------------------------------------------------------


def _check_pod(before: Body | None, after: Body) -> Iterator[ErrorCause]:
    spec = _mapping(after, "Pod", "spec", "v1.PodSpec")
    for field in _CONTAINERS:
        if spec.get(field) is not None and not isinstance(spec[field], list):
            raise _wrong_type("Pod", spec[field], f"PodSpec.spec.{field}", "[]v1.Container")
    containers = [one for one in spec.get("containers") or () if isinstance(one, dict)]
    # A pod of a job of this machine may have no image, and clients may label it all the same.
    if before is None or containers != (before.get("spec") or {}).get("containers"):
        yield from _container_causes(containers)
    policy = spec.get("restartPolicy")
    if policy not in (None, "", *_RESTART_POLICIES):
        yield unsupported("spec.restartPolicy", msgspec.json.encode(policy).decode(), *_RESTART_POLICIES)
    if before is not None:
        yield from _changed_pod_causes(before.get("spec") or {}, spec)


def _container_causes(containers: list[Body]) -> Iterator[ErrorCause]:
    if not containers:
        yield _required("spec.containers")
    names: set[str] = set()
    for index, container in enumerate(containers):
        path, name = f"spec.containers[{index}]", container.get("name")
        if not name:
            yield _required(f"{path}.name")
        elif str(name) in names:
            yield ErrorCause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{path}.name")
        names.add(str(name))
        if not container.get("image"):
            yield _required(f"{path}.image")


def _changed_pod_causes(before: Body, after: Body) -> Iterator[ErrorCause]:
    """A few fields of a pod may change. The rest of both specs must be equal."""
    for field in _CONTAINERS:
        if len(after.get(field) or ()) != len(before.get(field) or ()):
            yield ErrorCause("FieldValueForbidden", _NO_NEW_CONTAINERS, f"spec.{field}")
            return
    if before.get("activeDeadlineSeconds") and after.get("activeDeadlineSeconds") is None:
        yield ErrorCause("FieldValueInvalid", _DEADLINE_GONE, "spec.activeDeadlineSeconds")
        return
    if _fixed_part(before) != _fixed_part(after):
        yield ErrorCause("FieldValueForbidden", _NO_SUCH_CHANGE, "spec")


def _fixed_part(spec: Body) -> Body:
    """The fields of the spec of a pod that cannot change, with the defaults of those that the store sets."""
    rest = {name: value for name, value in spec.items() if name not in _CHANGEABLE}
    for field in _CONTAINERS:
        rest[field] = [
            {name: value for name, value in one.items() if name != "image"}
            for one in spec.get(field) or ()
            if isinstance(one, dict)
        ]
    rest["restartPolicy"] = spec.get("restartPolicy") or _RESTART_POLICIES[0]
    rest["securityContext"] = spec.get("securityContext") or {}
    return rest


def _check_shape(pod: Body) -> None:
    """Raise BadRequestError if a field of the spec has another type than Kubernetes defines: our readers rely on it."""
    found = DecodeProblems()
    template.read({"spec": pod.get("spec") or {}}, "", found)
    wrong = [str(problem) for problem in found.problems if not problem.warning]
    if wrong:
        raise BadRequestError(f'Pod in version "v1" cannot be handled as a Pod: {"; ".join(wrong)}')


# -- services ---------------------------------------------------------------------------------------------------------


def _check_service(before: Body | None, after: Body) -> Iterator[ErrorCause]:
    spec = _mapping(after, "Service", "spec", "v1.ServiceSpec")
    ports = spec.get("ports")
    if ports is not None and not isinstance(ports, list):
        raise _wrong_type("Service", ports, "ServiceSpec.spec.ports", "[]v1.ServicePort")
    known = [one for one in ports or () if isinstance(one, dict)]
    for index, port in enumerate(known):
        if len(known) > 1 and not port.get("name"):
            yield _required(f"spec.ports[{index}].name")
        yield from _port_causes(f"spec.ports[{index}].port", port.get("port", 0))
        yield from _port_causes(f"spec.ports[{index}].targetPort", port.get("targetPort", port.get("port", 0)))
    kind = spec.get("type")
    if kind not in (None, "", *_SERVICE_TYPES):
        yield unsupported("spec.type", msgspec.json.encode(kind).decode(), *_SERVICE_TYPES)
    had = ((before or {}).get("spec") or {}).get("clusterIP")
    if had and spec.get("clusterIP") not in (None, "", had):
        yield _invalid("spec.clusterIPs[0]", [spec["clusterIP"]], "may not change once set")


def _port_causes(field: str, port: Any) -> Iterator[ErrorCause]:
    if isinstance(port, int) and not 0 < port <= _MAX_PORT:
        yield _invalid(field, port, f"must be between 1 and {_MAX_PORT}, inclusive")


_CHECKS: dict[str, Callable[[Body | None, Body], Iterator[ErrorCause]]] = {
    "ConfigMap": _check_data,
    "Secret": _check_data,
    "Pod": _check_pod,
    "Service": _check_service,
    "Queue": lambda _, after: queue_problems(after),
}
