# SPDX-License-Identifier: Apache-2.0
"""Apply one layer, a tar archive, to a root folder.

The root is a mounted overlay of the layers beneath, or a plain folder with their content. So a whiteout is a removal,
and an entry below a symbolic link of a lower layer goes where the link leads, within the root.

A layer is not trusted. Every folder is opened by `kernel.open_in_root`, so that no name and no link leads out of the
root, and the last part of a name is never followed. Device nodes are left out.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import shutil
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import NamedTuple, TypeVar

from trainwright import kernel
from trainwright.images.unpack.compression import LayerError, Slice, plain_chunks

_WHITEOUT, _OPAQUE, _AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
_XATTR = "SCHILY.xattr."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_BYTES = 1 << 20
#: How many chunks the thread that decompresses may be ahead.
_CHUNKS_AHEAD = 8
#: Folders within folders. Real images have far fewer, and functions that walk a tree use one open file for each.
_MAX_DEPTH = 250

Made = TypeVar("Made")


class OpenFolder(NamedTuple):
    """An open folder of the root, and its path without symbolic links, from the root and without a first slash."""

    fd: int
    path: str


class TarStream:
    """A stream of chunks as a file that can only be read forward. `size` is the number of bytes that it has given."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest, self.size = chunks, memoryview(b""), 0

    def read(self, number: int) -> bytes:
        """Return exactly so many bytes, or fewer at the end of the stream."""
        if number < 0:
            raise LayerError("the layer has an entry with a negative size")
        if number <= len(self._rest):
            data, self._rest = bytes(self._rest[:number]), self._rest[number:]
            self.size += number
            return data
        parts = []
        while number:
            if not self._rest:
                self._rest = memoryview(next(self._chunks, b""))
                if not self._rest:
                    break
            part, self._rest = self._rest[:number], self._rest[number:]
            parts.append(part)
            number -= len(part)
            self.size += len(part)
        return b"".join(parts)

    def tell(self) -> int:
        """The position, for `tarfile`."""
        return self.size

    def seek(self, position: int) -> int:
        """Skip bytes. `tarfile` never asks for a position that lies behind us."""
        while self.size < position and self.read(min(position - self.size, _COPY_BYTES)):
            pass
        return self.size


class LayerResult(NamedTuple):
    """What one layer contained: its bytes when it is unpacked, and the number of its entries."""

    size: int
    entries: int


def apply_layer(root: str, source: Slice, diff_id: str, *, keep_owners: bool) -> LayerResult:
    """Apply the layer and compare its content with the diff id. Raises LayerError or OSError."""
    checksum = hashlib.sha256()
    chunks = _ahead(_hashed(plain_chunks(source), checksum))
    stream = TarStream(chunks)
    writer = LayerWriter(root, keep_owners=keep_owners)
    try:
        entries = writer.write(stream)
        while stream.read(_COPY_BYTES):  # the padding behind the archive is a part of the diff id
            pass
        writer.set_folder_times()
    finally:
        writer.close()
    found = f"sha256:{checksum.hexdigest()}"
    if found != diff_id:
        raise LayerError(f"the unpacked layer has the checksum {found}, and the image expects {diff_id}")
    return LayerResult(stream.size, entries)


def _hashed(chunks: Iterator[bytes], checksum: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        checksum.update(chunk)
        yield chunk


def _ahead(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Take the chunks in a thread, so that decompression and checksums use a second CPU."""
    queue: Queue[bytes | BaseException] = Queue(_CHUNKS_AHEAD)

    def work() -> None:
        try:
            for chunk in chunks:
                queue.put(chunk)
            queue.put(b"")
        except BaseException as error:  # raised again in the thread that reads
            queue.put(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        found = queue.get()
        if isinstance(found, BaseException):
            raise found
        if not found:
            return
        yield found


class LayerWriter:
    """Writes the entries of one layer into a root."""

    def __init__(self, root: str, *, keep_owners: bool) -> None:
        self._root = os.open(root, _FOLDER)
        self._root_path = os.readlink(f"/proc/self/fd/{self._root}")
        self._keep_owners = keep_owners
        #: The paths that this layer has added, and their parents. Its whiteouts do not remove them.
        self._added: set[str] = set()
        self._folder_times: dict[str, float] = {}
        #: The folder of the entry before, since an archive lists the files of a folder one after the other.
        self._last: tuple[str, OpenFolder] | None = None

    def close(self) -> None:
        """Close the folders."""
        self._forget_last()
        os.close(self._root)

    def write(self, stream: TarStream) -> int:
        """Write all entries and return their number."""
        number = 0
        try:
            with tarfile.TarFile(fileobj=stream, mode="r", errors="surrogateescape") as tar:  # type: ignore[arg-type]
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # otherwise memory grows with the archive
                    number += 1
                    self._write_one(tar, member)
        except tarfile.TarError as error:
            if not stream.size:
                return 0  # an empty layer without even the two blocks of zeros
            raise LayerError(f"the layer is not a tar archive: {error}") from None
        return number

    def set_folder_times(self) -> None:
        """Set the times of folders. This is last, because each new entry changes the time of its folder."""
        for path, mtime in self._folder_times.items():
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._opened(path) as fd:
                _set_times(fd, mtime)

    def _write_one(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = posixpath.normpath(f"/{member.name}").lstrip("/")
        if "\0" in path:
            raise LayerError(f"the layer has an entry with a NUL byte in its name: {member.name!r}")
        try:
            if not path:
                if member.isdir():
                    self._finish_folder(OpenFolder(os.dup(self._root), ""), member)
                return
            parent, name = posixpath.split(path)
            folder = self._folder(parent)
            if name.startswith(_WHITEOUT):
                self._whiteout(folder, name)
            else:
                self._entry(tar, member, folder, name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise LayerError(f"entry {member.name!r}: {error.strerror or error}") from None

    # -- folders -------------------------------------------------------------------------------------------------------

    def _folder(self, path: str) -> OpenFolder:
        """Open a folder for its entries, and make it and its parents if the layer does not list them."""
        if self._last is not None and self._last[0] == path:
            return self._last[1]
        self._forget_last()
        try:
            fd = kernel.open_in_root(self._root, path, _FOLDER)
        except FileNotFoundError:
            parent, name = posixpath.split(path)
            outer = self._folder(parent)
            try:
                os.mkdir(name, 0o755, dir_fd=outer.fd)
            except FileExistsError:
                raise LayerError(f"{path!r} is a symbolic link to something that the image does not have") from None
            self._note(posixpath.join(outer.path, name))
            self._forget_last()
            fd = kernel.open_in_root(self._root, path, _FOLDER)
        real = os.readlink(f"/proc/self/fd/{fd}")[len(self._root_path) :].lstrip("/")
        self._last = path, OpenFolder(fd, real)
        if real.count("/") >= _MAX_DEPTH:
            raise LayerError(f"the layer has folders within folders, {_MAX_DEPTH} deep: {real[:60]!r}...")
        return self._last[1]

    def _forget_last(self) -> None:
        if self._last is not None:
            os.close(self._last[1].fd)
            self._last = None

    def _note(self, path: str) -> None:
        """Remember a path that this layer has added."""
        while path and path not in self._added:
            self._added.add(path)
            path = posixpath.dirname(path)

    # -- removal -------------------------------------------------------------------------------------------------------

    def _whiteout(self, folder: OpenFolder, name: str) -> None:
        """Remove what a whiteout hides. Entries of this layer stay, wherever in the archive the whiteout is."""
        if name == _OPAQUE:
            for other in os.listdir(folder.fd):
                self._remove_lower(folder.fd, other, posixpath.join(folder.path, other))
            return
        hidden = name[len(_WHITEOUT) :]
        if name.startswith(_AUFS):
            return  # bookkeeping of aufs, which means nothing elsewhere
        if hidden in ("", ".", ".."):
            raise LayerError(f"the layer has a whiteout of {hidden!r}")
        self._remove_lower(folder.fd, hidden, posixpath.join(folder.path, hidden))

    def _remove_lower(self, folder: int, name: str, path: str) -> None:
        if path not in self._added:
            _remove(folder, name)
            return
        with contextlib.suppress(NotADirectoryError, FileNotFoundError):
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            try:
                for child in os.listdir(fd):
                    self._remove_lower(fd, child, posixpath.join(path, child))
            finally:
                os.close(fd)

    # -- entries -------------------------------------------------------------------------------------------------------

    def _entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo, folder: OpenFolder, name: str) -> None:
        path = posixpath.join(folder.path, name)
        if member.isdir():
            self._make_folder(member, folder, name)
        elif member.issym():
            _replacing(folder.fd, name, lambda: os.symlink(member.linkname, name, dir_fd=folder.fd))
            self._set_owner_and_times(folder.fd, name, member)
        elif member.islnk():
            self._make_link(member, folder, name)
        elif member.isfifo():
            _replacing(folder.fd, name, lambda: os.mkfifo(name, dir_fd=folder.fd))
            self._set_owner_and_times(folder.fd, name, member)
            os.chmod(name, member.mode & 0o7777, dir_fd=folder.fd)
        elif member.isfile() or member.issparse():
            self._make_file(tar, member, folder, name)
        else:
            _remove(folder.fd, name)  # a device node replaces what was there, but is never made
            return
        self._note(path)

    def _make_folder(self, member: tarfile.TarInfo, folder: OpenFolder, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=folder.fd)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder.fd).st_mode):
                _replacing(folder.fd, name, lambda: os.mkdir(name, 0o700, dir_fd=folder.fd))
        fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder.fd)
        self._finish_folder(OpenFolder(fd, posixpath.join(folder.path, name)), member)

    def _finish_folder(self, folder: OpenFolder, member: tarfile.TarInfo) -> None:
        """Set the attributes of a folder except its times, and close it."""
        try:
            self._set_attributes(folder.fd, member)
        finally:
            os.close(folder.fd)
        self._folder_times[folder.path] = member.mtime

    def _make_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, folder: OpenFolder, name: str) -> None:
        fd = _replacing(folder.fd, name, lambda: os.open(name, _NEW_FILE, 0o600, dir_fd=folder.fd))
        try:
            left = member.size
            source = tar.extractfile(member) if member.issparse() else tar.fileobj
            assert source is not None  # noqa: S101 - the member is a file
            while left:
                data = source.read(min(left, _COPY_BYTES))
                if not data:
                    raise LayerError("the layer ends in the middle of a file")
                left -= len(data)
                _write_all(fd, data)
            self._set_attributes(fd, member)
            _set_times(fd, member.mtime)
        finally:
            os.close(fd)

    def _make_link(self, member: tarfile.TarInfo, folder: OpenFolder, name: str) -> None:
        """Make a hard link, also to a file of a lower layer: the kernel then copies that file to this layer."""
        target = posixpath.normpath(f"/{member.linkname}").lstrip("/")
        parent, last = posixpath.split(target)
        try:
            with self._opened(parent) as other:
                if os.path.samestat(os.fstat(other), os.fstat(folder.fd)) and last == name:
                    return  # a link to itself
                how = {"src_dir_fd": other, "dst_dir_fd": folder.fd, "follow_symlinks": False}
                _replacing(folder.fd, name, lambda: os.link(last, name, **how))  # type: ignore[arg-type]
        except FileNotFoundError:
            raise LayerError(
                f"entry {member.name!r} is a hard link to {member.linkname!r}, which the image does not have"
            ) from None

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        fd = kernel.open_in_root(self._root, path, _FOLDER)
        try:
            yield fd
        finally:
            os.close(fd)

    # -- attributes ----------------------------------------------------------------------------------------------------

    def _set_attributes(self, fd: int, member: tarfile.TarInfo) -> None:
        """Set owner, extended attributes and mode, in this order: a new owner removes capabilities and setuid bits."""
        if self._keep_owners:
            with _unmapped_ids_ignored():
                os.fchown(fd, member.uid, member.gid)
        for key, value in member.pax_headers.items():
            name = key.removeprefix(_XATTR)
            if name != key and _may_set(name):
                # Some file systems have no attributes, and an ordinary user cannot set capabilities of files.
                with contextlib.suppress(OSError):
                    os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))
        os.fchmod(fd, member.mode & 0o7777)

    def _set_owner_and_times(self, folder: int, name: str, member: tarfile.TarInfo) -> None:
        if self._keep_owners:
            with _unmapped_ids_ignored():
                os.chown(name, member.uid, member.gid, dir_fd=folder, follow_symlinks=False)
        with contextlib.suppress(OverflowError):
            when = int(member.mtime * 1e9)
            os.utime(name, ns=(when, when), dir_fd=folder, follow_symlinks=False)


@contextlib.contextmanager
def _unmapped_ids_ignored() -> Iterator[None]:
    """Root of a user namespace, for example in a container, cannot give files to ids that the namespace lacks."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise


def _may_set(name: str) -> bool:
    """Whether a layer may set this attribute. Attributes of overlayfs would change what the layers beneath mean."""
    return name == "security.capability" or (name.startswith("user.") and not name.startswith("user.overlay."))


def _set_times(fd: int, mtime: float) -> None:
    with contextlib.suppress(OverflowError):
        when = int(mtime * 1e9)
        os.utime(fd, ns=(when, when))


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _remove(folder: int, name: str) -> None:
    """Remove a file, a link or a whole folder, if it is there."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(name, dir_fd=folder)


def _replacing(folder: int, name: str, make: Callable[[], Made]) -> Made:
    """Call `make`, which fails if the name exists. Then remove what has the name, and call it again."""
    try:
        return make()
    except FileExistsError:
        _remove(folder, name)
        return make()
