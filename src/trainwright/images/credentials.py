# SPDX-License-Identifier: Apache-2.0
"""Credentials for registries, from the files that `docker login` and `podman login` write, and from their helpers.

The first file with an entry for the registry counts: `$REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json`,
`~/.config/containers/auth.json`, then `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`.
"""

import base64
import binascii
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from trainwright.errors import ImageError
from trainwright.images.reference import DOCKER_HUB

_DOCKER_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")
_TOKEN_USER = "<token>"  # noqa: S105 - the user name by which a helper says that its secret is a token
_HELPER_SECONDS = 30.0


class RegistryCredentials(Struct, frozen=True):
    """A user name with a password, or a token that the registry's token server exchanges. `origin` is for messages."""

    origin: str
    username: str = ""
    password: str = ""
    identity_token: str = ""

    def basic(self) -> str:
        """The value of the header Authorization for a user name and a password."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class _AuthEntry(Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identity_token: str = field(default="", name="identitytoken")


class _AuthFile(Struct, rename="camel"):
    auths: dict[str, _AuthEntry | None] = field(default_factory=dict)
    cred_helpers: dict[str, str] = field(default_factory=dict)
    creds_store: str = ""


class _HelperAnswer(Struct, rename="pascal"):
    username: str = ""
    secret: str = ""


def auth_files() -> list[Path]:
    """The files that may have credentials, in the order in which they count."""
    runtime, config = os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_CONFIG_HOME")
    docker, given = os.environ.get("DOCKER_CONFIG"), os.environ.get("REGISTRY_AUTH_FILE")
    home = Path.home()
    found = [Path(given)] if given else []
    found += [Path(runtime) / "containers/auth.json"] if runtime else []
    found.append((Path(config) if config else home / ".config") / "containers/auth.json")
    found.append((Path(docker) if docker else home / ".docker") / "config.json")
    return found


def find_credentials(host: str, repository: str, notes: list[str]) -> RegistryCredentials | None:
    """The credentials for a repository; None without any. A helper that does not work adds a text to `notes`.

    A broken helper is no error here: many configurations name a helper that is needed for no public image.
    """
    for path in auth_files():
        try:
            data = path.read_bytes()
        except OSError:
            continue
        try:
            file = msgspec.json.decode(data, type=_AuthFile)
        except msgspec.MsgspecError as error:
            raise ImageError(
                f"{path}: found text that is not valid ({error}), expected the JSON of `docker login`"
            ) from None
        if (found := _in_file(file, path, host, repository, notes)) is not None:
            return found
    return None


def _in_file(file: _AuthFile, path: Path, host: str, repository: str, notes: list[str]) -> RegistryCredentials | None:
    keys = _keys(host, repository)
    for key in keys:
        if helper := file.cred_helpers.get(key):
            return _from_helper(helper, key, path, notes)
    if file.creds_store:
        server = _DOCKER_HUB_KEYS[0] if host == DOCKER_HUB else host
        if (found := _from_helper(file.creds_store, server, path, notes)) is not None:
            return found
    by_key = {_bare(key): entry for key, entry in file.auths.items() if entry is not None}
    for key in keys:
        if (entry := by_key.get(_bare(key))) is not None and (found := _from_entry(entry, key, path)) is not None:
            return found
    return None


def _keys(host: str, repository: str) -> list[str]:
    """The keys that match, the most specific first: podman also stores credentials for a part of a registry."""
    hosts: Sequence[str] = _DOCKER_HUB_KEYS if host == DOCKER_HUB else (host,)
    parts = repository.split("/")
    within = [f"{host}/{'/'.join(parts[:number])}" for number in range(len(parts), 0, -1)]
    return [*within, *hosts]


def _bare(key: str) -> str:
    """Old versions of docker write a URL as the key."""
    bare = key.removeprefix("https://").removeprefix("http://")
    return bare.removesuffix("/").removesuffix("/v1").removesuffix("/v2")


def _from_entry(entry: _AuthEntry, key: str, path: Path) -> RegistryCredentials | None:
    username, password = entry.username, entry.password
    if entry.auth:
        try:
            username, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise ImageError(f"{path}: auths[{key!r}].auth is not valid; expected USER:PASSWORD in Base64") from None
    if not (username or entry.identity_token):
        return None
    return RegistryCredentials(str(path), username, password.rstrip("\0"), entry.identity_token)


def _from_helper(helper: str, server: str, path: Path, notes: list[str]) -> RegistryCredentials | None:
    program = f"docker-credential-{helper}"
    if "/" in helper:
        raise ImageError(f"{path}: found the credential helper {helper!r}, expected the end of a program's name")
    try:
        done = subprocess.run(  # noqa: S603 - the user's own configuration names the program
            [program, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_SECONDS, check=False
        )
    except FileNotFoundError:
        notes.append(f"{path} names the credential helper {program}, which is not installed")
        return None
    except (OSError, subprocess.TimeoutExpired) as error:
        notes.append(f"the credential helper {program} in {path} does not work: {error}")
        return None
    if done.returncode:
        said = " ".join((done.stdout + b" " + done.stderr).decode(errors="replace").split())
        if "not found" not in said:
            notes.append(f"the credential helper {program} in {path} failed: {said[:200]}")
        return None
    try:
        answer = msgspec.json.decode(done.stdout, type=_HelperAnswer)
    except msgspec.MsgspecError:
        notes.append(f"the credential helper {program} in {path} printed something that is not JSON")
        return None
    if answer.username == _TOKEN_USER:
        return RegistryCredentials(program, identity_token=answer.secret)
    return RegistryCredentials(program, answer.username, answer.secret)
