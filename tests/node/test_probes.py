# SPDX-License-Identifier: Apache-2.0
"""Hooks and probes of running containers, with real processes."""

import asyncio
from pathlib import Path
from typing import Any

from node_agent import AgentRig, container, end, settle, state


def probe(script: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 0.1, "failureThreshold": 1, **more}


def ready(status: dict[str, Any]) -> bool:
    return bool(status.get("containerStatuses") and status["containerStatuses"][0]["ready"])


async def test_a_container_without_probes_is_ready_when_it_runs(node: AgentRig) -> None:
    node.run(container("exec sleep 60"))
    status = await node.until(ready)
    assert status["containerStatuses"][0]["started"]
    assert {"Ready": "True"}.items() <= {one["type"]: one["status"] for one in status["conditions"]}.items()


async def test_readiness_goes_up_and_down(node: AgentRig, tmp_path: Path) -> None:
    node.run(container("exec sleep 60", readinessProbe=probe(f"test -e {tmp_path}/up")))
    status = await node.phase("Running")
    assert not ready(status)
    (tmp_path / "up").touch()
    await node.until(ready)
    (tmp_path / "up").unlink()
    await node.until(lambda status: not ready(status))
    assert "running" in state(node.status())


async def test_a_container_whose_liveness_fails_is_ended_and_restarted_by_its_policy(node: AgentRig) -> None:
    live = probe("echo too hot; exit 7")
    node.run(container("exec sleep 60", livenessProbe=live), restartPolicy="OnFailure")
    status = await node.until(lambda status: status.get("containerStatuses", [{}])[0].get("restartCount"))
    last = status["containerStatuses"][0]["lastState"]["terminated"]
    assert last["exitCode"] == 143
    assert last["message"] == "its liveness probe failed: exit code 7: too hot"


async def test_what_ignores_sigterm_after_a_failed_liveness_is_killed(node: AgentRig, tmp_path: Path) -> None:
    live = probe(f"test ! -e {tmp_path}/ignores", terminationGracePeriodSeconds=0.2)
    node.run(container(f"trap '' TERM; touch {tmp_path}/ignores; while :; do sleep 0.05; done", livenessProbe=live))
    assert end(await node.phase("Failed"))["exitCode"] == 137


async def test_nothing_else_is_probed_before_the_startup_probe_has_passed(node: AgentRig, tmp_path: Path) -> None:
    startup = probe(f"test -e {tmp_path}/up", failureThreshold=100)
    node.run(container("exec sleep 60", startupProbe=startup, livenessProbe=probe(f"test -e {tmp_path}/up")))
    await node.phase("Running")
    await asyncio.sleep(0.2)
    assert not node.status()["containerStatuses"][0]["started"]
    (tmp_path / "up").touch()
    await node.until(ready)


async def test_a_container_that_does_not_come_up_fails(node: AgentRig) -> None:
    node.run(container("exec sleep 60", startupProbe=probe("sleep 5", timeoutSeconds=0.2)))
    status = await node.phase("Failed")
    assert end(status)["message"] == "its startup probe failed: no answer within 0.2 s"


async def test_other_probes_count_as_passed_and_one_notice_says_so(node: AgentRig) -> None:
    http = {"httpGet": {"path": "/", "port": 80}}
    node.run(container("exec sleep 60", readinessProbe=http, livenessProbe={"tcpSocket": {"port": 1}}))
    await node.until(ready)
    told = [notice for notice in node.notices if "probes" in notice]
    assert told == ["spec.containers[0].readinessProbe: only exec probes are run on this node; others count as passed"]


async def test_post_start_runs_beside_the_container(node: AgentRig, tmp_path: Path) -> None:
    hook = {"postStart": {"exec": {"command": ["/bin/sh", "-c", f"echo hook > {tmp_path}/hook"]}}}
    node.run(container("exec sleep 60", lifecycle=hook))
    await node.until(ready)
    await settle((tmp_path / "hook").exists)


async def test_a_failed_post_start_ends_the_container(node: AgentRig) -> None:
    hook = {"postStart": {"exec": {"command": ["/bin/sh", "-c", "exit 3"]}}}
    node.run(container("exec sleep 60", lifecycle=hook))
    assert end(await node.phase("Failed"))["message"].startswith("its postStart hook failed: it exited with 3")


async def test_a_pod_with_probes_can_be_deleted(node: AgentRig) -> None:
    node.run(container("exec sleep 60", readinessProbe=probe("sleep 30", timeoutSeconds=60)))
    await node.phase("Running")
    await asyncio.sleep(0.1)
    node.delete()
    await node.gone()
