# SPDX-License-Identifier: Apache-2.0
"""Our entries in the user's kubeconfig: added, replaced and removed, and nothing else is changed."""

import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainwright.cli.background import kubeconfig
from trainwright.cli.background.kubeconfig import BACKUP, default_path, merge_kubeconfig, remove_from_kubeconfig
from trainwright.errors import UsageError

USERS_FILE = """\
# my clusters
apiVersion: v1
kind: Config
preferences: {}
clusters:
- cluster:
    server: https://lab.example:6443
    certificate-authority-data: "MDEyMw=="
  name: lab   # the big one
- name: old
  cluster: {server: 'https://old.example', insecure-skip-tls-verify: yes}
contexts:
- context: {cluster: lab, user: me, namespace: "007"}
  name: lab
current-context: lab
users:
- name: me
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: get-token
      args: [--date, 2026-11-17, "on", 0123, ~]
x-unknown: &anchor {größe: 1.50}
x-again: *anchor
"""


def ours(server: str = "https://127.0.0.1:7443") -> dict[str, Any]:
    mark = [{"name": "trainwright.dev", "extension": {"folder": "/state"}}]
    context = {"cluster": "trainwright", "user": "trainwright", "extensions": mark}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "trainwright", "cluster": {"server": server, "extensions": mark}}],
        "users": [{"name": "trainwright", "user": {"token": "0123", "extensions": mark}}],
        "contexts": [{"name": "trainwright", "context": context}],
        "current-context": "trainwright",
    }


def scalars(text: str) -> list[tuple[str, str, str | None]]:
    """Every scalar of a text with its tag and its quotes."""
    events = yaml.parse(text)
    return [(one.value, str(one.implicit), one.style) for one in events if isinstance(one, yaml.ScalarEvent)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "config"
    file.write_text(USERS_FILE)
    file.chmod(0o640)
    return file


def test_entries_are_added_and_everything_else_stays(path: Path) -> None:
    assert merge_kubeconfig(path, ours())
    before, after = yaml.safe_load(USERS_FILE), yaml.safe_load(path.read_text())
    for field in ("clusters", "users", "contexts"):
        assert after[field][:-1] == before[field]
        assert after[field][-1]["name"] == "trainwright"
    assert after["current-context"] == "trainwright"
    rest = {"clusters", "users", "contexts", "current-context"}
    assert {key: value for key, value in after.items() if key not in rest} == {
        key: value for key, value in before.items() if key not in rest
    }
    assert after["users"][-1]["user"] == ours()["users"][0]["user"]  # the token "0123" is still a text
    kept = [one for one in scalars(USERS_FILE) if one[0] != "lab"]
    assert [one for one in kept if one not in scalars(path.read_text())] == []


def test_removal_leaves_what_was_there(path: Path) -> None:
    merge_kubeconfig(path, ours())
    assert remove_from_kubeconfig(path)
    assert scalars(path.read_text()) == scalars(USERS_FILE)
    assert not remove_from_kubeconfig(path)


def test_the_mode_and_a_copy_are_kept(path: Path) -> None:
    merge_kubeconfig(path, ours())
    copy = path.with_name(f"config{BACKUP}")
    assert copy.read_text() == USERS_FILE
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, copy)] == [0o640, 0o640]
    assert sorted(file.name for file in path.parent.iterdir()) == ["config", f"config{BACKUP}"]


def test_a_second_merge_replaces_our_entries_and_not_the_copy(path: Path) -> None:
    merge_kubeconfig(path, ours())
    first = path.read_text()
    assert not merge_kubeconfig(path, ours())
    assert path.read_text() == first
    assert merge_kubeconfig(path, ours("https://127.0.0.1:9"))
    assert path.read_text() == first.replace("127.0.0.1:7443", "127.0.0.1:9")
    assert path.with_name(f"config{BACKUP}").read_text() == USERS_FILE
    remove_from_kubeconfig(path)
    assert yaml.safe_load(path.read_text())["current-context"] == "lab"


def test_a_later_comment_is_in_the_next_copy(path: Path) -> None:
    merge_kubeconfig(path, ours())
    edited = f"# edited\n{path.read_text()}"
    path.write_text(edited)
    remove_from_kubeconfig(path)
    assert path.with_name(f"config{BACKUP}").read_text() == edited


def test_the_current_context_stays_if_it_is_not_to_be_used(path: Path) -> None:
    merge_kubeconfig(path, ours(), use=False)
    assert yaml.safe_load(path.read_text())["current-context"] == "lab"
    remove_from_kubeconfig(path)
    assert scalars(path.read_text()) == scalars(USERS_FILE)


def test_another_current_context_survives_the_removal(path: Path) -> None:
    merge_kubeconfig(path, ours())
    path.write_text(path.read_text().replace("current-context: trainwright", "current-context: old"))
    remove_from_kubeconfig(path)
    assert yaml.safe_load(path.read_text())["current-context"] == "old"


@pytest.mark.parametrize("text", [None, "", "apiVersion: v1\nkind: Config\nclusters: null\nusers: []\n"])
def test_a_file_without_entries(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "new/.kube/config"
    if text is not None:
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert merge_kubeconfig(path, ours())
    assert yaml.safe_load(path.read_text()) == ours()
    if text is None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert remove_from_kubeconfig(path)
    left = yaml.safe_load(path.read_text())
    assert (left["clusters"], left["users"], left["contexts"], left["current-context"]) == ([], [], [], "")


def test_a_file_in_json(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text('{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "a", "cluster": {"server": "b"}}]}')
    merge_kubeconfig(path, ours())
    assert [one["name"] for one in yaml.safe_load(path.read_text())["clusters"]] == ["a", "trainwright"]


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    merge_kubeconfig(link, ours())
    assert link.is_symlink()
    assert "trainwright" in path.read_text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [", "because it is not YAML"),
        (b"- a\n", "expected a mapping"),
        (b"kind: Pod\n", "its kind is Pod"),
        (b"clusters: {a: b}\n", "clusters is not a list"),
        (b"a: 1\n---\nb: 2\n", "because it is not YAML"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"[" * 5000, "because it is not YAML"),
        (b"clusters: [{name: trainwright, cluster: {server: s}}]\n", "it has a cluster trainwright of another origin"),
        (b"users: [{name: trainwright, user: {token: s}}]\n", "it has a user trainwright of another origin"),
    ],
)
def test_a_file_that_is_not_understood_is_not_changed(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        merge_kubeconfig(path, ours())
    assert path.read_bytes() == content
    assert [file.name for file in tmp_path.iterdir()] == ["config"]


def test_entries_of_another_origin_are_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: [{name: trainwright, cluster: {server: s}}]\ncurrent-context: trainwright\n")
    assert not remove_from_kubeconfig(path)


def test_without_a_file_there_is_nothing_to_remove(tmp_path: Path) -> None:
    assert not remove_from_kubeconfig(tmp_path / "none/config")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not changed, because it cannot be read: Is a directory"):
        merge_kubeconfig(tmp_path, ours())


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_cannot_be_read_is_refused(path: Path) -> None:
    path.chmod(0)
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        merge_kubeconfig(path, ours())


def test_the_lock_of_kubectl_is_respected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = path.with_name("config.lock")
    lock.touch()
    timer = threading.Timer(0.2, lock.unlink)
    timer.start()
    began = time.monotonic()
    merge_kubeconfig(path, ours())
    assert time.monotonic() - began >= 0.15
    timer.join()
    monkeypatch.setattr(kubeconfig, "_LOCK_SECONDS", 0.1)
    lock.touch()
    with pytest.raises(UsageError, match=r"another command changes .*remove .*config\.lock"):
        remove_from_kubeconfig(path)
    assert lock.exists()


def test_the_default_path_is_that_of_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert default_path() == Path("/home/me/.kube/config")
    monkeypatch.setenv("KUBECONFIG", ":/a:/b")
    assert default_path() == Path("/a")
