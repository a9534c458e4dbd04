# SPDX-License-Identifier: Apache-2.0
"""Continues a pod that an earlier agent has started, from its stored status and from what the supervisor knows.

The status can be older than the truth: an agent may die before it has written that a container started, ended or
started again. So the supervisor decides. A container that runs goes on as the same process; a container that has ended
gets its real end; a container of which the supervisor knows nothing is lost. Times continue by the wall clock.
"""

from datetime import UTC, datetime
from functools import partial

from trainwright.model.child import BACKING_OFF
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME
from trainwright.model.units import parse_time, rfc3339
from trainwright.node.found import ContainerEnd, FoundContainer
from trainwright.node.pod import ContainerRecord, PodState, loop_time
from trainwright.node.status import PodFailure

_CONTAINER_UNKNOWN = "The container could not be located when the node agent was started again"
_AGENT_RESTARTED = PodFailure(
    "NodeLost", "The node agent was restarted, and the processes of this pod ended with the agent before it"
)


def restore(pod: PodState) -> None:
    """Continue a pod from its status. Containers that run in that status, and that nobody knows, have ended."""
    status: Body = pod.body.get("status") or {}
    kept = pod.context.settings.orphans == "keep"
    found = pod.context.link.claim(pod.uid) if kept and not pod.ended else []
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    before = {one["name"]: one for one in statuses}
    if not found and not before:
        return
    pod.is_adopted = True
    if kept:
        _restore_resources(pod, found)
    for container in pod.containers:
        _restore_view(container, before.get(container.view.name) or {})
        if pod.ended and kept:
            continue  # its status is final
        runs = "running" in ((before.get(container.view.name) or {}).get("state") or {})
        known = [one for one in found if one.name == container.view.name and one.restart >= container.view.restarts]
        for one in known:
            _continue(pod, container, one)
        if runs and not known:
            _lose_running(pod, container)
        _restore_backoff(pod, container)


def _restore_resources(pod: PodState, found: list[FoundContainer]) -> None:
    """Continue with the network, the devices and the files that the pod has."""
    context = pod.context
    pod.opened = pod.uid in context.link.open_pods
    pod.has_folder = context.settings.sandboxed
    if context.devices.by_resource and not pod.ended:
        pod.devices = context.devices.take(pod.uid, pod.body) or {}
    if not (pod.body.get("status") or {}).get("startTime") and found:
        pod.start_time = min(pod.start_time, _time(min(one.started for one in found)))
    if pod.opened and context.hosts is not None:
        context.hosts.follow(pod.key.namespace)


def _restore_view(container: ContainerRecord, before: Body) -> None:
    """Take the state of a container from the status, unless the container ran then."""
    view, state = container.view, before.get("state") or {}
    view.restarts, view.last = before.get("restartCount", 0), before.get("lastState") or None
    if "terminated" in state:
        view.state = state
    elif "running" in state:
        view.id, container.started_at = before.get("containerID", ""), state["running"].get("startedAt", "")
        view.ready, view.started = bool(before.get("ready")), bool(before.get("started"))
    elif (state.get("waiting") or {}).get("reason") == BACKING_OFF and view.last:
        view.state = view.last  # the state before the back-off; the restart is not counted yet


def _continue(pod: PodState, container: ContainerRecord, found: FoundContainer) -> None:
    """Continue a container that the supervisor knows."""
    view, link = container.view, pod.context.link
    is_new = found.restart > view.restarts or container.started_at == ""
    if found.restart > view.restarts:
        forget = partial(link.forget, {"container": container.id})
        pod.report.on_stored += [forget] if container.id else []
        container.prepare_restart()
        view.restarts, view.ready, view.started = found.restart, False, False
    container.id, view.id = found.container, f"{CONTAINER_SCHEME}{found.container}"
    if view.code is not None:
        return  # its end is stored
    container.log, container.message_file, container.notes = found.log, found.message, found.notes
    container.stop_message = found.notes.get("stop_message", "")
    started = _time(found.started)
    if is_new:
        container.started_at = rfc3339(started)
        pod.mark_changed()
    container.started_loop_time = _loop_time(pod, started)
    if found.ended is not None:
        pod.container_ended(container, found.ended)
    elif found.gone:
        _lose(pod, container)
    else:
        _go_on(pod, container)


def _go_on(pod: PodState, container: ContainerRecord) -> None:
    """Continue a container that still runs."""
    link = pod.context.link
    container.live = True
    container.ended.clear()
    container.set_start_answered()
    link.on_ended[container.id] = partial(pod.container_ended, container)
    stop_by = container.notes.get("stop_by")
    if stop_by is not None:
        container.kill_at(_loop_time(pod, _time(stop_by)), link)


def _lose_running(pod: PodState, container: ContainerRecord) -> None:
    """Record how a container of an earlier agent ended, from the journal of its supervisor, or as unknown."""
    context = pod.context
    end = context.link.previous_ends.get(container.view.id.removeprefix(CONTAINER_SCHEME))
    if end is not None:
        pod.container_ended(container, end)
    elif context.settings.orphans == "keep":
        _lose(pod, container)
    else:
        lost = ContainerEnd(code=137, at=context.clock.now().timestamp())
        container.set_terminated(lost, "ContainerStatusUnknown", _CONTAINER_UNKNOWN)
        if context.settings.kubelet and pod.restart_policy == "Never":
            pod.failure = _AGENT_RESTARTED


def _lose(pod: PodState, container: ContainerRecord) -> None:
    """Record that a container is lost with its supervisor, and fail the pod."""
    cause = pod.context.link.loss_cause
    end = ContainerEnd(container.id, 137, 9, at=pod.context.clock.now().timestamp())
    container.set_terminated(end, cause.reason, cause.message)
    pod.failure = pod.failure or PodFailure(cause.reason, cause.message)
    pod.mark_changed()


def _restore_backoff(pod: PodState, container: ContainerRecord) -> None:
    """Continue the back-off of a container. The number of restarts gives the wait before the next restart."""
    if pod.context.settings.orphans != "keep":
        return
    ended = container.view.state.get("terminated") or {}
    delays, restarts = pod.context.settings.delays, container.view.restarts
    finished, started = parse_time(ended.get("finishedAt") or ""), parse_time(ended.get("startedAt") or "")
    if finished is not None and started is not None:
        container.ended_loop_time = _loop_time(pod, finished)
        container.started_loop_time = _loop_time(pod, started)
    longest = delays.max_restart_backoff
    container.backoff = min(delays.restart_backoff * 2.0 ** min(restarts - 1, 32), longest) if restarts else 0.0


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _loop_time(pod: PodState, when: datetime) -> float:
    """A time of the wall clock as a time of the event loop's clock."""
    return loop_time() + (when - pod.context.clock.now()).total_seconds()
