# SPDX-License-Identifier: Apache-2.0
"""What pods have been waiting for, for those who want to be told with their job. `publisher` asks now and then.

Nothing is decided by it: it reads what kubelets and schedulers say of pods that do not run, or not for long.
"""

from trainwright.model.child import Pod
from trainwright.model.event import PodWaiting
from trainwright.model.status import Status
from trainwright.model.units import BEGINNING, Time, after

#: Seconds that a pod may take to start before that is worth a word: most images come within that time.
LONG = 10.0


def waits(status: Status, now: Time) -> dict[tuple[str, str], PodWaiting]:
    """By role and reason: one event, which names the first pod that has been waiting for that reason for long."""
    found: dict[tuple[str, str], PodWaiting] = {}
    for role in status.roles if status.ledger.outcome is None else ():
        for seen in role.replicas:
            told = _told(seen.pod, now) if seen.pod is not None and not seen.final else None
            if told is not None:
                found.setdefault((role.name, told.reason), told)
    return found


def _told(pod: Pod, now: Time) -> PodWaiting | None:
    """What keeps a pod."""
    meta, status = pod.metadata, pod.status
    if meta.deletion_timestamp is not None or status.phase not in ("Pending", "Running"):
        return None
    if meta.creation_timestamp is None or now < after(meta.creation_timestamp, LONG):
        return None
    containers = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    for one in containers:
        waiting = one.state.waiting if one.state is not None else None
        if waiting is not None and waiting.reason and waiting.message:
            return PodWaiting(meta.name, waiting.reason, waiting.message, one.name)
    return _of_conditions(pod) if not containers else None


def _of_conditions(pod: Pod) -> PodWaiting | None:
    """The newest condition, if that is not fulfilled; containers are not yet spoken of."""
    newest = max(pod.status.conditions or (), key=lambda one: one.last_transition_time or BEGINNING, default=None)
    if newest is None or newest.status == "True" or not (newest.reason and newest.message):
        return None
    return PodWaiting(pod.metadata.name, newest.reason, newest.message)
