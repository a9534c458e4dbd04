# SPDX-License-Identifier: Apache-2.0
"""The postStart hook and the probes of a container: how often they run, and what the agent does with their results.

The agent runs only exec probes. Other probes count as passed, and one notice per job says so.
"""

import asyncio

from trainwright.model.job import Body
from trainwright.node import lifecycle
from trainwright.node.link import SupervisorRefused
from trainwright.node.pod import ContainerRecord, PodState, loop_time

_NOT_SUPPORTED = "{}: only exec probes are run on this node; others count as passed"
_DEFAULT_SECONDS = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1}


async def run_hook_and_probes(pod: PodState, container: ContainerRecord) -> None:
    """Run the postStart hook, then the startup probe, then the readiness and liveness probes at the same time."""
    await container.start_answered.wait()
    if not container.live or "stop_by" in container.notes:
        return
    hook = (container.body.get("lifecycle") or {}).get("postStart")
    if hook and not container.notes.get("post_start") and not container.view.started:
        pod.note(container, {"post_start": True})
        path = f"{container.path}.lifecycle.postStart"
        problem = await lifecycle.run_hook(pod, container, hook, path, pod.grace_seconds)
        if problem:
            await _stop_container(pod, container, f"its postStart hook failed: {problem}", pod.grace_seconds)
            return
    if not container.view.started:
        if not await _probe(pod, container, "startupProbe"):
            return
        container.view.started = True
        container.view.ready = _exec_probe(pod, container, "readinessProbe") is None
        pod.mark_changed()
    await asyncio.gather(_probe(pod, container, "readinessProbe"), _probe(pod, container, "livenessProbe"))


def _exec_probe(pod: PodState, container: ContainerRecord, field: str) -> Body | None:
    """The probe in that field if it is an exec probe, otherwise None."""
    probe: Body | None = container.body.get(field)
    if probe and not probe.get("exec"):
        text = _NOT_SUPPORTED.format(f"{container.path}.{field}")
        pod.context.notices.send_once(text, f"probes of {pod.job}")
        return None
    return probe or None


async def _probe(pod: PodState, container: ContainerRecord, field: str) -> bool:
    """Run a probe regularly, and act after enough equal results in a row. Returns False if the container has ended.

    The readiness probe sets whether the container is ready. The other probes stop the container if they fail. The
    startup probe ends when it has passed.
    """
    probe = _exec_probe(pod, container, field)
    if probe is None:
        return True
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    thresholds = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
    last_passed, in_a_row = container.view.ready, 0
    while container.live:
        problem = await _run_probe(pod, container, probe)
        passed = not problem
        in_a_row = in_a_row + 1 if passed == last_passed else 1
        last_passed = passed
        if in_a_row >= thresholds[passed] and container.live:
            if field == "readinessProbe" and container.view.ready != passed:
                container.view.ready = passed
                pod.mark_changed()
            elif field != "readinessProbe" and not passed:
                message = f"its {field.removesuffix('Probe')} probe failed: {problem}"
                grace = probe.get("terminationGracePeriodSeconds")
                await _stop_container(pod, container, message, pod.grace_seconds if grace is None else float(grace))
            elif field == "startupProbe":
                return True
        await asyncio.sleep(_seconds(probe, "periodSeconds"))
    return False


async def _run_probe(pod: PodState, container: ContainerRecord, probe: Body) -> str:
    """Run the probe's command once. Returns what went wrong; empty if the probe passed."""
    argv, timeout = probe["exec"].get("command") or [], _seconds(probe, "timeoutSeconds")
    try:
        answer = await pod.context.link.exec({"container": container.id, "argv": argv, "timeout": timeout})
    except SupervisorRefused as refusal:
        return str(refusal)
    if answer["timeout"]:
        return f"no answer within {timeout:g} s"
    return f"exit code {answer['code']}: {answer['output'].strip()}" if answer["code"] else ""


async def _stop_container(pod: PodState, container: ContainerRecord, message: str, grace: float) -> None:
    container.stop_message = message
    await lifecycle.stop_container(pod, container, loop_time() + grace)


def _seconds(probe: Body, field: str) -> float:
    return float(probe.get(field) or _DEFAULT_SECONDS[field])
