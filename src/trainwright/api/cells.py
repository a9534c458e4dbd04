# SPDX-License-Identifier: Apache-2.0
"""The cells of the tables of built-in resources, and ages, as the API server of Kubernetes prints them.

Each function gets an object and the current time, and returns the cells of its row. The store accepts objects of almost
any shape, so these functions never fail: a field of a wrong type counts as missing.
"""

from collections.abc import Callable
from typing import Any

from trainwright.model.job import Body
from trainwright.model.units import Time, parse_time
from trainwright.runtime.ports import (
    CLAIMS,
    CONFIG_MAPS,
    DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    SERVICES,
)

#: (object, current time) -> the cells of its row.
Cells = Callable[[Body, Time], list[Any]]
NONE, UNKNOWN, UNSET = "<none>", "<unknown>", "<unset>"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
_ROLE_PREFIX, _ROLE = "node-role.kubernetes.io/", "kubernetes.io/role"
_OLD_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
#: The short names of access modes, in the order in which they are printed.
_ACCESS_MODES = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def part(body: object, *path: str) -> Body:
    """The mapping at a path of field names; an empty mapping if there is none."""
    for name in path:
        body = body.get(name) if isinstance(body, dict) else None
    return body if isinstance(body, dict) else {}


def parts(body: Body, name: str) -> list[Body]:
    """The mappings in the list with this name."""
    found = body.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def text(body: Body, name: str) -> str:
    """The text with this name; empty if there is none."""
    found = body.get(name)
    return found if isinstance(found, str) else ""


def texts(body: Body, name: str) -> list[str]:
    """The texts in the list with this name."""
    found = body.get(name)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def number(body: Body, name: str) -> int:
    """The number with this name; 0 if there is none."""
    found = body.get(name)
    return found if isinstance(found, int) else 0


def duration(seconds: float) -> str:
    """A duration in at most two units, for example `13s`, `5m20s`, `3h`, `2d4h`. It is exact for short durations.

    Clocks differ, so an age of down to -2 s is `0s`.
    """
    total = int(seconds)
    if total < 120:
        return "<invalid>" if total < -1 else f"{max(total, 0)}s"
    if total < 10 * _MINUTE:
        return _two_units(total, _MINUTE, "m", 1, "s")
    if total < 3 * _HOUR:
        return f"{total // _MINUTE}m"
    if total < 8 * _HOUR:
        return _two_units(total, _HOUR, "h", _MINUTE, "m")
    if total < 2 * _DAY:
        return f"{total // _HOUR}h"
    if total < 8 * _DAY:
        return _two_units(total, _DAY, "d", _HOUR, "h")
    if total < 2 * _YEAR:
        return f"{total // _DAY}d"
    if total < 8 * _YEAR:
        return _two_units(total, _YEAR, "y", _DAY, "d")
    return f"{total // _YEAR}y"


def _two_units(seconds: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = seconds % large // small
    return f"{seconds // large}{large_name}" + (f"{rest}{small_name}" if rest else "")


def age(stamp: object, now: Time) -> str:
    """The time since `stamp`; `<unknown>` if it is no time."""
    time = parse_time(stamp) if isinstance(stamp, str) else None
    return UNKNOWN if time is None else duration((now - time).total_seconds())


def object_age(body: Body, now: Time) -> str:
    """The time since the object was created."""
    return age(part(body, "metadata").get("creationTimestamp"), now)


def name_of(body: Body) -> str:
    """The name of the object; empty in the bookmark of a watch."""
    return text(part(body, "metadata"), "name")


def _node(body: Body, now: Time) -> list[Any]:
    status, info = part(body, "status"), part(body, "status", "nodeInfo")
    architecture = text(info, "architecture")
    return [
        name_of(body),
        _node_status(body),
        ",".join(_node_roles(part(body, "metadata", "labels"))) or NONE,
        object_age(body, now),
        text(info, "kubeletVersion"),
        _node_address(status, "InternalIP"),
        _node_address(status, "ExternalIP"),
        text(info, "osImage") or UNKNOWN,
        (text(info, "kernelVersion") or UNKNOWN) + (f" ({architecture})" if architecture else ""),
        text(info, "containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(body: Body) -> str:
    ready = [one for one in parts(part(body, "status"), "conditions") if one.get("type") == "Ready"]
    status = "Unknown" if not ready else "Ready" if ready[-1].get("status") == "True" else "NotReady"
    return status + (",SchedulingDisabled" if part(body, "spec").get("unschedulable") is True else "")


def _node_roles(labels: Body) -> list[str]:
    roles = {label.removeprefix(_ROLE_PREFIX) for label in labels if label.startswith(_ROLE_PREFIX)}
    return sorted(role for role in (*roles, text(labels, _ROLE)) if role)


def _node_address(status: Body, kind: str) -> str:
    return next((text(one, "address") for one in parts(status, "addresses") if one.get("type") == kind), NONE)


def _event(body: Body, now: Time) -> list[Any]:
    about, series = part(body, "involvedObject"), part(body, "series")
    first = age(body.get("firstTimestamp") or body.get("eventTime"), now)
    last = age(body["lastTimestamp"], now) if body.get("lastTimestamp") else first
    if series:
        last = age(series.get("lastObservedTime"), now)
    kind, name = text(about, "kind").lower(), text(about, "name")
    return [
        last,
        text(body, "type"),
        text(body, "reason"),
        f"{kind}/{name}" if name else kind,
        text(about, "fieldPath"),
        _event_source(body),
        text(body, "message").strip(),
        first,
        number(series, "count") if series else number(body, "count") or 1,
        name_of(body),
    ]


def _event_source(body: Body) -> str:
    source = part(body, "source")
    component = text(source, "component") or text(body, "reportingComponent")
    instance = text(source, "host") or text(body, "reportingInstance")
    return f"{component}, {instance}" if instance else component


def _service(body: Body, now: Time) -> list[Any]:
    spec = part(body, "spec")
    addresses = texts(spec, "clusterIPs") or [text(spec, "clusterIP")]
    selector = part(spec, "selector")
    return [
        name_of(body),
        _service_type(spec),
        addresses[0] or NONE,
        _external_address(body),
        ",".join(map(_port, parts(spec, "ports"))) or NONE,
        object_age(body, now),
        ",".join(f"{name}={selector[name]}" for name in sorted(selector)) or NONE,
    ]


def _service_type(spec: Body) -> str:
    """The type. A service that our controller made has none, because it is always the default."""
    return text(spec, "type") or "ClusterIP"


def _external_address(body: Body) -> str:
    spec = part(body, "spec")
    external, kind = texts(spec, "externalIPs"), _service_type(spec)
    if kind == "ExternalName":
        return text(spec, "externalName")
    if kind != "LoadBalancer":
        return ",".join(external) or NONE
    ingress = parts(part(body, "status", "loadBalancer"), "ingress")
    return ",".join([*(text(one, "ip") or text(one, "hostname") for one in ingress), *external]) or "<pending>"


def _port(port: Body) -> str:
    on_node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{on_node}/{text(port, 'protocol') or 'TCP'}"


def _claim(body: Body, now: Time) -> list[Any]:
    spec, status, metadata = part(body, "spec"), part(body, "status"), part(body, "metadata")
    volume, modes = text(spec, "volumeName"), texts(status, "accessModes")
    capacity = part(status, "capacity").get("storage", "0")
    return [
        name_of(body),
        "Terminating" if metadata.get("deletionTimestamp") else text(status, "phase"),
        volume,
        str(capacity) if volume else "",
        ",".join(short for mode, short in _ACCESS_MODES.items() if mode in modes) if volume else "",
        text(part(metadata, "annotations"), _OLD_STORAGE_CLASS) or text(spec, "storageClassName"),
        text(spec, "volumeAttributesClassName") or UNSET,
        object_age(body, now),
        text(spec, "volumeMode") or UNSET,
    ]


def _config_map(body: Body, now: Time) -> list[Any]:
    return [name_of(body), len(part(body, "data")) + len(part(body, "binaryData")), object_age(body, now)]


def _secret(body: Body, now: Time) -> list[Any]:
    return [name_of(body), text(body, "type") or "Opaque", len(part(body, "data")), object_age(body, now)]


def _namespace(body: Body, now: Time) -> list[Any]:
    return [name_of(body), text(part(body, "status"), "phase"), object_age(body, now)]


def _lease(body: Body, now: Time) -> list[Any]:
    return [name_of(body), text(part(body, "spec"), "holderIdentity"), object_age(body, now)]


def _definition(body: Body, _: Time) -> list[Any]:
    return [name_of(body), text(part(body, "metadata"), "creationTimestamp")]


#: The functions by the id of the resource.
CELLS: dict[str, Cells] = {
    NODES.id: _node,
    EVENTS.id: _event,
    SERVICES.id: _service,
    CLAIMS.id: _claim,
    CONFIG_MAPS.id: _config_map,
    SECRETS.id: _secret,
    NAMESPACES.id: _namespace,
    LEASES.id: _lease,
    DEFINITIONS.id: _definition,
}
