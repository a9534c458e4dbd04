# SPDX-License-Identifier: Apache-2.0
"""The control plane keeps its users apart, and a record of what each of them asked for."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_audit import read
from cluster_bodies import pod
from cluster_client import RefusedError, until
from cluster_plane import ControlPlane
from cluster_process import PlaneError

pytest_plugins = ("cluster_fixtures",)
_HOLD = """
import sys, time
from cluster_plane import ControlPlane
with ControlPlane(controllers=False, scheduler=False) as plane:
    print(plane.layout.folder, *(process.pid for process in plane.processes.values()), flush=True)
    time.sleep(600)
"""


def test_every_write_and_read_is_on_record_by_user(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    mark = plane.mark()

    plane.call("POST", path, pod("a", node="nowhere"))
    plane.call("PATCH", f"{path}/a", {"metadata": {"labels": {"a": "b"}}})
    plane.call("PATCH", f"{path}/a/status", {"status": {"phase": "Running"}})
    plane.call("GET", path)
    plane.call("GET", path, user="kubelet-fake")
    plane.find(f"{path}/b")
    plane.call("DELETE", f"{path}/a", {"gracePeriodSeconds": 0})

    seen = plane.audit(mark)
    mine = seen.where(user="admin", namespace=namespace)
    assert mine.writes.tally("verb", "resource", "code") == {
        ("create", "pods", 201): 1,
        ("patch", "pods", 200): 1,
        ("patch", "pods/status", 200): 1,
        ("delete", "pods", 200): 1,
    }
    assert mine.reads.tally("verb", "code") == {("list", 200): 1, ("get", 404): 1}
    assert mine.refused.tally("code") == {404: 1}
    assert len(seen.where(user="kubelet-fake")) == 1
    assert plane.audit(plane.mark()).where(user="admin") == ()


def test_a_watch_that_began_and_ended_counts_once_and_half_a_line_does_not(tmp_path: Path) -> None:
    stages = [{"stage": stage, "stageTimestamp": "2026-01-01T00:00:00Z"} for stage in ("ResponseStarted", "Complete")]
    about = {"resource": "genericjobs", "apiGroup": "batch.tensorstack.dev", "namespace": "a"}
    call = {"auditID": "1", "verb": "watch", "user": {"username": "operator"}, "objectRef": about}
    lines = [json.dumps({**call, **stage, "responseStatus": {"code": 200}}) for stage in stages]
    (tmp_path / "audit").write_text("\n".join([*lines, lines[0].replace('"1"', '"2"')[:-9]]))

    (only,) = read(tmp_path / "audit")

    assert (only.user, only.verb, only.resource) == ("operator", "watch", "genericjobs.batch.tensorstack.dev")


def test_a_user_may_do_what_it_is_granted_and_nothing_else(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(RefusedError, match="403"):
        plane.call("GET", path, user="stranger")

    plane.kubectl("create", "role", "reader", "-n", namespace, "--verb=list", "--resource=pods")
    plane.kubectl("create", "rolebinding", "reader", "-n", namespace, "--role=reader", "--user=stranger")

    def lists() -> bool:
        return plane.kubectl("get", "pods", "-n", namespace, user="stranger", check=False).returncode == 0

    until(lists, "the role holds")
    with pytest.raises(RefusedError, match="403"):
        plane.call("POST", path, pod("a"), user="stranger")


def test_a_service_account_is_known_by_its_token(plane: ControlPlane, namespace: str) -> None:
    config = plane.service_account(namespace, "default")
    mark = plane.mark()

    said = subprocess.run(
        [plane.binaries["kubectl"], f"--kubeconfig={config}", "auth", "whoami"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    account = f"system:serviceaccount:{namespace}:default"
    assert account in said
    assert plane.audit(mark).where(user=account).tally("verb", "resource") == {
        ("create", "selfsubjectreviews.authentication.k8s.io"): 1
    }


def test_a_part_that_does_not_come_up_is_named_with_its_last_words(tmp_path: Path) -> None:
    flags = {"kube-apiserver": ["--no-such-flag"]}

    with pytest.raises(PlaneError, match=r"(?s)kube-apiserver has ended.*unknown flag: --no-such-flag"):
        ControlPlane(tmp_path, flags=flags).__enter__()

    assert not (tmp_path / "data").exists()
    assert _running(str(tmp_path)) == []


def test_nothing_outlives_the_process_that_started_it() -> None:
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": f"{here}:{here.parent}"}
    with subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True, env=env) as holder:
        assert holder.stdout
        folder, *_ = holder.stdout.readline().split()
        assert len(_running(folder)) == 2
        holder.send_signal(signal.SIGKILL)
    until(lambda: not _running(folder), "all have ended")
    subprocess.run(["rm", "-r", folder], check=True)  # noqa: S607 - what nobody was left to remove


def _running(text: str) -> list[str]:
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended since
            continue
        if text in line and "pytest" not in line:
            lines.append(line)
    return lines
