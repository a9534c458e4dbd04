# SPDX-License-Identifier: Apache-2.0
"""Which log files a pod has, from the pod itself. `session` follows them with `tail`; `logs` finds them again later.

LOGS/<pod>/<first 8 of uid>-<container>-<restarts>.log, one for each time that a container was started.
"""

from collections.abc import Iterator

from msgspec import Struct

from trainwright.cli.show.news import Replica, Source
from trainwright.model.job import Body


class Found(Struct, frozen=True, gc=False):
    """A log file that is new, or one that will not grow any more."""

    path: str
    source: Source
    ended: bool


class Sources:
    """What has been found so far."""

    def __init__(self, logs: str) -> None:
        self._logs = logs
        #: By pod and container: how often it was started, and whether its last log is finished.
        self._seen: dict[tuple[str, str], tuple[int, bool]] = {}

    def look(self, pod: Body, replica: Replica) -> Iterator[Found]:
        """What is new about a pod's logs."""
        status = pod.get("status") or {}
        for group in ("initContainerStatuses", "containerStatuses"):
            for one in status.get(group) or ():
                yield from self._container(one, pod, replica)

    def forget(self, pod: Body, replica: Replica) -> Iterator[Found]:
        """The pod is gone: none of its logs grows any more."""
        uid = pod["metadata"]["uid"]
        for at in [(uid, name) for name in containers(pod)]:
            times, ended = self._seen.pop(at, (0, True))
            if not ended:
                yield Found(self.path(pod, at[1], times), _source(pod, replica, at[1]), ended=True)

    def path(self, pod: Body, container: str, times: int) -> str:
        """The file of one start of a container."""
        meta = pod["metadata"]
        return f"{self._logs}/{meta['name']}/{meta['uid'][:8]}-{container}-{times}.log"

    def _container(self, one: Body, pod: Body, replica: Replica) -> Iterator[Found]:
        state = one.get("state") or {}
        running = bool(state.get("running"))
        if not running and not state.get("terminated") and not (one.get("lastState") or {}).get("terminated"):
            return
        at = (pod["metadata"]["uid"], one["name"])
        times, ended = self._seen.get(at, (-1, True))
        now = (one.get("restartCount", 0), not running)
        if now == (times, ended) or now[0] < times:
            return
        self._seen[at] = now
        source = _source(pod, replica, one["name"])
        if not ended and times < now[0]:
            yield Found(self.path(pod, one["name"], times), source, ended=True)
        for number in range(times + 1, now[0]):
            yield Found(self.path(pod, one["name"], number), source, ended=True)
        yield Found(self.path(pod, one["name"], now[0]), source, ended=not running)


def containers(pod: Body) -> list[str]:
    """The names of a pod's containers, init containers first."""
    spec = pod["spec"]
    return [one["name"] for group in ("initContainers", "containers") for one in spec.get(group) or ()]


def _source(pod: Body, replica: Replica, container: str) -> Source:
    """The label names the container only where there are several."""
    alone = len(pod["spec"].get("containers") or ()) + len(pod["spec"].get("initContainers") or ()) == 1
    label = replica.label if alone else f"{replica.label}/{container}"
    return Source(replica.job, replica.name, replica.pod, container, label)
