# SPDX-License-Identifier: Apache-2.0
"""The downward API: what `fieldRef` and `resourceFieldRef` stand for. Called by `environment`; pure.

The environment and the command line of a container, as a kubelet makes them. `worker` calls it; pure.

Objects that `env` and `envFrom` refer to are looked up beforehand (`sources`) and handed in. Service variables
(`FOO_SERVICE_HOST`) are not made: names resolve.
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
from trainwright.node.sources import CONFIG_MAP, SECRET, Sources, Unconfigured, missing

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
_RESOURCES = ("limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory")
_COUNTED = ("cpu", "memory", "ephemeral-storage", "hugepages-")


class PodFacts(Struct, frozen=True):
    """What the agent knows about a pod besides the object."""

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
    subscript = _SUBSCRIPT.fullmatch(field)
    if subscript is None:
        raise Unconfigured(
            f"{path}.fieldPath", f"{field!r} is not known; expected {', '.join(FIELDS)}", nearest(field, FIELDS)
        )
    return str((meta.get(subscript[1]) or {}).get(subscript[2], ""))


def resource_field(ref: Body, pod: Body, container: Body, facts: PodFacts, path: str) -> str:
    """The value of a `resourceFieldRef`: a number of divisors, rounded up."""
    resource = str(ref.get("resource", ""))
    part, _, name = resource.partition(".")
    if part not in ("limits", "requests") or not name.startswith(_COUNTED):
        message = f"{resource!r} is not known; expected {', '.join(_RESOURCES)}"
        raise Unconfigured(f"{path}.resource", message, nearest(resource, _RESOURCES))
    named = ref.get("containerName")
    subject = container if not named else _container(pod, str(named), path)
    asked = subject.get("resources") or {}
    amount = _amount(asked, part, name)
    if not amount and part == "limits":
        amount = quantity(facts.allocatable.get(name, 0))
    divisor = quantity(ref.get("divisor") or 1) or Decimal(1)
    return str(((amount or Decimal(0)) / divisor).to_integral_value(ROUND_CEILING))


def _amount(asked: Body, part: str, name: str) -> Decimal | None:
    """A request that is not made is the limit, as an API server would have put it there."""
    found = (asked.get(part) or {}).get(name)
    if found is None and part == "requests":
        found = (asked.get("limits") or {}).get(name)
    return None if found is None else quantity(found)


def _container(pod: Body, name: str, path: str) -> Body:
    spec = pod["spec"]
    known = {one["name"]: one for one in (*(spec.get("initContainers") or ()), *spec["containers"])}
    if name not in known:
        message = f"there is no container {name!r}; the pod has {', '.join(known)}"
        raise Unconfigured(f"{path}.containerName", message, nearest(name, known))
    body: Body = known[name]
    return body


_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PASSED = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_NO_COMMAND = "missing; the image is not used, so its entrypoint is not known: name the program to run here"


class EnvironmentInput(Struct, frozen=True):
    """The container that all this is about, and what surrounds it."""

    pod: Body
    container: Body
    path: str
    facts: PodFacts
    sources: Sources
    #: What replaces variables of the pod.
    given: Mapping[str, str] = {}

    @property
    def namespace(self) -> str:
        """Where its Secrets and ConfigMaps are."""
        return str(self.pod["metadata"].get("namespace", ""))


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """What containers get of the engine's own environment."""
    return {name: value for name, value in environ.items() if name in _PASSED or name.startswith("CUDA")}


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by its value and `$$` by `$`; an unknown name stays as it is written."""
    if "$" not in text:
        return text
    return _REFERENCE.sub(lambda match: "$" if match[1] else known.get(match[2], match[0]), text)


def variables(subject: EnvironmentInput) -> dict[str, str]:
    """What `envFrom`, the caller and `env` define, in order: later ones may refer to and replace earlier ones.

    What the caller gives is not replaced by `env`, which may refer to it.
    """
    found: dict[str, str] = {}
    for index, source in enumerate(subject.container.get("envFrom") or ()):
        found.update(_all_of(subject, source, f"{subject.path}.envFrom[{index}]"))
    found.update(subject.given)
    for index, entry in enumerate(subject.container.get("env") or ()):
        if entry["name"] in subject.given:
            continue
        value = _value(subject, entry, index, found)
        if value is not None:
            found[entry["name"]] = value
    return found


def command(subject: EnvironmentInput, known: Mapping[str, str]) -> list[str]:
    """`command` and `args`, with the container's own variables in them."""
    words = subject.container.get("command")
    if not words:
        raise Unconfigured(f"{subject.path}.command", _NO_COMMAND)
    return [expand(str(word), known) for word in (*words, *(subject.container.get("args") or ()))]


def _value(subject: EnvironmentInput, entry: Body, index: int, known: Mapping[str, str]) -> str | None:
    """None: an optional source is not there, and so the variable is not."""
    written = entry.get("value")
    if written:
        return expand(str(written), known)
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
            return _one_of(subject, SECRET, ref, f"{path}.secretKeyRef")
        case {"configMapKeyRef": ref}:
            return _one_of(subject, CONFIG_MAP, ref, f"{path}.configMapKeyRef")
    known_words = "fieldRef, resourceFieldRef, secretKeyRef or configMapKeyRef"
    raise Unconfigured(path, f"expected {known_words}, found {', '.join(source)}")


def _one_of(subject: EnvironmentInput, kind: str, ref: Body, path: str) -> str | None:
    name, key = str(ref.get("name", "")), str(ref.get("key", ""))
    found = subject.sources.get((kind, name))
    if found is None:
        if ref.get("optional"):
            return None
        raise missing(f"{path}.name", kind, name, subject.namespace)
    data = found.get("data") or {}
    if key in data:
        return _text(kind, data[key])
    if ref.get("optional"):
        return None
    has = ", ".join(sorted(data)) or "no keys"
    raise Unconfigured(f"{path}.key", f"{kind} {name!r} has no key {key!r}; it has {has}", nearest(key, data))


def _all_of(subject: EnvironmentInput, source: Body, path: str) -> Iterator[tuple[str, str]]:
    prefix = str(source.get("prefix") or "")
    for kind, word in ((CONFIG_MAP, "configMapRef"), (SECRET, "secretRef")):
        ref = source.get(word)
        if ref is None:
            continue
        name = str(ref.get("name", ""))
        found = subject.sources.get((kind, name))
        if found is None and not ref.get("optional"):
            raise missing(f"{path}.{word}.name", kind, name, subject.namespace)
        for key, value in ((found or {}).get("data") or {}).items():
            if _VARIABLE.fullmatch(prefix + key):
                yield prefix + key, _text(kind, value)


def _text(kind: str, value: str) -> str:
    """A value as a variable holds it: text, and so what is no text in it is replaced."""
    return b64decode(value).decode(errors="replace") if kind == SECRET else str(value)
