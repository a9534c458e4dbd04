# SPDX-License-Identifier: Apache-2.0
"""Add our cluster, user and context to the user's kubeconfig, and remove them again.

Everything else in the file keeps its value, its order and its quotes; as with `kubectl config`, comments are lost. So
if the file contains anything that the rewriting would change, a copy is kept beside it. Entries are ours if they have
our extension (`api.credentials.MARK`), which kubectl keeps; an entry of the same name without it is never touched.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from trainwright.api.credentials import MARK, NAME
from trainwright.errors import UsageError
from trainwright.model.job import Body

#: The suffix of the copy of the file as it was before we changed it.
BACKUP = ".before-trainwright"
_LISTS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_CURRENT = "current-context"
#: The field of our extension with the context that was the current one before.
_PREVIOUS = "previous-context"
#: kubectl holds this lock only while it writes the file.
_LOCK_SECONDS = 2.0
_RETRY_SECONDS = 0.05
_MAX_BYTES = 10 << 20
#: A safe loader and dumper in C if PyYAML has them. They convert nothing here: we change the tree of nodes.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def default_path() -> Path:
    """The file that kubectl changes: the first file of KUBECONFIG, or ~/.kube/config."""
    given = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    return Path(given[0]) if given else Path.home() / ".kube/config"


def merge_kubeconfig(path: Path, ours: Body, *, use: bool = True) -> bool:
    """Add the entries of `ours` (from `ApiCredentials.kubeconfig_for`) or replace our earlier entries.

    `use` makes our context the current one. Returns whether the file has changed. Raises UsageError.
    """
    with _locked(path) as target:
        text = _read(target)
        root = _parse(target, text)
        previous = _previous(root) if use else ""
        new = _parse(target, yaml.safe_dump(_remembering(ours, previous), sort_keys=False))
        for field, part in _LISTS.items():
            _put(target, _entries(target, root, field, create=True), _items(_value(new, field))[0], part)
        if use:
            _set(root, _CURRENT, NAME)
        return _write(target, text, root)


def remove_from_kubeconfig(path: Path) -> bool:
    """Remove our entries. If our context is the current one, the context before it becomes the current one again.

    Returns whether the file has changed. Raises UsageError.
    """
    if not path.exists():
        return False
    with _locked(path) as target:
        text = _read(target)
        root = _parse(target, text)
        previous = _previous(root)
        removed = [_remove(_entries(target, root, field), part) for field, part in _LISTS.items()]
        if not any(removed):
            return False
        if _scalar(_value(root, _CURRENT)) == NAME and _find(_entries(target, root, "contexts"), NAME) is None:
            _set(root, _CURRENT, previous)
        return _write(target, text, root)


def _remembering(ours: Body, previous: str) -> Body:
    """Our entries; the extension of the context remembers which context was the current one before."""
    if not previous:
        return ours
    named = ours["contexts"][0]
    extensions = [
        {**one, "extension": {**one["extension"], _PREVIOUS: previous}} for one in named["context"]["extensions"]
    ]
    return {**ours, "contexts": [{**named, "context": {**named["context"], "extensions": extensions}}]}


# -- the tree of nodes ------------------------------------------------------------------------------------------------


def _parse(path: Path, text: str) -> yaml.MappingNode:
    """The tree of the file; a new tree for an empty file. Raises UsageError if it is not a kubeconfig."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is nested too deeply"
        raise UsageError(f"{path} is not changed, because it is not YAML: {reason}") from None
    if root is None:
        root = yaml.compose("apiVersion: v1\nkind: Config\n", Loader=_Loader)
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path} is not changed, because it is not a kubeconfig: expected a mapping")
    kind = _value(root, "kind")
    if kind is not None and _scalar(kind) != "Config":
        raise UsageError(f"{path} is not changed, because it is not a kubeconfig: its kind is {_scalar(kind) or '?'}")
    return root


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    """The value of a field of a mapping; None if there is none."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for key, value in node.value if _scalar(key) == name), None)


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _set(root: yaml.MappingNode, name: str, text: str) -> None:
    """Set a field to a text."""
    value = yaml.ScalarNode("tag:yaml.org,2002:str", text)
    for index, (key, _) in enumerate(root.value):
        if _scalar(key) == name:
            root.value[index] = (key, value)
            return
    root.value.append((yaml.ScalarNode("tag:yaml.org,2002:str", name), value))


def _entries(path: Path, root: yaml.MappingNode, field: str, *, create: bool = False) -> yaml.SequenceNode:
    """The list of a field. A list that is missing or null is empty. Raises UsageError if it is no list."""
    found = _value(root, field)
    if isinstance(found, yaml.SequenceNode):
        return found
    if found is not None and found.tag != "tag:yaml.org,2002:null":
        raise UsageError(f"{path} is not changed, because it is not a kubeconfig: {field} is not a list")
    new = yaml.SequenceNode("tag:yaml.org,2002:seq", [], flow_style=False)
    if create:
        root.value = [pair for pair in root.value if _scalar(pair[0]) != field]
        root.value.append((yaml.ScalarNode("tag:yaml.org,2002:str", field), new))
    return new


def _find(entries: yaml.SequenceNode, name: str) -> int | None:
    return next((at for at, one in enumerate(_items(entries)) if _scalar(_value(one, "name")) == name), None)


def _extension(entry: yaml.Node, part: str) -> yaml.Node | None:
    """Our extension of an entry; None if the entry is not ours."""
    extensions = _items(_value(_value(entry, part), "extensions"))
    return next((_value(one, "extension") for one in extensions if _scalar(_value(one, "name")) == MARK), None)


def _put(path: Path, entries: yaml.SequenceNode, new: yaml.Node, part: str) -> None:
    """Add an entry, or replace our earlier one. Raises UsageError if the name belongs to somebody else."""
    at = _find(entries, NAME)
    if at is None:
        entries.value.append(new)
    elif _extension(entries.value[at], part) is None:
        advice = "rename or remove it first"
        raise UsageError(f"{path} is not changed, because it has a {part} {NAME} of another origin; {advice}")
    else:
        entries.value[at] = new


def _remove(entries: yaml.SequenceNode, part: str) -> bool:
    at = _find(entries, NAME)
    if at is None or _extension(entries.value[at], part) is None:
        return False
    del entries.value[at]
    return True


def _previous(root: yaml.MappingNode) -> str:
    """The context that was the current one before ours."""
    current = _scalar(_value(root, _CURRENT))
    contexts = _items(_value(root, "contexts"))
    ours = next((one for one in contexts if _scalar(_value(one, "name")) == NAME), None)
    extension = _extension(ours, "context") if ours is not None else None
    return _scalar(_value(extension, _PREVIOUS)) if current == NAME else current


# -- the file ---------------------------------------------------------------------------------------------------------


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Hold the lock of kubectl. Yields the file itself if `path` is a link. Raises UsageError."""
    lock = path.with_name(f"{path.name}.lock")
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                break
            except FileExistsError:
                if time.monotonic() > deadline:
                    raise UsageError(f"another command changes {path}; if none does, remove {lock}") from None
                time.sleep(_RETRY_SECONDS)
    except OSError as error:
        raise UsageError(f"{path} cannot be changed: {error.strerror or error}") from None
    try:
        yield path.resolve()
    except OSError as error:
        raise UsageError(f"{path} cannot be changed: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            lock.unlink()


def _read(path: Path) -> str:
    """The text of the file; empty if there is no file. Raises UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{path} is not changed, because it cannot be read: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path} is not changed, because it is larger than {_MAX_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not changed, because it is not text in UTF-8") from None


def _write(path: Path, before: str, root: yaml.MappingNode) -> bool:
    """Replace the file by a rename, with the same mode. Keep a copy of a text that is not like our own output."""
    after = _text(root)
    if after == before:
        return False
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    backup = path.with_name(f"{path.name}{BACKUP}")
    if before and (not backup.exists() or _text(_parse(path, before)) != before):
        _replace(backup, before, mode)
    _replace(path, after, mode)
    return True


def _text(root: yaml.MappingNode) -> str:
    text: str = yaml.serialize(root, Dumper=yaml.SafeDumper, width=float("inf"), allow_unicode=True)
    return text


def _replace(path: Path, text: str, mode: int) -> None:
    new = path.with_name(f"{path.name}.trainwright-new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    new.chmod(mode)
    new.replace(path)
