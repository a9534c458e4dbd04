# SPDX-License-Identifier: Apache-2.0
"""How a pod is, in one word and a reason, from the whole object."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trainwright.model.cause import implied_signal, signal_name
from trainwright.model.child import BACKING_OFF, Waiting
from trainwright.model.job import Body
from trainwright.model.meta import CONTAINER_SCHEME, KIND

#: Reasons that every pod has for a moment; not worth a word.
_ORDINARY = frozenset({"ContainerCreating", "PodInitializing", "Completed", "Error", ""})
_LONGEST = 300
_GROUPS = ("initContainerStatuses", "containerStatuses")


class PodCondition(Struct, frozen=True, gc=False):
    """A pod's phase as we show it, why it is in it, and how often its containers were restarted in place."""

    phase: str
    reason: str = ""
    restarts: int = 0


def condition(pod: Body) -> PodCondition:
    """Look at a pod."""
    status = pod.get("status") or {}
    phase = status.get("phase") or "Pending"
    restarts = sum(one.get("restartCount", 0) for group in _GROUPS for one in status.get(group) or ())
    if phase in ("Succeeded", "Failed"):
        return PodCondition(phase, "" if phase == "Succeeded" else _brief(_end(status)), restarts)
    if pod["metadata"].get("deletionTimestamp"):
        return PodCondition("Terminating", "", restarts)
    if phase == "Pending" and not pod["spec"].get("nodeName"):
        return PodCondition("Pending", _brief(_unplaced(status)), restarts)
    backing_off = _backing_off(status)
    if phase == "Running" and backing_off is not None:
        return PodCondition(BACKING_OFF, _brief(backing_off), restarts)
    trouble = _peerless(pod, status) or next(_waiting(status), "") or _explained(status)
    if phase == "Pending":
        return PodCondition("Starting", _brief(trouble or _initialising(pod, status)), restarts)
    return PodCondition(phase, _brief(trouble or _unready(status)), restarts)


def states(status: Body) -> Iterator[tuple[str, Body]]:
    """Every container's name and state, init containers first."""
    for group in _GROUPS:
        for one in status.get(group) or ():
            yield one.get("name", ""), one.get("state") or {}


def exit_text(ended: Body) -> str:
    """`exit code 1`, `OOMKilled`, `killed by SIGKILL`; no more than is known."""
    code, number, reason = ended.get("exitCode", 0), ended.get("signal") or 0, ended.get("reason", "")
    if reason not in _ORDINARY:
        return f"{reason} (exit code {code})"
    if number:
        return f"killed by {signal_name(number)}"
    implied = 0 if str(ended.get("containerID", "")).startswith(CONTAINER_SCHEME) else implied_signal(code)
    return f"{signal_name(implied)}, or exit code {code} from the program" if implied else f"exit code {code}"


def _end(status: Body) -> str:
    ends = [(name, state["terminated"]) for name, state in states(status) if state.get("terminated")]
    bad = [(name, ended) for name, ended in ends if ended.get("exitCode")]
    if not bad:
        return _explained(status)
    name, ended = bad[0]
    message = ended.get("message") or ""
    text = exit_text(ended) + (f": {message}" if message else "")
    return text if len(ends) == 1 else f"{name}: {text}"


def _explained(status: Body) -> str:
    return ": ".join(part for part in (status.get("reason"), status.get("message")) if part)


def _unplaced(status: Body) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return ": ".join(part for part in (one.get("reason"), one.get("message")) if part)
    return ""


def _peerless(pod: Body, status: Body) -> str:
    """A pod that waits for the ConfigMap of its own job is in no trouble: it is made once all have an address."""
    owners = [one for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")]
    if not owners or KIND not in (pod["metadata"].get("labels") or {}):
        return ""
    for _, state in states(status):
        waiting: Any = state.get("waiting") or {}
        if owners[0]["name"] in Waiting(waiting.get("reason") or "", waiting.get("message") or "").missing:
            return "waits until all its peers have an address"
    return ""


def _backing_off(status: Body) -> str | None:
    """How a container last ended that waits to be started again; None: there is none. Such a pod does not run."""
    for one in status.get("containerStatuses") or ():
        waiting: Any = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == BACKING_OFF:
            ended = (one.get("lastState") or {}).get("terminated")
            return ": ".join(part for part in (exit_text(ended) if ended else "", waiting.get("message")) if part)
    return None


def _waiting(status: Body) -> Iterator[str]:
    for _, state in states(status):
        waiting: Any = state.get("waiting") or {}
        if waiting.get("reason", "") not in _ORDINARY:
            yield ": ".join(part for part in (waiting["reason"], waiting.get("message")) if part)


def _initialising(pod: Body, status: Body) -> str:
    total = len(pod["spec"].get("initContainers") or ())
    done = sum(1 for one in status.get("initContainerStatuses") or () if (one.get("state") or {}).get("terminated"))
    return f"init {done} of {total} done" if total else ""


def _unready(status: Body) -> str:
    waits = [one for one in status.get("containerStatuses") or () if not one.get("ready") and _runs(one)]
    return "not ready" if waits else ""


def _runs(container: Body) -> bool:
    return bool((container.get("state") or {}).get("running"))


def _brief(text: str) -> str:
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
