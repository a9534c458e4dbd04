# SPDX-License-Identifier: Apache-2.0
"""Strategic merge patches: merge patches for built-in kinds, in which some lists are merged item by item.

A list in `_LISTS` is merged: items with the same value of the merge key are merged, other items of the patch are added.
All other lists are replaced. Directives in a patch control the merge:

    {"$patch": "delete", "name": "a"}          in a list: remove the item; in a map: make the map empty
    {"$patch": "replace", ...}                 use this list or this map as it is
    {"$retainKeys": ["a", "b"], ...}           remove all other members of this map
    {"$setElementOrder/ports": [...], ...}     the order of the items of `ports` in the result
    {"$deleteFromPrimitiveList/finalizers": [...]}   remove these values from `finalizers`

The target and the patch are not changed. The result shares the parts that the patch does not change.
"""

from typing import Any

from trainwright.api.untrusted import check_levels, shown
from trainwright.errors import BadRequestError, InvalidError
from trainwright.local.storage.metadata import same
from trainwright.model.job import Body

_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"

#: The kinds whose objects can be patched this way. An API server refuses it for all other kinds (HTTP 415).
KINDS = frozenset({
    "ConfigMap", "Event", "Lease", "Namespace", "Node", "PersistentVolumeClaim", "Pod", "Secret", "Service",
})  # fmt: skip
_METADATA_LISTS = {"metadata.ownerReferences": "uid", "metadata.finalizers": ""}
_CLAIM_TEMPLATE = "spec.volumes.ephemeral.volumeClaimTemplate"
_CONTAINER = {"ports": "containerPort", "env": "name", "volumeMounts": "mountPath", "volumeDevices": "devicePath"}
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
#: The merge key of every merged list, by its path without indexes. An empty key: a set of texts or numbers.
#: The paths and keys are the tags `patchStrategy` and `patchMergeKey` of the Go types of Kubernetes 1.36.
_LISTS: dict[str, dict[str, str]] = {
    "Pod": {
        "spec.volumes": "name",
        **{f"{_CLAIM_TEMPLATE}.{name}": key for name, key in _METADATA_LISTS.items()},
        "spec.imagePullSecrets": "name",
        "spec.hostAliases": "ip",
        "spec.topologySpreadConstraints": "topologyKey",
        "spec.schedulingGates": "name",
        "spec.resourceClaims": "name",
        **{f"spec.{part}": "name" for part in _CONTAINERS},
        **{f"spec.{part}.{name}": key for part in _CONTAINERS for name, key in _CONTAINER.items()},
        "status.conditions": "type",
        "status.hostIPs": "ip",
        "status.podIPs": "ip",
        "status.resourceClaimStatuses": "name",
    },
    "Service": {"spec.ports": "port", "status.conditions": "type"},
    "Node": {"spec.podCIDRs": "", "status.conditions": "type", "status.addresses": "type"},
    "Namespace": {"status.conditions": "type"},
    "PersistentVolumeClaim": {"status.conditions": "type"},
}


def strategic_merge(kind: str, target: Body, patch: Any) -> Body:
    """The target with the patch; the target itself if the patch changes nothing.

    Raises BadRequestError if the patch is not valid. The kind must be one of KINDS.
    """
    if not isinstance(patch, dict):
        raise BadRequestError("the body is not a strategic merge patch; expected a JSON object")
    check_levels(patch, "the strategic merge patch")
    result = _Merge({**_METADATA_LISTS, **_LISTS.get(kind, {})}).maps(target, patch, "")
    return target if same(target, result) else result


class _Merge:
    """Merges one patch. A path such as `spec.containers.env` names a field without the indexes of lists."""

    def __init__(self, merge_keys: dict[str, str]) -> None:
        self._merge_keys = merge_keys

    def maps(self, target: Body, patch: Body, path: str) -> Body:
        """One map of the target with the same map of the patch."""
        if _DIRECTIVE in patch:
            return _directed(patch, path)
        result = _retained(target, patch, path)
        ordered = self._ordered_lists(result, patch, path)
        result.update(ordered)
        for name, value in patch.items():
            if name == _RETAIN or name in ordered or name.startswith(_ORDER):
                continue
            if name.startswith(_DELETE):
                self._delete_values(result, name.removeprefix(_DELETE), value, path)
            elif value is None:
                result.pop(name, None)
            else:
                self._set(result, name, value, path)
        return target if _same_members(target, result) else result

    def _set(self, result: Body, name: str, value: Any, path: str) -> None:
        """Merge one member of the patch into the result."""
        old, at = result.get(name), _join(path, name)
        if isinstance(old, dict) and isinstance(value, dict):
            result[name] = self.maps(old, value, at)
        elif isinstance(old, list) and isinstance(value, list):
            merged = self.lists(old, value, at)
            result[name] = old if same(old, merged) else merged
        elif isinstance(value, dict) and _DIRECTIVE in value:
            result.pop(name, None)
        else:
            result[name] = _new(value)

    def _delete_values(self, result: Body, name: str, values: Any, path: str) -> None:
        old = result.get(name)
        if values is None:
            result.pop(name, None)
        elif isinstance(old, list) and isinstance(values, list):
            at = _join(path, name)
            _check_values([*old, *values], at)
            unwanted = {_identity(value, "", at) for value in values}
            result[name] = [value for value in old if _identity(value, "", at) not in unwanted]

    # -- lists -----------------------------------------------------------------------------------------------------

    def lists(self, target: list[Any], patch: list[Any], path: str) -> list[Any]:
        """One list of the target with the same list of the patch."""
        key = self._merge_keys.get(path)
        if key is None:
            return [_plain(item) for item in patch]
        if not key:
            values = [*target, *patch]
            _check_values(values, path)
            return _arranged(
                list({_identity(value, key, path): value for value in values}.values()), patch, target, key, path
            )
        if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
            return [_plain(item) for item in patch if _directive(item, path) is None]
        deleted = {_identity(item, key, path) for item in patch if _directive(item, path) == "delete"}
        changes = [item for item in patch if _directive(item, path) is None]
        kept = [item for item in target if not deleted or _identity(item, key, path) not in deleted]
        return _arranged(self._merged(kept, changes, key, path), changes, kept, key, path)

    def _merged(self, target: list[Any], changes: list[Any], key: str, path: str) -> list[Any]:
        """The items of the target, changed, and the new items after them. Of equal keys the first item is changed."""
        merged = list(target)
        places: dict[Any, int] = {}
        for place, item in enumerate(target):
            places.setdefault(_identity(item, key, path), place)
        for change in changes:
            place = places.setdefault(_identity(change, key, path), len(merged))
            if place < len(merged):
                merged[place] = self.maps(merged[place], change, path)
            else:
                merged.append(_plain(change))
        return merged

    def _ordered_lists(self, target: Body, patch: Body, path: str) -> Body:
        """The merged lists for which the patch has an order, by name."""
        found: Body = {}
        for directive, order in patch.items():
            if not directive.startswith(_ORDER):
                continue
            name = directive.removeprefix(_ORDER)
            at, old, changes = _join(path, name), target.get(name), patch.get(name)
            if not all(isinstance(part, list) for part in (order, old or [], patch.get(name, []))):
                raise BadRequestError(f"{_join(path, directive)}: expected lists in the patch and in the object")
            if old is None and changes is None:
                continue
            key = self._merge_keys.get(at, "")
            _check_order(changes or [], order, key, at)
            before: list[Any] = old or []
            merged = before if changes is None else _new(changes) if old is None else self.lists(before, changes, at)
            arranged = _arranged(merged, order, _old_order(before, merged, changes or [], key, at), key, at)
            found[name] = old if same(old, arranged) else arranged
        return found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _same_members(old: Body, new: Body) -> bool:
    return len(old) == len(new) and all(name in new and same(value, new[name]) for name, value in old.items())


# -- directives -------------------------------------------------------------------------------------------------------


def _directed(patch: Body, path: str) -> Body:
    """The map that a map with `$patch` makes."""
    directive = patch[_DIRECTIVE]
    if directive == "delete":
        return {}
    if directive == "replace":
        result: Body = _plain(patch)
        return result
    raise BadRequestError(f"{_join(path, _DIRECTIVE)}: {shown(directive)}; expected delete or replace")


def _directive(item: Any, path: str) -> str | None:
    """The directive of one item of a merged list."""
    if not isinstance(item, dict):
        raise BadRequestError(f"{path}: the patch has the item {shown(item)}; expected an object")
    found = item.get(_DIRECTIVE)
    if found is None and _DIRECTIVE not in item:
        return None
    if not isinstance(found, str) or found not in ("delete", "replace"):
        raise BadRequestError(f"{path}: $patch is {shown(found)}; expected delete or replace")
    return found


def _retained(target: Body, patch: Body, path: str) -> Body:
    """A copy of the target, with only the members that `$retainKeys` names."""
    if _RETAIN not in patch:
        return dict(target)
    names = patch[_RETAIN]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequestError(f"{_join(path, _RETAIN)}: expected a list of names")
    retained = frozenset(names)
    for name, value in patch.items():
        if value is not None and name not in retained and not _is_directive(name):
            raise BadRequestError(f"{_join(path, _RETAIN)}: it lacks {shown(name)}, which the patch sets")
    return {name: value for name, value in target.items() if name in retained}


def _new(value: Any) -> Any:
    """A value for a member that the target does not have: without nulls, and without maps that have a directive."""
    if isinstance(value, dict):
        return {
            name: _new(member)
            for name, member in value.items()
            if member is not None and not _marked(member) and not _is_directive(name)
        }
    if isinstance(value, list):
        return [_new(item) for item in value if not _marked(item)]
    return value


def _marked(value: Any) -> bool:
    return isinstance(value, dict) and _DIRECTIVE in value


def _plain(value: Any) -> Any:
    """A value that replaces another: without nulls and directives."""
    if isinstance(value, dict):
        return {
            name: _plain(member) for name, member in value.items() if member is not None and not _is_directive(name)
        }
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _is_directive(name: str) -> bool:
    return name in (_DIRECTIVE, _RETAIN) or name.startswith((_ORDER, _DELETE))


# -- the items of merged lists, and their order -----------------------------------------------------------------------


def _identity(item: Any, key: str, path: str) -> Any:
    """What identifies an item: the value of its merge key, or the item itself. 1 and true are not the same."""
    if key:
        if not isinstance(item, dict) or key not in item:
            raise BadRequestError(f"{path}: {shown(item)} has no {key!r}, which identifies the items of this list")
        item = item[key]
    if isinstance(item, dict | list):
        raise BadRequestError(f"{path}: {shown(item)} cannot identify an item; expected a text or a number")
    return type(item), item


def _check_values(values: list[Any], path: str) -> None:
    """Raise unless these values can be a set: all of one type, and no maps or lists."""
    types = set(map(type, values))
    if list in types:
        raise InvalidError(f"{path}: lists of lists cannot be merged")
    if len(types) > 1 or dict in types:
        raise BadRequestError(f"{path}: expected texts only, or numbers only")


def _check_order(changes: list[Any], order: list[Any], key: str, path: str) -> None:
    """Raise unless the order names all items of the patch, in the same order."""
    wanted = [_identity(item, key, path) for item in changes if not _marked(item)]
    if not order or not wanted:
        return
    remaining = iter([_identity(item, key, path) for item in order])
    if not all(any(found == item for found in remaining) for item in wanted):
        raise BadRequestError(f"{path}: the order of the items in the patch does not match $setElementOrder")


def _old_order(target: list[Any], merged: list[Any], changes: list[Any], key: str, path: str) -> list[Any]:
    """The order of the target for `_arranged`: new items have the places at the end that deleted items leave.

    An API server does this by accident: it appends new items to the array from which it has removed the deleted ones.
    """
    if not key or any(item.get(_DIRECTIVE) == "replace" for item in changes):
        return target
    left = _ranks(merged, key, path)
    kept = [item for item in target if _identity(item, key, path) in left]
    known = _ranks(kept, key, path)
    new = [item for item in changes if not _marked(item) and _identity(item, key, path) not in known]
    return [*kept, *new][: len(target)]


def _arranged(items: list[Any], order: list[Any], target: list[Any], key: str, path: str) -> list[Any]:
    """The items in the given order. Items that the order does not name keep their place if possible.

    The two groups are merged as an API server does it: an item that only the target has comes before the next item of
    the order that it preceded in the target.
    """
    rank, old_rank = _ranks(order, key, path), _ranks(target, key, path)
    known = [(_identity(item, key, path), item) for item in items]
    named = sorted((pair for pair in known if pair[0] in rank), key=lambda pair: rank[pair[0]])
    others = sorted(
        (pair for pair in known if pair[0] not in rank), key=lambda pair: old_rank.get(pair[0], len(old_rank))
    )
    result: list[Any] = []
    next_named = 0
    for identity, item in others:
        while next_named < len(named) and not _precedes(old_rank, identity, named[next_named][0]):
            result.append(named[next_named][1])
            next_named += 1
        result.append(item)
    return [*result, *(item for _, item in named[next_named:])]


def _ranks(items: list[Any], key: str, path: str) -> dict[Any, int]:
    ranks: dict[Any, int] = {}
    for place, item in enumerate(items):
        ranks.setdefault(_identity(item, key, path), place)
    return ranks


def _precedes(ranks: dict[Any, int], one: Any, other: Any) -> bool:
    return one in ranks and other in ranks and ranks[one] < ranks[other]
