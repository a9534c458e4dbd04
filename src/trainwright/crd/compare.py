# SPDX-License-Identifier: Apache-2.0
"""What an API server with one structural schema would not keep of what another schema describes. Pure.

API servers drop fields that a schema does not mention, and refuse values that it does not allow. Both would lose the
ledger of a job: dropped, it starts anew; refused, its status is never written again.

What is installed under the name of a CRD of ours: whose it is, and what an install would change. Pure.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from trainwright import __version__
from trainwright.crd.schema import VERSION, crd
from trainwright.kinds.base import Kind
from trainwright.model.job import Body

_LEDGER = ("status", "trainwright")
_PRESERVES = "x-kubernetes-preserve-unknown-fields"
#: Upper bounds: a smaller one refuses what the larger one allows.
_BOUNDS = ("maxLength", "maxItems", "maxProperties", "maximum")
#: How many paths a message names.
_NAMED = 5


class PrunedField(Struct, frozen=True, order=True):
    """One part that would not be kept: `status.trainwright.roles[].holds`, and why if it is not simply dropped."""

    path: str
    #: Empty: the field is dropped. Else what is refused about its value.
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.refused})" if self.refused else self.path


def losses(wanted: Body, installed: Body, path: str = "") -> Iterator[PrunedField]:
    """What a server with the schema `installed` loses of an object that the schema `wanted` describes."""
    if path and (refused := _refused(wanted, installed)):
        yield PrunedField(path, refused)
    yield from _of_properties(wanted, installed, path)
    if isinstance(inner := wanted.get("additionalProperties"), dict):
        yield from _inside(inner, _additional(installed), f"{path}.*")
    elif wanted.get(_PRESERVES) and not installed.get(_PRESERVES) and _additional(installed) is not True:
        yield PrunedField(f"{path}.*")
    if isinstance(inner := wanted.get("items"), dict):
        yield from _inside(inner, installed.get("items", installed.get(_PRESERVES)), f"{path}[]")


def _of_properties(wanted: Body, installed: Body, path: str) -> Iterator[PrunedField]:
    known = installed.get("properties") or {}
    for name, inner in (wanted.get("properties") or {}).items():
        yield from _inside(inner, known.get(name, _additional(installed)), f"{path}.{name}".lstrip("."))


def _inside(wanted: Body, installed: object, path: str) -> Iterator[PrunedField]:
    """One part; of a server that keeps everything there (True), or nothing (None)."""
    if isinstance(installed, dict):
        yield from losses(wanted, installed, path)
    elif not installed:
        yield PrunedField(path)


def _additional(installed: Body) -> object:
    """The schema of a field that is not mentioned; True: whatever it is, it is kept."""
    return bool(installed.get(_PRESERVES)) or installed.get("additionalProperties")


def _refused(wanted: Body, installed: Body) -> str:
    """What the server would refuse of a value that may be written, as far as it can be told for certain."""
    ours, theirs = wanted.get("type"), installed.get("type")
    if ours and theirs and ours != theirs and (ours, theirs) != ("integer", "number"):
        return f"a {theirs} there, a {ours} here"
    if "enum" in installed:
        values = wanted.get("enum")
        missing = [value for value in values or () if value not in installed["enum"]]
        if missing or not values:
            return f"{', '.join(map(str, missing)) or 'other values'} not allowed"
    for bound in _BOUNDS:
        if bound in installed and wanted.get(bound, float("inf")) > installed[bound]:
            return f"{bound} {installed[bound]}"
    needed = [name for name in installed.get("required") or () if name not in (wanted.get("required") or ())]
    return f"{', '.join(needed)} required" if needed else ""


def ledger_losses(kind: Kind, definition: Body) -> dict[str, tuple[PrunedField, ...]]:
    """What of the ledger a definition would not keep, by the versions that it serves or stores.

    A write through any of them goes through that version's schema, and so does what is read from the storage.
    """
    wanted: Body = schema_of(crd(kind), kind.version)["properties"]["status"]["properties"]["trainwright"]
    return {
        version["name"]: tuple(_inside(wanted, _at(schema_of(definition, version["name"]), _LEDGER), ".".join(_LEDGER)))
        for version in definition["spec"]["versions"]
        if version.get("served") or version.get("storage")
    }


def unusable(kind: Kind, definition: Body) -> str:
    """Why the operator cannot work with a definition, and what mends that; empty: it can."""
    name, mend = f"{kind.plural}.{kind.group}", f"`trainwright crds {kind.singular} | kubectl apply --server-side -f -`"
    version: Body = next((one for one in definition["spec"]["versions"] if one["name"] == kind.version), {})
    if not version.get("served"):
        return f"{name} is another one's: it does not serve {kind.version}; {mend} brings ours"
    if _at(schema_of(definition, kind.version), _LEDGER) is None:
        return (
            f"{name} is another one's: its status has no `trainwright`, so nothing would be remembered; {mend} brings"
            " ours"
        )
    if "status" not in (version.get("subresources") or {}):
        return f"{name} has no status subresource in {kind.version}, so that no status can be written; {mend} brings it"
    lost = [f"{one} in {version}" for version, found in ledger_losses(kind, definition).items() for one in found]
    if not lost:
        return ""
    return f"{name} would drop or refuse parts of the durable state: {listed(lost)}; {mend} mends that"


def listed(names: list[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def schema_of(definition: Body, version: str) -> Body:
    """The schema of one version; a definition that preserves unknown fields as a whole keeps everything."""
    if definition["spec"].get("preserveUnknownFields"):
        return {_PRESERVES: True}
    found: Body = next((one for one in definition["spec"]["versions"] if one["name"] == version), {})
    schema: Body = (found.get("schema") or {}).get("openAPIV3Schema") or {}
    return schema


def _at(schema: Body, path: tuple[str, ...]) -> object:
    """The schema of a part; True: the part is kept whatever it is, None: it is dropped."""
    found: object = schema
    for step in path:
        if not isinstance(found, dict):
            return found or None
        found = (found.get("properties") or {}).get(step, _additional(found))
    return found or None


_HELM = "meta.helm.sh/release-name"
_HELM_NAMESPACE = "meta.helm.sh/release-namespace"
_GENERATOR = "controller-gen.kubebuilder.io/version"
_LABELS = tuple(f"app.kubernetes.io/{word}" for word in ("name", "part-of", "instance", "managed-by"))


class CrdOrigin(StrEnum):
    """Whose definition is installed."""

    ABSENT = "absent"
    CURRENT = "current"  # ours, of this version
    OURS = "ours"  # ours, of another version
    OTHER = "other"
    UNKNOWN = "unknown"  # it may not be read


class InstalledCrd(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What is installed under the name of one kind's CRD."""

    name: str
    origin: CrdOrigin
    #: Who installed it, as far as can be told.
    owner: str = ""
    #: The version of Trainwright that it is of, if it says so.
    version: str = ""
    serves: tuple[str, ...] = ()
    #: Versions that would no longer be served after an install.
    vanish: tuple[str, ...] = ()
    #: Versions that objects are stored in and that ours lacks: the API server refuses an install.
    stored: tuple[str, ...] = ()
    #: Fields of the installed schema that an install would drop from stored objects.
    pruned: tuple[str, ...] = ()
    #: Why the operator would refuse to start with it as it is.
    unusable: str = ""


def installed(kind: Kind, definition: Body) -> InstalledCrd:
    """What is there, compared with what this version would install."""
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
    if all(_same(one, definition) for one in wanted["spec"]["versions"]):
        return CrdOrigin.CURRENT
    ours = any(_has_ledger(definition, one["name"]) for one in definition["spec"]["versions"])
    return CrdOrigin.OURS if ours else CrdOrigin.OTHER


def _same(version: Body, definition: Body) -> bool:
    found: Body = next((one for one in definition["spec"]["versions"] if one["name"] == version["name"]), {})
    return all(found.get(name) == part for name, part in version.items())


def _has_ledger(definition: Body, version: str) -> bool:
    status = (schema_of(definition, version).get("properties") or {}).get("status") or {}
    return "trainwright" in (status.get("properties") or {})


def _pruned(wanted: Body, definition: Body, ours: Iterable[str]) -> tuple[str, ...]:
    """In the versions that both serve; what is only refused is still there to be read."""
    found: dict[str, None] = {}
    for version in ours:
        lost: Iterable[PrunedField] = losses(schema_of(definition, version), schema_of(wanted, version))
        found |= dict.fromkeys(one.path for one in lost if not one.refused)
    return tuple(found)


def owner_of(meta: Body) -> str:
    """Who installed an object, from the marks that installers leave on it."""
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    marks = []
    if notes.get(_HELM):
        marks.append(f"Helm release {notes.get(_HELM_NAMESPACE, '')}/{notes[_HELM]}")
    marks += [f"{label}={labels[label]}" for label in _LABELS if labels.get(label)]
    if notes.get(_GENERATOR):
        marks.append(f"generated by controller-gen {notes[_GENERATOR]}")
    entries = [one for one in meta.get("managedFields") or () if one.get("subresource") != "status"]
    managers = dict.fromkeys(str(one.get("manager")) for one in entries)
    if managers:
        marks.append(f"applied by {' and '.join(managers)}")
    return ", ".join(marks) or "unknown"


def worded(found: InstalledCrd) -> str:
    """In a few words: whose it is."""
    return {
        CrdOrigin.ABSENT: "not installed",
        CrdOrigin.CURRENT: f"this version's ({found.version or __version__})",
        CrdOrigin.OURS: f"of another Trainwright ({found.version or 'it does not say which'})",
        CrdOrigin.OTHER: f"another owner's ({found.owner})",
        CrdOrigin.UNKNOWN: "not permitted to look",
    }[found.origin]
