# SPDX-License-Identifier: Apache-2.0
"""`trainwright node` as people start it, as far as that needs no cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE
from trainwright.cli.node import label, memory, taint
from trainwright.runtime import purity


def call(tmp_path: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "TRAINWRIGHT"))}
    clean[purity.VARIABLE] = os.environ[purity.VARIABLE]
    argv = [sys.executable, "-m", "trainwright", "node", *words]
    env = {**clean, "HOME": str(tmp_path), "TRAINWRIGHT_STATE": str(tmp_path / "state"), **env}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no cluster is known"),
        (("--kubeconfig", "/no/such/file"), "/no/such/file"),
        (("--run-in-cluster",), "KUBERNETES_SERVICE_HOST is not set"),
        (("--name", "Big_One"), "--name: 'Big_One'; expected lower case letters"),
        (("--label", "gpu"), "--label: 'gpu'; expected KEY=VALUE"),
        (("--taint", "a=b:NoSchedul"), "did you mean `NoSchedule`?"),
        (("--memory", "lots"), "--memory: 'lots'; expected a size such as 8Gi"),
        (("--tls-cert-file", "x"), "--tls-cert-file and --tls-private-key-file belong together"),
        (("--bootstrap-kubeconfig", "/no/such/file"), "/no/such/file"),
        (("--bootstrap-kubeconfig", "a", "--kubeconfig", "b"), "cannot be used with --kubeconfig"),
        (("--master", "http://127.0.0.1:9", "--address", "here"), "--address: 'here'; expected an address"),
        (("--master", "http://127.0.0.1:9", "--working-dir", "/no/where"), "--working-dir: /no/where is not a folder"),
    ],
    ids=[
        "cluster",
        "file",
        "pod",
        "name",
        "label",
        "taint",
        "memory",
        "tls",
        "bootstrap",
        "two",
        "address",
        "folder",
    ],
)
def test_what_it_cannot_do_is_told_in_a_line(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = call(tmp_path, *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_options_can_be_in_the_environment(tmp_path: Path) -> None:
    done = call(tmp_path, TRAINWRIGHT_NODE_MEMORY="lots")

    assert "--memory: 'lots'" in done.stderr


def test_words_for_the_node() -> None:
    assert label("pool=a=b") == ("pool", "a=b")
    assert taint("dedicated=training:NoSchedule") == {"key": "dedicated", "value": "training", "effect": "NoSchedule"}
    assert taint("dedicated:NoExecute") == {"key": "dedicated", "value": "", "effect": "NoExecute"}
    assert memory("1Gi") == 1 << 30
    assert memory("") is None
