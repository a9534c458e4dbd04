# SPDX-License-Identifier: Apache-2.0
"""Collect the evidence about a job from a Kubernetes cluster, with the permissions of the caller.

Only the job itself is required. Everything else that the caller may not read becomes a sentence in `gaps`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any

from trainwright.cli.flags import ClusterOptions
from trainwright.cli.inspect.evidence import LOG_LINES, JobEvidence, LogExcerpt, Wanted, event_time
from trainwright.cli.remote.find import JobFinder, parse_name, place_of
from trainwright.cli.show.text import line as clean
from trainwright.core.explain import failure_to_quote
from trainwright.errors import ApiError, ForbiddenError, NotFoundError
from trainwright.kinds.base import Kind, load
from trainwright.kube.blocking_http import BlockingHttpClient, NoAnswerInTimeError, http_client, together
from trainwright.kube.codec import Request, object_path, with_query
from trainwright.kube.config import ConnectionOptions
from trainwright.kube.config import load as load_access
from trainwright.model.cause import CauseKind
from trainwright.model.child import Pod
from trainwright.model.job import Body, Job
from trainwright.model.ledger import Failure
from trainwright.model.meta import ATTEMPT, JOB_UID, Key, is_replica
from trainwright.model.units import EARLIEST_TIME, parse_time
from trainwright.runtime.ports import EVENTS, NODES, PODS, Resource, Selection, groups_of

#: The API server reads a log from the node. It waits much longer than this for a node that does not answer.
_LOG_SECONDS = 5.0
_KUEUE = "kueue.x-k8s.io"
#: On larger clusters, a list of the pods of all nodes would take too long.
_MAX_NODES = 100
#: Selects the pods that use resources of a node.
_USING_NODES = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
#: After these causes there is no log: no container ran.
_WITHOUT_LOG = frozenset({CauseKind.CREATE_ERROR, CauseKind.REJECTED})


def collect(options: ClusterOptions, word: str, namespace: str, *, wanted: Wanted, now: datetime) -> JobEvidence:
    """Collect the evidence about the job `word`: NAME, NAMESPACE/NAME or KIND/NAME. Raises UsageError or ApiError.

    Only what is wanted is requested.
    """
    access = load_access(ConnectionOptions(kubeconfig=options.kubeconfig, context=options.context))
    name = parse_name(word, namespace, access.namespace)
    with closing(http_client(access)) as cluster:
        return _Collector(JobFinder(cluster, name, place_of(access))).collect(wanted, now)


# -- objects -----------------------------------------------------------------------------------------------------------


class _Collector:
    """Reads a job and the objects around it, and records what the caller may not read."""

    def __init__(self, finder: JobFinder) -> None:
        self._finder, self._cluster, self._place = finder, finder.cluster, finder.place
        self._namespace = finder.name.key.namespace
        self._gaps: list[str] = []

    def collect(self, wanted: Wanted, now: datetime) -> JobEvidence:
        """Read what is wanted, in as few rounds of concurrent requests as possible."""
        kinds = self._finder.name.kinds
        calls: list[Callable[[], Any]] = [partial(self._finder.get, kind) for kind in kinds]
        if wanted >= Wanted.EVENTS:
            calls.append(partial(self._list, EVENTS, "events are left out"))
        if wanted >= Wanted.EVERYTHING:
            calls.append(self._finder.api_groups)
        answers = together(calls)
        found, rest = answers[: len(kinds)], answers[len(kinds) :]
        kind, body = self._finder.choose(found)
        events = (rest[0] if rest else None) or ()
        if wanted >= Wanted.EVERYTHING:
            return self._everything(kind, body, now, events, rest[1])
        about = events_about(load(kind, body).job, body, events, ())
        return JobEvidence(
            kind=kind, body=body, now=now, place=self._place, events=about, gaps=tuple(sorted(self._gaps))
        )

    def _everything(
        self, kind: Kind, body: Body, now: datetime, events: Sequence[Body], groups: dict[str, str] | ApiError
    ) -> JobEvidence:
        job = load(kind, body).job
        pods, nodes, admission = self._surroundings(kind, job, groups)
        replicas = [pod for pod in pods or () if is_replica(pod["metadata"]["labels"])]
        log = partial(_log, self._cluster, job, replicas) if pods is not None else _nothing
        last: list[Callable[[], Any]] = [log, partial(self._shortages, replicas, nodes or ())]
        excerpt, shortages = together(last)
        return JobEvidence(
            kind=kind,
            body=body,
            now=now,
            place=self._place,
            pods=tuple(replicas),
            nodes=nodes,
            events=events_about(job, body, events, (*(pods or ()), *admission)),
            admission=admission,
            shortages=shortages,
            log=excerpt,
            gaps=tuple(sorted(self._gaps)),
        )

    def _list(self, resource: Resource, consequence: str, scope: Selection | None = None) -> tuple[Body, ...] | None:
        """Objects as dicts, by default all of the namespace; None if they cannot be listed.

        `consequence` completes the sentence about this gap.
        """
        if scope is None:
            scope = Selection(namespace=self._namespace) if resource.namespaced else Selection()
        try:
            return self._cluster.list(resource.whole(), scope)
        except NotFoundError:  # the API does not exist
            return ()
        except ApiError as error:
            everywhere = " in all namespaces" if resource.namespaced else ""
            what = f"list {resource.id}" + (f" in namespace {scope.namespace!r}" if scope.namespace else everywhere)
            problem = f"you may not {what}" if isinstance(error, ForbiddenError) else f"cannot {what} ({error})"
            self._gaps.append(f"{problem}: {consequence}")
        return None

    def _surroundings(
        self, kind: Kind, job: Job, groups: dict[str, str] | ApiError
    ) -> tuple[tuple[Body, ...] | None, tuple[Body, ...] | None, tuple[Body, ...]]:
        """The pods, the nodes, and the objects that decide when the job may start. An ended job needs only pods.

        These objects are the PodGroups of the job, and the Workloads of Kueue that the job owns.
        """
        lists = [partial(self._list, PODS, "the replicas are left out", self._children(job))]
        if job.ledger.outcome is not None:
            return lists[0](), None, ()
        if isinstance(groups, ApiError):
            self._gaps.append(
                f"cannot read the API groups ({groups}): what a gang scheduler or Kueue says is not known"
            )
            groups = {}
        lists.append(partial(self._list, NODES, "the health and the resources of nodes are not known"))
        lists += [
            partial(self._list, resource, "the state of the job's gang is not known", self._children(job))
            for resource in groups_of((kind,))
            if resource.group in groups
        ]
        if _KUEUE in groups:
            workloads = Resource(_KUEUE, groups[_KUEUE], "workloads", "Workload")
            lists.append(partial(self._list, workloads, "what Kueue says about the job is not known"))
        pods, nodes, *more = together(lists)
        found = [one for listed in more for one in listed or ()]
        return pods, nodes, tuple(one for one in found if one["kind"] != "Workload" or _is_owned(one, job.uid))

    def _children(self, job: Job) -> Selection:
        return Selection(self._namespace, labels=f"{JOB_UID}={job.uid}")

    def _shortages(self, pods: Sequence[Body], nodes: Sequence[Body]) -> dict[str, str]:
        """What is missing on which node for each unschedulable pod."""
        waiting = [pod for pod in pods if _is_unschedulable(pod)]
        if not waiting or not 0 < len(nodes) <= _MAX_NODES:
            return {}
        from trainwright.cli.inspect.shortages import find_shortages  # noqa: PLC0415 - few jobs need it

        consequence = "the free resources of nodes are not known"
        return find_shortages(waiting, nodes, self._list(PODS, consequence, Selection(fields=_USING_NODES)))


def _nothing() -> None:
    """Called instead of a request that is not necessary."""


def _is_unschedulable(pod: Body) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any((one.get("type"), one.get("reason")) == ("PodScheduled", "Unschedulable") for one in conditions)


def _is_owned(body: Body, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())


# -- events ------------------------------------------------------------------------------------------------------------


def events_about(job: Job, body: Body, events: Iterable[Body], children: Iterable[Body]) -> tuple[Body, ...]:
    """The events about the job and its children, oldest first.

    Pods and services that were deleted count as children, too: their names say to which job they belong. If such an
    event is older than the job, it is about an earlier job of the same name.
    """
    created = parse_time(body["metadata"]["creationTimestamp"]) or EARLIEST_TIME
    uids = {job.uid, *(child["metadata"]["uid"] for child in children)}
    prefixes = "|".join(re.escape(job.key.replica_prefix(role.name)) for role in job.roles)
    replica = re.compile(rf"(?:{prefixes or '(?!)'})[0-9]+")
    found = []
    for event in events:
        about, at = event.get("involvedObject") or {}, parse_time(event_time(event)) or EARLIEST_TIME
        is_replica = about.get("kind") in ("Pod", "Service") and replica.fullmatch(about.get("name") or "")
        if about.get("uid") in uids or (is_replica and at >= created):
            found.append((at, int(event["metadata"].get("resourceVersion") or 0), event))
    return tuple(event for *_, event in sorted(found, key=lambda one: one[:2]))


# -- the log of a failure ----------------------------------------------------------------------------------------------


def _log(cluster: BlockingHttpClient, job: Job, bodies: Iterable[Body]) -> LogExcerpt | None:
    pods = [PODS.decode(body) for body in bodies]
    failure = failure_to_quote(job.ledger, pods)
    if failure is None or failure.cause.why in _WITHOUT_LOG or not failure.cause.started:
        return None
    pod: Pod | None = next((one for one in pods if one.metadata.name == failure.pod), None)
    if pod is None:
        return LogExcerpt(failure, problem=f"pod {failure.pod} does not exist any more")
    attempt = (pod.metadata.labels or {}).get(ATTEMPT)
    if attempt != str(failure.attempt):
        return LogExcerpt(failure, problem=f"pod {failure.pod} was replaced: it is attempt {attempt} now")
    try:
        data = cluster.send(_log_request(job.key.namespace, pod, failure), _LOG_SECONDS)
    except ForbiddenError:
        return LogExcerpt(failure, problem=f"you may not read logs of pods in namespace {job.key.namespace!r}")
    except NoAnswerInTimeError:
        return LogExcerpt(failure, problem=f"node {pod.spec.node_name} did not answer within {_LOG_SECONDS:g} s")
    except ApiError as error:
        return LogExcerpt(failure, problem=str(error))
    return LogExcerpt(failure, tuple(clean(line) for line in data.decode(errors="replace").splitlines()))


def _log_request(namespace: str, pod: Pod, failure: Failure) -> Request:
    query = {"tailLines": str(LOG_LINES)}
    if failure.cause.container:
        query["container"] = failure.cause.container
    if _restarted_in_place(pod, failure.cause.container):
        query["previous"] = "true"
    path = object_path(PODS, Key(namespace, pod.metadata.name), "log")
    return Request("get", f"{PODS.id}/log", with_query(path, query), idempotent=True)


def _restarted_in_place(pod: Pod, container: str) -> bool:
    """Whether the kubelet has started the container again, so that the log of its failure is the previous log."""
    status = pod.status
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        if one.name == container and one.last_state is not None and one.last_state.terminated is not None:
            return one.state is None or one.state.terminated is None
    return False
