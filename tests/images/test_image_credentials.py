# SPDX-License-Identifier: Apache-2.0
"""Credentials of docker and podman: where they are found, how they are used, and what an error says about them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from image_builder import small_image
from registry_server import PASSWORD, REFRESH, USER, RunningRegistry

from trainwright.errors import ImageDeniedError, ImageError
from trainwright.images.credentials import find_credentials
from trainwright.images.progress import SilentProgress
from trainwright.images.pull import pull
from trainwright.images.reference import parse_reference
from trainwright.images.store import ImageStore

AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def home(store: ImageStore, tmp_path: Path) -> Path:
    """The home folder of the test; there are no other credentials."""
    assert store
    return tmp_path / "home"


def helper(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential helper `docker-credential-test` with this script."""
    folder.mkdir(exist_ok=True)
    program = folder / "docker-credential-test"
    program.write_text(f"#!/bin/sh\nread server\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def found(host: str, repository: str = "lab/a") -> str:
    """The user name that is found."""
    credentials = find_credentials(host, repository, [])
    return credentials.username if credentials is not None else ""


@pytest.mark.parametrize(
    ("file", "variable"),
    [
        (".docker/config.json", ""),
        (".config/containers/auth.json", ""),
        ("somewhere/config.json", "DOCKER_CONFIG"),
        ("runtime/containers/auth.json", "XDG_RUNTIME_DIR"),
    ],
)
def test_the_files(home: Path, monkeypatch: pytest.MonkeyPatch, file: str, variable: str) -> None:
    write(home / file, {"auths": {"registry.example": {"auth": AUTH}}})
    if variable:
        monkeypatch.setenv(variable, str(home / file.partition("/")[0]))

    assert (found("registry.example"), found("other.example")) == (USER, "")


def test_the_first_file_with_an_entry_counts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pair(name: str) -> dict[str, str]:
        return {"auth": base64.b64encode(f"{name}:x".encode()).decode()}

    write(home / ".docker/config.json", {"auths": {"a.example": pair("docker"), "b.example": pair("docker")}})
    write(home / ".config/containers/auth.json", {"auths": {"a.example": pair("podman")}})
    write(home / "given.json", {"auths": {"c.example": pair("given")}})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(home / "given.json"))

    assert [found(f"{host}.example") for host in "abc"] == ["podman", "docker", "given"]


@pytest.mark.parametrize(
    ("key", "host", "repository", "matches"),
    [
        ("https://index.docker.io/v1/", "docker.io", "library/a", True),
        ("docker.io", "docker.io", "library/a", True),
        ("https://registry.example/v2/", "registry.example", "a", True),
        ("registry.example:5000", "registry.example:5000", "a", True),
        ("registry.example", "registry.example:5000", "a", False),
        ("registry.example/lab", "registry.example", "lab/a", True),
        ("registry.example/lab", "registry.example", "labor/a", False),
    ],
)
def test_the_keys_of_a_file(home: Path, key: str, host: str, repository: str, matches: bool) -> None:
    write(home / ".docker/config.json", {"auths": {key: {"auth": AUTH}}})

    assert found(host, repository) == (USER if matches else "")


@pytest.mark.parametrize("config", [{"credHelpers": {"registry.example": "test"}}, {"credsStore": "test"}])
def test_a_credential_helper(home: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> None:
    helper(home, 'echo "{\\"Username\\": \\"user of $server\\", \\"Secret\\": \\"x\\"}"', monkeypatch)
    write(home / ".docker/config.json", {"auths": {"registry.example": {}}, **config})

    assert found("registry.example") == "user of registry.example"


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo credentials not found in native keychain; exit 1", ""),
        ("echo the keyring is locked; exit 1", "failed: the keyring is locked"),
        ("echo hello", "printed something that is not JSON"),
        (None, "docker-credential-test, which is not installed"),
    ],
    ids=["none", "locked", "text", "missing"],
)
def test_a_helper_that_does_not_work_is_only_a_note(
    home: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, note: str
) -> None:
    if script is not None:
        helper(home, script, monkeypatch)
    write(home / ".docker/config.json", {"credsStore": "test"})
    notes: list[str] = []

    assert find_credentials("registry.example", "a", notes) is None
    assert note in "".join(notes)
    assert bool(notes) == bool(note)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "expected the JSON"),
        ('{"auths": {"registry.example": {"auth": "?"}}}', "expected USER:PASSWORD in Base64"),
        ('{"credsStore": "../x"}', "expected the end of a program's name"),
    ],
)
def test_files_that_are_wrong(home: Path, text: str, error: str) -> None:
    file = home / ".docker/config.json"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ImageError, match=error) as caught:
        find_credentials("registry.example", "a", [])
    assert str(caught.value).startswith(str(file))


# -- at the registry ---------------------------------------------------------------------------------------------------


def get(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.add("lab/a:1", small_image("a"))
    pull(store, parse_reference(f"{registry.host}/lab/a:1"), SilentProgress())


@pytest.mark.parametrize("auth", ["basic", "bearer"])
@pytest.mark.parametrize("entry", [{"auth": AUTH}, {"username": USER, "password": PASSWORD}], ids=["auth", "pair"])
def test_a_private_image(
    store: ImageStore, registry: RunningRegistry, home: Path, auth: str, entry: dict[str, str]
) -> None:
    write(home / ".docker/config.json", {"auths": {registry.host: entry}})
    registry.state.auth = auth
    get(store, registry)

    assert len(registry.state.asked("/token")) == (1 if auth == "bearer" else 0)


def test_a_public_image_with_a_token(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.auth, registry.state.anonymous = "bearer", True
    get(store, registry)
    (asked,) = registry.state.asked("/token")

    assert asked.path == "/token?scope=repository%3Ax%3Apull&service=tests"
    assert "Authorization" not in asked.headers


def test_an_identity_token(store: ImageStore, registry: RunningRegistry, home: Path) -> None:
    write(home / ".docker/config.json", {"auths": {registry.host: {"identitytoken": REFRESH}}})
    registry.state.auth = "bearer"
    get(store, registry)
    (asked,) = registry.state.asked("/token")

    assert (asked.method, REFRESH in asked.path) == ("POST", False)


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_private_image_without_credentials(store: ImageStore, registry: RunningRegistry, auth: str) -> None:
    registry.state.auth = auth
    with pytest.raises(ImageDeniedError) as caught:
        get(store, registry)

    assert str(caught.value).startswith(f"{registry.host} does not give us {registry.host}/lab/a:1 (")
    assert "it was asked without credentials" in str(caught.value)
    assert f"log in with `docker login {registry.host}`" in str(caught.value)


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_private_image_with_wrong_credentials(
    store: ImageStore, registry: RunningRegistry, home: Path, auth: str
) -> None:
    file = home / ".docker/config.json"
    write(file, {"auths": {registry.host: {"username": "bob", "password": "wrong-word"}}})
    registry.state.auth = auth
    with pytest.raises(ImageDeniedError) as caught:
        get(store, registry)

    assert f"it was asked as bob of {file}" in str(caught.value)
    assert "wrong-word" not in str(caught.value)
