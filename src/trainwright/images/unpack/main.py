# SPDX-License-Identifier: Apache-2.0
"""Reads orders as JSON lines on standard input, unpacks one layer for each, and answers with JSON lines.

The first answer says in which form layers are stored here:

* `overlay`: one folder per layer, made by the kernel as the upper folder of an overlay, for root;
* `overlay-user`: the same in a user namespace, where overlayfs keeps its marks in other attributes (`userxattr`);
* `flat`: one folder with the content of all layers of an image, where overlayfs cannot be used.

A layer is written to `.new-*`, which this process locks, and then renamed. So a layer either is complete or not there,
and a folder `.new-*` without a lock is what a killed process has left behind.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from trainwright import kernel
from trainwright.images.unpack import DESCRIPTION, FILES, FLAT, OVERLAY, OVERLAY_USER, SCRATCH_PREFIX
from trainwright.images.unpack.apply import LayerResult, apply_layer
from trainwright.images.unpack.compression import LayerError, Slice
from trainwright.images.unpack.trees import remove_tree

#: mount(2) takes one page of options, and silently ignores the rest.
_MAX_OPTION_BYTES = 4000
_PROGRESS_SECONDS = 0.1


class LayerForm(NamedTuple):
    """How layers are stored, why they are not stored as overlays, and whether files keep the owners of the layer.

    In a user namespace all files belong to the caller: the namespace has one id, so that no other can be given.
    """

    name: str
    reason: str
    keep_owners: bool


def main() -> None:
    """Serve the orders of the process that has started us."""
    layers = os.path.abspath(sys.argv[1])
    os.umask(0)  # modes are those of the layer
    try:
        form = _choose_form(layers)
    except LayerError as error:
        _say({"error": str(error)})
        return
    with suppress(OSError):
        kernel.die_with_parent()
    _say({"form": form.name, "reason": form.reason})
    folder = os.path.join(layers, form.name)
    for line in sys.stdin.buffer:
        try:
            done = unpack(folder, form, json.loads(line), _reporter())
        except LayerError as error:
            _say({"error": str(error)})
            return
        except OSError as error:
            _say({"error": error.strerror or str(error), "errno": error.errno})
            return
        except Exception as error:  # a defect in Trainwright: the user sees one line
            _say({"error": f"internal error: {type(error).__name__}: {error}"})
            return
        _say({"done": {"bytes": done.size, "entries": done.entries}})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _reporter() -> Callable[[int], None]:
    """A function that reports how many bytes of a blob are unpacked, but not too often."""
    last = 0.0

    def report(consumed: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS:
            last = now
            _say({"consumed": consumed})

    return report


# -- forms -------------------------------------------------------------------------------------------------------------


def _choose_form(layers: str) -> LayerForm:
    """Enter our own namespaces and try an overlay. Raises LayerError."""
    privileged = kernel.is_privileged()
    try:
        if not privileged:
            kernel.enter_user_namespace(None)
        kernel.unshare(kernel.NEWNS)
        kernel.mount("none", "/", None, kernel.REC | kernel.PRIVATE)
    except OSError as error:
        if os.geteuid():
            raise LayerError(
                "an ordinary user can unpack images only in a user namespace, and this machine refuses to make one: "
                f"{error.strerror or error}"
            ) from None
        return LayerForm(FLAT, f"this process cannot mount: {error.strerror or error}", True)
    reason = ""
    for name in (OVERLAY, OVERLAY_USER) if privileged else (OVERLAY_USER,):
        try:
            _try_overlay(os.path.join(layers, name), name)
        except OSError as error:
            reason = f"overlayfs cannot be used in {layers}: {error.strerror or error}"
        else:
            return LayerForm(name, "", privileged)
    return LayerForm(FLAT, reason, privileged)


def _try_overlay(folder: str, form: str) -> None:
    """Mount an overlay and replace a folder of its lower folder, which needs an attribute. Raises OSError."""
    with _scratch(folder) as (scratch, name):
        for one in ("lower", "lower/folder", "lower/folder/inner", FILES, "work", "root"):
            os.mkdir(f"{scratch}/{one}", 0o700)
        with _mounted(folder, form, name, [f"{name}/lower"]) as root:
            os.rmdir(f"{root}/folder/inner")
            os.rmdir(f"{root}/folder")
            os.mkdir(f"{root}/folder")


@contextmanager
def _scratch(folder: str) -> Iterator[tuple[str, str]]:
    """A new folder for one layer, locked as long as it is ours: its path and its name. At the end it is removed."""
    os.makedirs(folder, 0o700, exist_ok=True)
    name = f"{SCRATCH_PREFIX}{secrets.token_hex(6)}"
    path = os.path.join(folder, name)
    os.mkdir(path, 0o700)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield path, name
    finally:
        remove_tree(path)
        os.close(lock)


@contextmanager
def _mounted(folder: str, form: str, name: str, lower: list[str]) -> Iterator[str]:
    """Mount the scratch folder as the upper folder of an overlay, and return the path of the overlay.

    The options have relative names. This keeps them short, and a `:` or `,` in the path of the store means nothing.
    """
    options = f"lowerdir={':'.join(lower)},upperdir={name}/{FILES},workdir={name}/work"
    options += ",volatile" if form == OVERLAY else ",userxattr"
    if len(options) > _MAX_OPTION_BYTES:
        raise LayerError(f"the image has too many layers for one mount: {len(lower) + 1}")
    root = os.path.join(folder, name, "root")
    os.chdir(folder)
    kernel.mount("overlay", f"{name}/root", "overlay", 0, options)
    try:
        yield root
    finally:
        kernel.unmount(root)


# -- one layer ---------------------------------------------------------------------------------------------------------


def unpack(folder: str, form: LayerForm, order: dict[str, Any], report: Callable[[int], None]) -> LayerResult:
    """Make the folder of one layer; in a flat form, of all layers of an image. Raises LayerError or OSError."""
    lower = [f"{one}/{FILES}" for one in order["lower"]]
    with _scratch(folder) as (scratch, name):
        files = f"{scratch}/{FILES}"
        os.mkdir(files, 0o755)
        if not lower:
            result = _apply_all(files, order["blobs"], form.keep_owners, report)
        else:
            _copy_attributes(os.path.join(folder, lower[0]), files)
            os.mkdir(f"{scratch}/work", 0o700)
            os.mkdir(f"{scratch}/root", 0o700)
            with _mounted(folder, form.name, name, lower) as root:
                result = _apply_all(root, order["blobs"], form.keep_owners, report)
            remove_tree(f"{scratch}/work")
            os.rmdir(f"{scratch}/root")
        with open(f"{scratch}/{DESCRIPTION}", "w", encoding="ascii") as file:
            json.dump({"chain": order["chain"], "bytes": result.size, "entries": result.entries}, file)
        try:
            os.rename(scratch, os.path.join(folder, order["name"]))
        except OSError as error:
            # Another process has unpacked the same layer: its result is as good as ours.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    return result


def _apply_all(root: str, blobs: list[dict[str, Any]], keep_owners: bool, report: Callable[[int], None]) -> LayerResult:
    size = entries = before = 0
    for blob in blobs:
        with open(blob["path"], "rb") as file:
            source = Slice(file, blob["offset"], blob["size"], partial(_report_from, report, before))
            done = apply_layer(root, source, blob["diffId"], keep_owners=keep_owners)
        size, entries, before = size + done.size, entries + done.entries, before + blob["size"]
    return LayerResult(size, entries)


def _report_from(report: Callable[[int], None], before: int, consumed: int) -> None:
    report(before + consumed)


def _copy_attributes(source: str, target: str) -> None:
    """Give the root folder of a layer the attributes of the root beneath, for a layer that does not list its root."""
    info = os.stat(source)
    if info.st_uid != os.geteuid() or info.st_gid != os.getegid():
        os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


if __name__ == "__main__":
    main()
