# SPDX-License-Identifier: Apache-2.0
"""Compares an installed CRD with ours: which fields its schema would not keep, and what an install would change. Pure.

An API server drops fields that a schema does not contain and refuses values that the schema does not allow. Both would
lose the ledger of a job: without its ledger a job starts from the beginning, and a refused status is never stored.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from trainwright import __version__
from trainwright.crd.schema import VERSION, crd, schema
from trainwright.kinds.base import Kind
from trainwright.model.job import Body

_LEDGER = ("status", "trainwright")
_PRESERVES = "x-kubernetes-preserve-unknown-fields"
#: Schema keywords that are upper bounds.
_UPPER_BOUNDS = ("maxLength", "maxItems", "maxProperties", "maximum")
#: The number of paths that a message lists.
_MAX_LISTED = 5
_HELM = "meta.helm.sh/release-name"
_HELM_NAMESPACE = "meta.helm.sh/release-namespace"
_GENERATOR = "controller-gen.kubebuilder.io/version"
_OWNER_LABELS = tuple(f"app.kubernetes.io/{name}" for name in ("name", "part-of", "instance", "managed-by"))


class PrunedField(Struct, frozen=True, order=True):
    """A field that an API server would drop or refuse; example of a path: `status.trainwright.roles[].holds`."""

    path: str
    #: Why the server refuses a value of the field; empty if it drops the field.
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.refused})" if self.refused else self.path


def losses(wanted: Body, installed: Body, path: str = "") -> Iterator[PrunedField]:
    """The fields in the schema `wanted` that an API server would drop or refuse, if it uses the schema `installed`."""
    if path and (refused := _refusal(wanted, installed)):
        yield PrunedField(path, refused)
    known = installed.get("properties") or {}
    for name, inner in (wanted.get("properties") or {}).items():
        yield from _field_losses(inner, known.get(name, _additional(installed)), f"{path}.{name}".lstrip("."))
    if isinstance(inner := wanted.get("additionalProperties"), dict):
        yield from _field_losses(inner, _additional(installed), f"{path}.*")
    elif wanted.get(_PRESERVES) and not installed.get(_PRESERVES) and _additional(installed) is not True:
        yield PrunedField(f"{path}.*")
    if isinstance(inner := wanted.get("items"), dict):
        yield from _field_losses(inner, installed.get("items", installed.get(_PRESERVES)), f"{path}[]")


def _field_losses(wanted: Body, installed: object, path: str) -> Iterator[PrunedField]:
    """The losses of one field. `installed` is its schema, True (any value is kept) or None (the field is dropped)."""
    if isinstance(installed, dict):
        yield from losses(wanted, installed, path)
    elif not installed:
        yield PrunedField(path)


def _additional(installed: Body) -> object:
    """The schema for fields outside `properties`; True: the server keeps any value; None or False: it drops them."""
    return bool(installed.get(_PRESERVES)) or installed.get("additionalProperties")


def _refusal(wanted: Body, installed: Body) -> str:
    """Why the server would refuse some value that `wanted` allows; empty if no such value is known."""
    ours, theirs = wanted.get("type"), installed.get("type")
    if ours and theirs and ours != theirs and (ours, theirs) != ("integer", "number"):
        return f"its type is {theirs}, expected {ours}"
    if "enum" in installed:
        values = wanted.get("enum")
        missing = [value for value in values or () if value not in installed["enum"]]
        if missing or not values:
            return f"{', '.join(map(str, missing)) or 'other values'} not allowed"
    for bound in _UPPER_BOUNDS:
        if bound in installed and wanted.get(bound, float("inf")) > installed[bound]:
            return f"{bound} {installed[bound]}"
    needed = [name for name in installed.get("required") or () if name not in (wanted.get("required") or ())]
    return f"{', '.join(needed)} required" if needed else ""


def ledger_losses(kind: Kind, definition: Body) -> dict[str, tuple[PrunedField, ...]]:
    """The fields of the ledger that a CRD would not keep, for each version that the CRD serves or stores.

    The schema of a version applies to every write through this version and to every read from the storage.
    """
    wanted: Body = schema(kind.wire)["properties"]["status"]["properties"]["trainwright"]
    return {
        version["name"]: tuple(
            _field_losses(wanted, _at(schema_of(definition, version["name"]), _LEDGER), ".".join(_LEDGER))
        )
        for version in definition["spec"]["versions"]
        if version.get("served") or version.get("storage")
    }


def unusable(kind: Kind, definition: Body) -> str:
    """Why the operator cannot work with a CRD, and the command that corrects the CRD; empty if the CRD is usable."""
    name, version = f"{kind.plural}.{kind.group}", _version(definition, kind.version)
    install = f"install ours with `trainwright crds {kind.id} | kubectl apply --server-side -f -`"
    if not version.get("served"):
        return f"{name} belongs to another operator: it does not serve {kind.version}; {install}"
    if _at(schema_of(definition, kind.version), _LEDGER) is None:
        return (
            f"{name} belongs to another operator: its status has no `trainwright`, so the API server would drop the"
            f" state of every job; {install}"
        )
    if "status" not in (version.get("subresources") or {}):
        return f"{name} has no status subresource in {kind.version}, so no status can be written; {install}"
    lost = [f"{one} in {version}" for version, found in ledger_losses(kind, definition).items() for one in found]
    if not lost:
        return ""
    return f"{name} would drop or refuse parts of the durable state: {listed(lost)}; {install}"


def is_foreign(definition: Body) -> bool:
    """Whether a CRD is not from any version of Trainwright, so another operator manages its jobs."""
    return not any(_has_ledger(definition, one["name"]) for one in definition["spec"]["versions"])


def listed(names: list[str]) -> str:
    """The first names, and the number of the other names."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def schema_of(definition: Body, version: str) -> Body:
    """The schema of one version of a CRD. A CRD with `preserveUnknownFields` keeps every field."""
    if definition["spec"].get("preserveUnknownFields"):
        return {_PRESERVES: True}
    schema: Body = (_version(definition, version).get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


def _version(definition: Body, name: str) -> Body:
    return next((one for one in definition["spec"]["versions"] if one["name"] == name), {})


def _at(schema: Body, path: tuple[str, ...]) -> object:
    """The schema of the field at a path; True if the server keeps any value, None if it drops the field."""
    found: object = schema
    for step in path:
        if not isinstance(found, dict):
            return found or None
        found = (found.get("properties") or {}).get(step, _additional(found))
    return found or None


class CrdOrigin(StrEnum):
    """Who made the installed CRD."""

    ABSENT = "absent"
    CURRENT = "current"  # this version of Trainwright
    OURS = "ours"  # another version of Trainwright
    OTHER = "other"
    UNKNOWN = "unknown"  # we have no right to read the CRD


class InstalledCrd(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The CRD that is installed for one kind."""

    name: str
    origin: CrdOrigin
    #: Who installed the CRD, from labels, annotations and field managers.
    owner: str = ""
    #: The version of Trainwright that made the CRD, if an annotation contains the version.
    version: str = ""
    serves: tuple[str, ...] = ()
    #: Versions that would not be served any more after an install.
    vanish: tuple[str, ...] = ()
    #: Versions of stored objects that are not in our CRD. If there is one, the API server refuses an install.
    stored: tuple[str, ...] = ()
    #: Fields of the installed schema that an install would drop from stored objects.
    pruned: tuple[str, ...] = ()
    #: Why the operator cannot work with this CRD.
    unusable: str = ""


def installed(kind: Kind, definition: Body) -> InstalledCrd:
    """Compare an installed CRD with the CRD that this version would install."""
    spec, wanted = definition["spec"], crd(kind)
    meta, ours = definition.get("metadata") or {}, [one["name"] for one in wanted["spec"]["versions"]]
    origin = _origin(wanted, definition)
    return InstalledCrd(
        name=f"{kind.plural}.{kind.group}",
        origin=origin,
        owner=owner_of(meta),
        version=str((meta.get("annotations") or {}).get(VERSION) or ""),
        serves=tuple(one["name"] for one in spec["versions"] if one.get("served")),
        vanish=tuple(one["name"] for one in spec["versions"] if one.get("served") and one["name"] not in ours),
        stored=tuple(name for name in (definition.get("status") or {}).get("storedVersions") or () if name not in ours),
        pruned=() if origin is CrdOrigin.CURRENT else _pruned(wanted, definition, ours),
        unusable=unusable(kind, definition),
    )


def _origin(wanted: Body, definition: Body) -> CrdOrigin:
    versions = [(one, _version(definition, one["name"])) for one in wanted["spec"]["versions"]]
    if all(found.get(name) == part for version, found in versions for name, part in version.items()):
        return CrdOrigin.CURRENT
    return CrdOrigin.OTHER if is_foreign(definition) else CrdOrigin.OURS


def _has_ledger(definition: Body, version: str) -> bool:
    status = (schema_of(definition, version).get("properties") or {}).get("status") or {}
    return "trainwright" in (status.get("properties") or {})


def _pruned(wanted: Body, definition: Body, ours: Iterable[str]) -> tuple[str, ...]:
    """The fields that our CRD would drop. Fields whose values it refuses are left out: stored values stay readable."""
    found: dict[str, None] = {}
    for version in ours:
        lost: Iterable[PrunedField] = losses(schema_of(definition, version), schema_of(wanted, version))
        found |= dict.fromkeys(one.path for one in lost if not one.refused)
    return tuple(found)


def owner_of(meta: Body) -> str:
    """Who installed an object, from the labels, annotations and field managers that installers set."""
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    marks = []
    if annotations.get(_HELM):
        marks.append(f"Helm release {annotations.get(_HELM_NAMESPACE, '')}/{annotations[_HELM]}")
    marks += [f"{label}={labels[label]}" for label in _OWNER_LABELS if labels.get(label)]
    if annotations.get(_GENERATOR):
        marks.append(f"generated by controller-gen {annotations[_GENERATOR]}")
    entries = [one for one in meta.get("managedFields") or () if one.get("subresource") != "status"]
    managers = dict.fromkeys(str(one.get("manager")) for one in entries)
    if managers:
        marks.append(f"applied by {' and '.join(managers)}")
    return ", ".join(marks) or "unknown"


def worded(found: InstalledCrd) -> str:
    """The origin of a CRD as a short text."""
    return {
        CrdOrigin.ABSENT: "not installed",
        CrdOrigin.CURRENT: f"from this version ({found.version or __version__})",
        CrdOrigin.OURS: f"from another version of Trainwright ({found.version or 'unknown'})",
        CrdOrigin.OTHER: f"from another owner ({found.owner})",
        CrdOrigin.UNKNOWN: "no permission to read it",
    }[found.origin]
