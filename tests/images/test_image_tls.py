# SPDX-License-Identifier: Apache-2.0
"""Registries with TLS, and a proxy in between."""

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from image_builder import small_image
from registry_server import BASIC, PASSWORD, USER, RunningRegistry, running

from trainwright.errors import ImageError, RegistryUnreachableError
from trainwright.images.progress import SilentProgress
from trainwright.images.pull import Pulled, pull
from trainwright.images.reference import parse_reference
from trainwright.images.store import ImageStore

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="makes its certificate with the openssl command")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine and for registry.example, with its key."""
    folder = tmp_path_factory.mktemp("certificate")
    names = "subjectAltName=DNS:registry.example,IP:127.0.0.1"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
    ]
    command += ["2", "-subj", "/CN=tests", "-addext", names, "-keyout", "key", "-out", "crt"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "both").write_bytes((folder / "key").read_bytes() + (folder / "crt").read_bytes())
    return folder / "both"


def get(store: ImageStore, host: str) -> Pulled:
    return pull(store, parse_reference(f"{host}/lab/a:1"), SilentProgress())


def trust(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("crt")))


def test_a_registry_on_this_machine_may_have_tls(
    store: ImageStore, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch, certificate)
    with running(certificate=certificate) as registry:
        registry.state.add("lab/a:1", small_image("a"))
        assert get(store, registry.host).new


def test_a_certificate_that_nobody_trusts(store: ImageStore, certificate: Path) -> None:
    """By a proxy, since a registry on this machine would also be asked without TLS."""
    with running(certificate=certificate) as registry, running() as proxy:
        proxy.state.tunnel = registry.host
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HTTPS_PROXY", proxy.url)
            with pytest.raises(RegistryUnreachableError, match=r"its certificate is not trusted .*SSL_CERT_FILE"):
                get(store, "registry.example")


def test_a_proxy_and_its_credentials(
    store: ImageStore, certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The proxy sees its own credentials, and those of the registry only as a stream of TLS."""
    trust(monkeypatch, certificate)
    file = tmp_path / "auth.json"
    file.write_text(json.dumps({"auths": {"registry.example": {"username": USER, "password": PASSWORD}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    with running(certificate=certificate) as registry, running() as proxy:
        registry.state.add("lab/a:1", small_image("a"))
        registry.state.auth, proxy.state.tunnel = "basic", registry.host
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:p%40ss@{proxy.host}")
        assert get(store, "registry.example").new

    asked = {(one.method, one.path, one.headers.get("Proxy-Authorization")) for one in proxy.state.seen}
    pair = base64.b64encode(b"me:p@ss").decode()
    assert asked == {("CONNECT", "registry.example:443", f"Basic {pair}")}
    assert BASIC in [one.headers.get("Authorization") for one in registry.state.seen]


def test_a_redirect_may_not_leave_tls(
    store: ImageStore, certificate: Path, monkeypatch: pytest.MonkeyPatch, registry: RunningRegistry
) -> None:
    trust(monkeypatch, certificate)
    with running(certificate=certificate) as secure:
        secure.state.add("lab/a:1", small_image("a"))
        secure.state.redirect = registry.url
        with pytest.raises(ImageError, match="found a redirect from https:// to 'http://"):
            get(store, secure.host)

    assert registry.state.seen == []


def test_a_token_server_needs_tls(store: ImageStore, registry: RunningRegistry) -> None:
    registry.state.refusals = [(401, {"WWW-Authenticate": 'Bearer realm="http://tokens.example/token"'})]

    with pytest.raises(
        ImageError, match=r"asks for a token from 'http://tokens.example/token', expected a server with"
    ):
        get(store, registry.host)
