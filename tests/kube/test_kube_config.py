# SPDX-License-Identifier: Apache-2.0
"""Which server and which user a kubeconfig, a pod and a command line mean together, and what is said when none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.errors import TrainwrightError, UsageError
from trainwright.kube.auth import credentials
from trainwright.kube.config import Access, ConnectionOptions, load, proxy_for
from trainwright.runtime.ports import WallClock


def _config(**changes: Any) -> dict[str, Any]:
    """Two contexts of two clusters."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "clusters": [
            {"name": "one", "cluster": {"server": "https://one:6443/"}},
            {"name": "two", "cluster": {"server": "https://two/k8s/clusters/c-1"}},
        ],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [
            {"name": "dev", "context": {"cluster": "one", "user": "me", "namespace": "team"}},
            {"name": "prod", "context": {"cluster": "two", "user": "me"}},
        ],
        **changes,
    }


def _write(path: Path, config: dict[str, Any] | str) -> Path:
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return path


def _load(tmp_path: Path, config: dict[str, Any] | str, environ: dict[str, str] | None = None, **asked: Any) -> Access:
    file = _write(tmp_path / "config", config)
    return load(ConnectionOptions(kubeconfig=str(file), **asked), environ or {})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ("https://one:6443", "team")),
        ({"namespace": "mine"}, ("https://one:6443", "mine")),
        ({"context": "prod"}, ("https://two/k8s/clusters/c-1", "default")),
        ({"server": "http://127.0.0.1:8001"}, ("http://127.0.0.1:8001", "team")),
        ({"server": "10.0.0.1:8080"}, ("http://10.0.0.1:8080", "team")),
    ],
    ids=str,
)
def test_a_context_is_chosen(tmp_path: Path, asked: dict[str, Any], expected: tuple[str, str]) -> None:
    found = _load(tmp_path, _config(), **asked)
    assert (found.server, found.namespace) == expected
    assert found.user.value.token == "t"  # noqa: S105 - of a test


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"server": "host:6443"}, "http://host:6443"),
        ({"server": "host:6443", "certificate-authority-data": "eA=="}, "https://host:6443"),
        ({"server": "host:6443", "insecure-skip-tls-verify": True}, "https://host:6443"),
        ({"server": "https://[::1]:6443"}, "https://[::1]:6443"),
    ],
    ids=str,
)
def test_a_server_without_a_scheme_is_read_as_kubectl_does(
    tmp_path: Path, cluster: dict[str, Any], expected: str
) -> None:
    assert _load(tmp_path, _config(clusters=[{"name": "one", "cluster": cluster}])).server == expected


def test_the_first_of_several_files_wins_and_paths_are_beside_their_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = _write(tmp_path / "a" / "config", {"users": [{"name": "me", "user": {"tokenFile": "token"}}]})
    second = _write(
        tmp_path / "b" / "config",
        _config(
            clusters=[{"name": "one", "cluster": {"server": "https://x", "certificate-authority": "ca.crt"}}],
            users=[{"name": "me", "user": {"token": "never", "username": "never"}}],
        ),
    )
    third = _write(tmp_path / "third", _config(**{"current-context": "prod"}))
    files = f"{first}::{tmp_path / 'missing'}:{second}:{third}"
    found = load(ConnectionOptions(), {"KUBECONFIG": files, "HOME": str(tmp_path)})
    assert found.server == "https://x"
    assert found.cluster.value.certificate_authority == str(tmp_path / "b" / "ca.crt")
    assert found.user.value.token_file == str(tmp_path / "a" / "token")
    assert (found.user.value.token, found.user.value.username) == (None, None)
    assert load(ConnectionOptions(context="prod"), {"KUBECONFIG": files}).server == "https://two/k8s/clusters/c-1"


def test_without_anything_it_is_the_file_at_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    _write(tmp_path / ".kube" / "config", _config())
    inside = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert load(ConnectionOptions(), {"HOME": str(tmp_path), **inside}).server == "https://one:6443"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The service account of a pod."""
    folder = tmp_path / "account"
    folder.mkdir()
    for name, content in (("token", "t"), ("namespace", "mine\n"), ("ca.crt", "")):
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
@pytest.mark.parametrize("forced", [False, True], ids=["found", "asked for"])
def test_in_a_pod_it_is_the_service_account(
    tmp_path: Path, account: Path, host: str, server: str, *, forced: bool
) -> None:
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    environ |= {"KUBECONFIG": str(_write(tmp_path / "config", _config()))} if forced else {}
    found = load(ConnectionOptions(in_cluster=forced), environ, account)
    assert (found.server, found.namespace) == (server, "mine")
    assert found.user.value.token_file == str(account / "token")
    assert found.cluster.value.certificate_authority == str(account / "ca.crt")


def test_a_server_alone_is_enough(tmp_path: Path) -> None:
    assert load(ConnectionOptions(server="127.0.0.1:8080"), {"HOME": str(tmp_path)}).server == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("asked", "environ", "words"),
    [
        ({}, {}, "KUBECONFIG is not set"),
        ({}, {"KUBECONFIG": "/nowhere/config"}, r"KUBECONFIG names no file that exists \(/nowhere/config\)"),
        ({"kubeconfig": "/nowhere/config"}, {}, "/nowhere/config: cannot read this kubeconfig: No such file"),
        ({"in_cluster": True}, {}, "KUBERNETES_SERVICE_HOST is not set"),
        ({"in_cluster": True}, {"KUBERNETES_SERVICE_HOST": "h"}, "there is no .*token"),
    ],
    ids=str,
)
def test_where_nothing_is_found(tmp_path: Path, asked: dict[str, Any], environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(ConnectionOptions(**asked), {"HOME": str(tmp_path), **environ}, tmp_path / "account")


def _user(**user: Any) -> dict[str, Any]:
    return _config(users=[{"name": "me", "user": user}])


def _cluster(**cluster: Any) -> dict[str, Any]:
    return _config(clusters=[{"name": "one", "cluster": {name.replace("_", "-"): v for name, v in cluster.items()}}])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param(
            _config(**{"current-context": "prd"}),
            "current-context: there is no context 'prd'; did you mean 'prod'",
            id="context",
        ),
        pytest.param(
            _config(**{"current-context": "zzz"}),
            "there is no context 'zzz'; known are dev, prod",
            id="no such context",
        ),
        pytest.param(
            _config(**{"current-context": ""}),
            "current-context: not set; choose one with --context; known are dev, prod",
            id="none chosen",
        ),
        pytest.param("# nothing\n", "current-context: not set", id="nothing"),
        pytest.param(
            _config(clusters=[{"name": "ones", "cluster": {}}]),
            r"contexts\[0\].context.cluster: there is no cluster 'one'; did you mean 'ones'",
            id="cluster",
        ),
        pytest.param(
            _config(users=None), r"contexts\[0\].context.user: there is no user 'me'; the file has none", id="user"
        ),
        pytest.param(_cluster(), r"clusters\[0\].cluster.server: ''; expected a URL", id="no server"),
        pytest.param(
            _cluster(server="ftp://x"), r"clusters\[0\].cluster.server: 'ftp://x'; expected a URL", id="odd server"
        ),
        *[
            pytest.param(_cluster(server=url), r"clusters\[0\].cluster.server: 'http.*'; expected a URL", id=url)
            for url in (
                "https://127.0.0.1:99999",
                "http://a..b:80",
                "http://host/k\u00e9",
                "http://a b",
                "https://[::1",
            )
        ],
        pytest.param(
            _cluster(server="https://x:99999/me:secret@x"), r"server: has a name or a password in it", id="both"
        ),
        pytest.param(
            _cluster(server="https://me:secret@x"), r"cluster.server: has a name or a password in it", id="password"
        ),
        pytest.param(
            _cluster(server="https://x", proxy_url="socks5://me:secret@p"),
            r"proxy-url: 'socks5://…'; expected an http",
            id="proxy",
        ),
        pytest.param(
            _user(token=123), r"config:\d+: users\[0\].user.token: expected `str \| null`, got `int`", id="type"
        ),
        pytest.param(_config(users=3), r"config:\d+: users: expected `array", id="no list"),
        pytest.param(
            _config(users=[{"name": "me"}, {"name": "me"}]),
            r"users\[1\].name: a second user is called 'me'",
            id="twice",
        ),
        pytest.param("a: [", r"config:\d+:\d+: document 1", id="no YAML"),
        pytest.param("[]\n", "expected a mapping", id="no mapping"),
        pytest.param(
            _user(**{"auth-provider": {"name": "gcp"}}),
            r"users\[0\].user.auth-provider: not supported",
            id="auth provider",
        ),
        pytest.param(
            _user(exec={"command": "x"}),
            r"users\[0\].user.exec.apiVersion: 'nothing'; expected client.authentication",
            id="plug-in",
        ),
        pytest.param(
            _user(exec={"command": "x", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Always"}),
            "exec.interactiveMode: 'Always'",
            id="terminal",
        ),
        pytest.param(
            _user(**{"client-certificate": "me.crt"}),
            r"client-certificate: cannot read .*me.crt: No such file",
            id="file",
        ),
        pytest.param(
            _user(**{"client-key-data": "eA=="}),
            "client-certificate: missing, although there is a client-key",
            id="half a pair",
        ),
        pytest.param(
            _user(**{"client-certificate-data": "\u00fc"}), "client-certificate-data: not base64", id="not ASCII"
        ),
        pytest.param(_user(**{"client-certificate-data": "%"}), "client-certificate-data: not base64", id="base64"),
    ],
)
async def test_what_is_wrong_is_said(tmp_path: Path, config: dict[str, Any] | str, words: str) -> None:
    with pytest.raises(TrainwrightError, match=words) as caught:
        credentials(_load(tmp_path, config), WallClock())
    assert str(tmp_path / "config") in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        ("https://api:6443", {}, ""),
        ("https://api:6443", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://api:6443", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("https://api:6443", {"HTTP_PROXY": "http://p"}, ""),
        ("http://api:6443", {"HTTP_PROXY": "http://p"}, "http://p"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://api:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, ""),
        ("https://api.corp:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "x, corp"}, ""),
        ("https://api.corp:6443", {"HTTPS_PROXY": "http://p", "no_proxy": ".corp"}, ""),
        ("https://corp:6443", {"HTTPS_PROXY": "http://p", "no_proxy": ".corp"}, "http://p"),
        ("https://notcorp:6443", {"HTTPS_PROXY": "http://p", "no_proxy": "corp"}, "http://p"),
        ("https://api.corp:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "api.corp:443"}, "http://p"),
        ("https://api.corp:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "api.corp:6443"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://11.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8,11.1.2.3:6443"}, ""),
        ("https://11.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8,fd00::/8"}, "http://p"),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "fd00::/8"}, ""),
    ],
)
def test_the_environment_names_a_proxy(server: str, environ: dict[str, str], expected: str) -> None:
    assert proxy_for(server, environ) == expected


def test_a_kubeconfigs_own_proxy_comes_first(tmp_path: Path) -> None:
    environ = {"HTTPS_PROXY": "http://other"}
    assert _load(tmp_path, _config(), environ).proxy == "http://other"
    assert _load(tmp_path, _cluster(server="https://x", proxy_url="http://p:1"), environ).proxy == "http://p:1"
