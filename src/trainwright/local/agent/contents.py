# SPDX-License-Identifier: Apache-2.0
"""The files of a ConfigMap or Secret volume: which they are, and writing them. Called by `volumes`."""

from base64 import b64decode
from pathlib import Path

from trainwright.local.agent import paths
from trainwright.local.agent.refusals import Unconfigured
from trainwright.model.job import Body
from trainwright.model.problem import nearest

_MODE = 0o644

#: By file name: what is in it, and its mode.
Files = dict[str, tuple[bytes, int]]


def of_config_map(body: Body) -> dict[str, bytes]:
    """Its keys with what they hold: text and binary."""
    found = {key: str(value).encode() for key, value in (body.get("data") or {}).items()}
    return found | {key: b64decode(value) for key, value in (body.get("binaryData") or {}).items()}


def of_secret(body: Body) -> dict[str, bytes]:
    """Its keys with what they hold."""
    return {key: b64decode(value) for key, value in (body.get("data") or {}).items()}


def write(folder: str, data: dict[str, bytes], source: Body, path: str) -> None:
    """Put the keys, or those that `items` chooses, into the folder."""
    put(folder, chosen(data, source, path))


def put(folder: str, files: Files) -> None:
    """Have these files in the folder. One that changes is replaced: who reads it reads the old or the new."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in files.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and place.read_bytes() == content:
            place.chmod(mode)
            continue
        beside = place.with_name(f".{place.name}.new")
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(place)


def chosen(data: dict[str, bytes], source: Body, path: str) -> Files:
    """The files of the keys."""
    default = int(source.get("defaultMode") or _MODE)
    items = source.get("items")
    if not items:
        return {key: (content, default) for key, content in data.items()}
    found: Files = {}
    for index, item in enumerate(items):
        key, where = str(item.get("key", "")), f"{path}.items[{index}]"
        if key in data:
            found[paths.inner(str(item.get("path", "")), f"{where}.path")] = data[key], int(item.get("mode") or default)
        elif not source.get("optional"):
            has = ", ".join(sorted(data)) or "no keys"
            raise Unconfigured(f"{where}.key", f"there is no key {key!r}; it has {has}", nearest(key, data))
    return found
