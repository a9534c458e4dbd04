# SPDX-License-Identifier: Apache-2.0
"""Names of images, read as docker reads them.

`busybox` is `docker.io/library/busybox:latest`. The first part of a name is a registry only if it contains `.` or `:`,
or is `localhost`. A name with a tag and a digest means the digest.
"""

import re

from msgspec import Struct

from trainwright.errors import ImageNameError

DOCKER_HUB = "docker.io"
_DOCKER_HUB_NAMES = {"docker.io", "index.docker.io", "registry-1.docker.io"}
_OFFICIAL, _LATEST = "library", "latest"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{64}")
_MAX_NAME = 255


class ImageReference(Struct, frozen=True, order=True):
    """One image of one registry. Either `tag` or `digest` is empty."""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """The name without tag and digest."""
        return f"{self.host}/{self.repository}"

    @property
    def version(self) -> str:
        """The digest or the tag, for the registry."""
        return self.digest or self.tag

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"

    def familiar(self) -> str:
        """The name as users write it: without `docker.io/` and `library/`."""
        text = str(self).removeprefix(f"{DOCKER_HUB}/")
        return text.removeprefix(f"{_OFFICIAL}/") if self.host == DOCKER_HUB else text


def is_digest(text: str) -> bool:
    """Whether the text is a digest that we can verify."""
    return _DIGEST.fullmatch(text) is not None


def parse_reference(text: str) -> ImageReference:
    """Read the name of an image. Raises ImageNameError."""
    rest, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise _refusal(text, f"found the digest {digest!r}, expected sha256: and 64 hexadecimal digits")
    name, tag = _split_tag(rest)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _refusal(text, f"found the tag {tag!r}, expected letters, digits, `_`, `.` and `-`, at most 128 of them")
    host, repository = _split_host(name)
    _check_name(text, name, host, repository)
    if digest:
        return ImageReference(host, repository, digest=digest)
    return ImageReference(host, repository, tag=tag if tag is not None else _LATEST)


def _split_tag(text: str) -> tuple[str, str | None]:
    """A `:` in the first part of several parts belongs to the port of the registry."""
    head, slash, last = text.rpartition("/")
    name, colon, tag = last.partition(":")
    return f"{head}{slash}{name}", tag if colon else None


def _split_host(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        host, repository = first, rest
    else:
        host, repository = DOCKER_HUB, name
    if host in _DOCKER_HUB_NAMES:
        return DOCKER_HUB, repository if "/" in repository else f"{_OFFICIAL}/{repository}"
    return host, repository


def _check_name(text: str, name: str, host: str, repository: str) -> None:
    if not name:
        raise _refusal(text, "found no name, expected for example `busybox:1.36`")
    if not _HOST.fullmatch(host):
        raise _refusal(text, f"found the registry {host!r}, expected a host name, perhaps with a port")
    if _ID.fullmatch(name):
        raise _refusal(text, "found the id of an image, expected a name")
    if len(repository) > _MAX_NAME:
        raise _refusal(text, f"found a name of {len(repository)} characters, expected at most {_MAX_NAME}")
    wrong = next((part for part in repository.split("/") if not _PART.fullmatch(part)), None)
    if wrong is None:
        return
    expected = "expected lower-case letters and digits, with `.`, `_` or `-` between them"
    lower = text.replace(repository.removeprefix(f"{_OFFICIAL}/"), repository.removeprefix(f"{_OFFICIAL}/").lower())
    meant = all(_PART.fullmatch(part) for part in repository.lower().split("/"))
    raise _refusal(text, f"found {wrong!r}, {expected}", lower if meant else "")


def _refusal(text: str, problem: str, near: str = "") -> ImageNameError:
    hint = f"; did you mean `{near}`?" if near else ""
    return ImageNameError(f"{text!r} is not the name of an image: {problem}{hint}")
