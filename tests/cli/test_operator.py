# SPDX-License-Identifier: Apache-2.0
"""`trainwright operator` as people start it, as far as that needs no cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def call(tmp_path: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "TRAINWRIGHT"))}
    argv = [sys.executable, "-m", "trainwright", "operator", *words]
    return subprocess.run(
        argv, env={**clean, "HOME": str(tmp_path), **env}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no cluster is known"),
        (("--kubeconfig", "/no/such/file"), "/no/such/file"),
        (("--kinds", "genericjop"), "--kinds: 'genericjop' is not known; did you mean `genericjob`?"),
        (("--lease", "operator"), "--lease: expected NAMESPACE/NAME, found 'operator'"),
        (("--run-in-cluster",), "KUBERNETES_SERVICE_HOST is not set"),
    ],
    ids=["no cluster", "no file", "kind", "lease", "no pod"],
)
def test_what_it_cannot_do_is_told_in_a_line(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = call(tmp_path, *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    done = call(tmp_path, "--master", "http://127.0.0.1:9", TRAINWRIGHT_OPERATOR_NAMESPACE="a")

    assert done.returncode == 3
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
