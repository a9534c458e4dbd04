# SPDX-License-Identifier: Apache-2.0
"""The state of a pod as a phase and a reason, for people. Every change of a pod calls this code, so it must be fast."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trainwright.model.cause import implied_signal, signal_name
from trainwright.model.child import BACKING_OFF, Waiting
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME, KIND

#: Reasons of a waiting container that are not shown: they are normal, or the phase of the pod already says the same.
_ORDINARY_REASONS = frozenset({"ContainerCreating", "PodInitializing", "Completed", "Error", ""})
#: Maximum number of characters of a reason; a longer reason is shortened.
_MAX_REASON = 300
_STATUS_LISTS = ("initContainerStatuses", "containerStatuses")


class PodCondition(Struct, frozen=True, gc=False):
    """The phase that we show for a pod, the reason, and how often containers were restarted inside the pod."""

    phase: str
    reason: str = ""
    restarts: int = 0


def condition(pod: Body) -> PodCondition:
    """The condition of a pod."""
    status = pod.get("status") or {}
    phase = status.get("phase") or "Pending"
    restarts = sum(one.get("restartCount", 0) for name in _STATUS_LISTS for one in status.get(name) or ())
    if phase in ("Succeeded", "Failed"):
        return PodCondition(phase, "" if phase == "Succeeded" else _shorten(_failure(status)), restarts)
    if pod["metadata"].get("deletionTimestamp"):
        return PodCondition("Terminating", "", restarts)
    if phase == "Pending" and not pod["spec"].get("nodeName"):
        return PodCondition("Pending", _shorten(_unscheduled(status)), restarts)
    backing_off = _back_off(status)
    if phase == "Running" and backing_off is not None:
        return PodCondition(BACKING_OFF, _shorten(backing_off), restarts)
    trouble = _waits_for_peers(pod, status) or next(_waiting(status), "") or _reason_and_message(status)
    if phase == "Pending":
        return PodCondition("Starting", _shorten(trouble or _init_progress(pod, status)), restarts)
    return PodCondition(phase, _shorten(trouble or _unready(status)), restarts)


def states(status: Body) -> Iterator[tuple[str, Body]]:
    """The name and state of each container, init containers first."""
    for group in _STATUS_LISTS:
        for one in status.get(group) or ():
            yield one.get("name", ""), one.get("state") or {}


def exit_text(ended: Body) -> str:
    """A text that says how a container ended, for example `exit code 1`, `OOMKilled (exit code 137)`."""
    code, number, reason = ended.get("exitCode", 0), ended.get("signal") or 0, ended.get("reason", "")
    if reason not in _ORDINARY_REASONS:
        return f"{reason} (exit code {code})"
    if number:
        return f"killed by {signal_name(number)}"
    implied = 0 if str(ended.get("containerID", "")).startswith(CONTAINER_SCHEME) else implied_signal(code)
    return f"{signal_name(implied)}, or exit code {code} from the program" if implied else f"exit code {code}"


def _failure(status: Body) -> str:
    ends = [(name, state["terminated"]) for name, state in states(status) if state.get("terminated")]
    bad = [(name, ended) for name, ended in ends if ended.get("exitCode")]
    if not bad:
        return _reason_and_message(status)
    name, ended = bad[0]
    message = ended.get("message") or ""
    text = exit_text(ended) + (f": {message}" if message else "")
    return text if len(ends) == 1 else f"{name}: {text}"


def _reason_and_message(source: Body) -> str:
    return ": ".join(part for part in (source.get("reason"), source.get("message")) if part)


def _unscheduled(status: Body) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return _reason_and_message(one)
    return ""


def _waits_for_peers(pod: Body, status: Body) -> str:
    """The text to show if a pod waits for the ConfigMap of its own job; empty if the pod does not wait for it.

    This is not an error: the operator creates the ConfigMap as soon as all pods of the job have an address.
    """
    owners = [one for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")]
    if not owners or KIND not in (pod["metadata"].get("labels") or {}):
        return ""
    for _, state in states(status):
        waiting: Any = state.get("waiting") or {}
        if owners[0]["name"] in Waiting(waiting.get("reason") or "", waiting.get("message") or "").missing:
            return "waits until all its peers have an address"
    return ""


def _back_off(status: Body) -> str | None:
    """If a container waits for its restart (back-off), a text that says how it ended; otherwise None."""
    for one in status.get("containerStatuses") or ():
        waiting: Any = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == BACKING_OFF:
            ended = (one.get("lastState") or {}).get("terminated")
            return ": ".join(part for part in (exit_text(ended) if ended else "", waiting.get("message")) if part)
    return None


def _waiting(status: Body) -> Iterator[str]:
    for _, state in states(status):
        waiting: Any = state.get("waiting") or {}
        if waiting.get("reason", "") not in _ORDINARY_REASONS:
            yield _reason_and_message(waiting)


def _init_progress(pod: Body, status: Body) -> str:
    total = len(pod["spec"].get("initContainers") or ())
    done = sum(1 for one in status.get("initContainerStatuses") or () if (one.get("state") or {}).get("terminated"))
    return f"init {done} of {total} done" if total else ""


def _unready(status: Body) -> str:
    running = [one for one in status.get("containerStatuses") or () if (one.get("state") or {}).get("running")]
    return "" if all(one.get("ready") for one in running) else "not ready"


def _shorten(text: str) -> str:
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 1] + "…"
