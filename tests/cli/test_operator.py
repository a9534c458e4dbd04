# SPDX-License-Identifier: Apache-2.0
"""`trainwright operator` as people start it, as far as that needs no cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE
from trainwright.runtime import purity


def call(tmp_path: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "TRAINWRIGHT"))}
    clean[purity.VARIABLE] = os.environ[purity.VARIABLE]
    argv = [sys.executable, "-m", "trainwright", "operator", *words]
    return subprocess.run(
        argv, env={**clean, "HOME": str(tmp_path), **env}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no cluster is known"),
        (("--kubeconfig", "/no/such/file"), "/no/such/file"),
        (("--kinds", "genericjop"), "--kinds: 'genericjop' is not a kind; did you mean `genericjob`?"),
        (("--lease", "operator"), "--lease: expected NAMESPACE/NAME, found 'operator'"),
        (("--run-in-cluster",), "KUBERNETES_SERVICE_HOST is not set"),
        (("--config", "/no/such/file"), "--config: /no/such/file: No such file or directory"),
        (("--renew-deadline", "20s"), "--lease-duration 15s must be longer than --renew-deadline 20s"),
        (("--lease-duration", "6", "--renew-deadline", "5"), "--lease-duration 6s: expected more than 7s"),
        (("--qps", "inf"), "--qps inf: expected a number"),
        (("--qps", "nan"), "--qps nan: expected a number"),
        (("--scheduling", "volcano", "--gang-scheduler-name", "other"), "mean the same: give one"),
    ],
    ids=[
        "no cluster",
        "no file",
        "kind",
        "lease",
        "no pod",
        "no config",
        "deadline",
        "short lease",
        "inf",
        "nan",
        "two gangs",
    ],
)
def test_what_it_cannot_do_is_told_in_a_line(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = call(tmp_path, *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    words = ("--master", "http://127.0.0.1:9", "--connect-timeout", "0.1s")
    done = call(tmp_path, *words, TRAINWRIGHT_OPERATOR_NAMESPACE="a")

    assert done.returncode == 3
    first, *_, last = done.stderr.splitlines()
    assert "namespace=a" in first
    assert re.search(r"identity=\S+_[0-9a-f]{8}-\d+", first), "hosts and process ids may be the same for two"
    assert last.startswith("trainwright: no answer from http://127.0.0.1:9")
    assert "Traceback" not in done.stderr


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    done = call(tmp_path, "--master", "127.0.0.1:9", "--address", "256.0.0.1:80")

    assert done.returncode == 2
    assert "cannot listen at 256.0.0.1:80" in done.stderr
