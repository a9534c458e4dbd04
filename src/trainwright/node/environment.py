# SPDX-License-Identifier: Apache-2.0
"""The environment and the command line of a container, as a kubelet makes them, with the downward API. Pure.

The caller gives the objects that `env` and `envFrom` refer to (see `sources`). There are no service variables (such as
`FOO_SERVICE_HOST`), because containers can resolve the names of services.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, Decimal

from msgspec import Struct

from trainwright.kinds.template import FIELDS
from trainwright.model.job import Body
from trainwright.model.problem import nearest
from trainwright.model.units import quantity
from trainwright.node.sources import CONFIG_MAP, SECRET, ContainerConfigError, Sources, referenced

_LABEL_OR_ANNOTATION = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_RESOURCE_EXAMPLES = ("limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory")
_RESOURCE_PREFIXES = ("cpu", "memory", "ephemeral-storage", "hugepages-")


class PodFacts(Struct, frozen=True):
    """The facts about a pod that the agent knows and the pod object does not have."""

    node: str
    address: str
    host: str
    allocatable: dict[str, str]


def pod_field(ref: Body, pod: Body, facts: PodFacts, path: str) -> str:
    """The value of a `fieldRef`."""
    field = str(ref.get("fieldPath", ""))
    meta, spec = pod["metadata"], pod.get("spec") or {}
    match field:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(meta.get(field[9:], ""))
        case "spec.nodeName":
            return facts.node
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "default")
        case "status.hostIP" | "status.hostIPs":
            return facts.host
        case "status.podIP" | "status.podIPs":
            return facts.address
    subscript = _LABEL_OR_ANNOTATION.fullmatch(field)
    if subscript is None:
        raise ContainerConfigError(
            f"{path}.fieldPath", f"{field!r} is not known; expected {', '.join(FIELDS)}", nearest(field, FIELDS)
        )
    return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))


def resource_field(ref: Body, pod: Body, container: Body, facts: PodFacts, path: str) -> str:
    """The value of a `resourceFieldRef`: the amount divided by the divisor, rounded up."""
    resource = str(ref.get("resource", ""))
    part, _, name = resource.partition(".")
    if part not in ("limits", "requests") or not name.startswith(_RESOURCE_PREFIXES):
        message = f"{resource!r} is not known; expected {', '.join(_RESOURCE_EXAMPLES)}"
        raise ContainerConfigError(f"{path}.resource", message, nearest(resource, _RESOURCE_EXAMPLES))
    if ref.get("containerName"):
        other, spec = str(ref["containerName"]), pod["spec"]
        known = {one["name"]: one for one in (*(spec.get("initContainers") or ()), *spec["containers"])}
        if other not in known:
            message = f"there is no container {other!r}; the pod has {', '.join(known)}"
            raise ContainerConfigError(f"{path}.containerName", message, nearest(other, known))
        container = known[other]
    resources = container.get("resources") or {}
    asked = resources.get("limits") or {}
    if part == "requests":  # a missing request counts as the limit, as in an API server
        asked = asked | (resources.get("requests") or {})
    amount = quantity(asked.get(name))
    if not amount and part == "limits":
        amount = quantity(facts.allocatable.get(name, 0))
    divisor = quantity(ref.get("divisor") or 1) or Decimal(1)
    return str(((amount or Decimal(0)) / divisor).to_integral_value(ROUND_CEILING))


_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_INHERITED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_NO_COMMAND = "missing; the image is not used, so its entrypoint is not known: name the program to run here"


class EnvironmentInput(Struct, frozen=True):
    """A container with everything that its environment depends on."""

    pod: Body
    container: Body
    path: str
    facts: PodFacts
    sources: Sources
    #: Variables that replace variables of `env`.
    overrides: Mapping[str, str] = {}


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that containers inherit."""
    return {name: value for name, value in environ.items() if name in _INHERITED or name.startswith("CUDA")}


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the value of NAME, and `$$` by `$`. If NAME is not known, `$(NAME)` stays as it is."""
    if "$" not in text:
        return text
    return _REFERENCE.sub(lambda match: "$" if match[1] else known.get(match[2], match[0]), text)


def variables(subject: EnvironmentInput) -> dict[str, str]:
    """The variables of a container: first from `envFrom`, then from `overrides`, then from `env`.

    `overrides` replaces variables of `envFrom`. `env` replaces variables of `envFrom`, but not of `overrides`. A value
    in `env` can refer to all variables before it.
    """
    found: dict[str, str] = {}
    for index, source in enumerate(subject.container.get("envFrom") or ()):
        found.update(_all_values(subject, source, f"{subject.path}.envFrom[{index}]"))
    found.update(subject.overrides)
    for index, entry in enumerate(subject.container.get("env") or ()):
        if entry["name"] in subject.overrides:
            continue
        value = _value(subject, entry, index, found)
        if value is not None:
            found[entry["name"]] = value
    return found


def command(subject: EnvironmentInput, known: Mapping[str, str]) -> list[str]:
    """`command` and `args`, with references to the container's variables replaced."""
    program = subject.container.get("command")
    if not program:
        raise ContainerConfigError(f"{subject.path}.command", _NO_COMMAND)
    return [expand(str(word), known) for word in (*program, *(subject.container.get("args") or ()))]


def _value(subject: EnvironmentInput, entry: Body, index: int, known: Mapping[str, str]) -> str | None:
    """The value of an entry of `env`; None if its optional source does not exist."""
    if entry.get("value"):
        return expand(str(entry["value"]), known)
    source = entry.get("valueFrom")
    if not source:
        return ""
    path = f"{subject.path}.env[{index}].valueFrom"
    match source:
        case {"fieldRef": ref}:
            return pod_field(ref, subject.pod, subject.facts, f"{path}.fieldRef")
        case {"resourceFieldRef": ref}:
            return resource_field(ref, subject.pod, subject.container, subject.facts, f"{path}.resourceFieldRef")
        case {"secretKeyRef": ref}:
            return _key_value(subject, SECRET, ref, f"{path}.secretKeyRef")
        case {"configMapKeyRef": ref}:
            return _key_value(subject, CONFIG_MAP, ref, f"{path}.configMapKeyRef")
    expected = "fieldRef, resourceFieldRef, secretKeyRef or configMapKeyRef"
    raise ContainerConfigError(path, f"expected {expected}, found {', '.join(source)}")


def _key_value(subject: EnvironmentInput, kind: str, ref: Body, path: str) -> str | None:
    found = referenced(subject.sources, kind, ref, path, subject.pod) or {}
    data, key = found.get("data") or {}, str(ref.get("key", ""))
    if key in data:
        return _text(kind, data[key])
    if ref.get("optional"):
        return None
    has = ", ".join(sorted(data)) or "no keys"
    message = f"{kind} {str(ref.get('name', ''))!r} has no key {key!r}; it has {has}"
    raise ContainerConfigError(f"{path}.key", message, nearest(key, data))


def _all_values(subject: EnvironmentInput, source: Body, path: str) -> Iterator[tuple[str, str]]:
    prefix = str(source.get("prefix") or "")
    for kind, field in ((CONFIG_MAP, "configMapRef"), (SECRET, "secretRef")):
        if source.get(field) is None:
            continue
        found = referenced(subject.sources, kind, source[field], f"{path}.{field}", subject.pod) or {}
        for key, value in (found.get("data") or {}).items():
            if _VARIABLE.fullmatch(prefix + key):
                yield prefix + key, _text(kind, value)


def _text(kind: str, value: str) -> str:
    """The value as text. In the value of a Secret, bytes that are not UTF-8 are replaced."""
    return b64decode(value).decode(errors="replace") if kind == SECRET else str(value)
