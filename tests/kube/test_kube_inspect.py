# SPDX-License-Identifier: Apache-2.0
"""What `explain` and its siblings collect from a cluster: the embedded store behind HTTP, with refusals as needed."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kube_store import JOB, StoreServer, api, status

from trainwright.cli.flags import ClusterOptions
from trainwright.cli.inspect import cluster
from trainwright.cli.inspect.cluster import collect
from trainwright.cli.inspect.evidence import JobEvidence, Wanted
from trainwright.cli.remote.find import parse_name
from trainwright.errors import ApiError, ForbiddenError, InvalidError, UsageError
from trainwright.kinds.registry import KINDS
from trainwright.kube.codec import object_path
from trainwright.model.job import Body
from trainwright.model.meta import ATTEMPT, INDEX, JOB_UID, KIND, ROLE, SPARE, Key
from trainwright.runtime.ports import EVENTS, JOBS, NODES, PODS, WallClock

GROUPS = [kind.group for kind in KINDS]


class Place:
    """A cluster with jobs in the namespace `lab`, and a caller."""

    def __init__(self, server: StoreServer, folder: Path) -> None:
        self.server, self.store, self.folder = server, server.store, folder
        self.groups = dict.fromkeys(GROUPS, "v1")
        #: Answers by the end of a path; they replace those of the store.
        self.answers: dict[str, web.Response] = {}
        self.asked: list[str] = []
        server.before = self._before

    async def _before(self, request: web.Request) -> web.Response | None:
        self.asked.append(request.path_qs)
        if request.path == "/apis" and "/apis" not in self.answers:
            groups = [{"name": name, "preferredVersion": {"version": one}} for name, one in self.groups.items()]
            return web.json_response({"kind": "APIGroupList", "groups": groups})
        return next((answer for end, answer in self.answers.items() if request.path.endswith(end)), None)

    def forbid(self, *ends: str) -> None:
        self.answers |= {end: status(403, "Forbidden", f"{end} is forbidden") for end in ends}

    async def collect(self, word: str = "demo", namespace: str = "", wanted: Wanted = Wanted.EVERYTHING) -> JobEvidence:
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "namespace": "lab"}}],
            "clusters": [{"name": "here", "cluster": {"server": f"http://{self.server.address}"}}],
        }
        (self.folder / "config").write_text(json.dumps(config))
        options = ClusterOptions(kubeconfig=str(self.folder / "config"))
        return await asyncio.to_thread(collect, options, word, namespace, wanted=wanted, now=WallClock().now())

    # -- objects ---------------------------------------------------------------------------------------------------

    def job(self, name: str = "demo", namespace: str = "lab", ledger: Body | None = None) -> Body:
        template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
        spec = {"replicaSpecs": [{"type": "worker", "replicas": 2, "template": template}]}
        head = {"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": {"name": name, "namespace": namespace}}
        made: Body = self.store.create(JOB, {**head, "spec": spec})
        if ledger is not None:
            self.store.patch(JOB, Key(namespace, name), {"status": {"trainwright": ledger}}, status=True)
        return made

    def tfjob(self, name: str = "demo") -> None:
        template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
        head = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name, "namespace": "lab"}}
        self.store.create(JOBS["tfjob"], head | {"spec": {"tfReplicaSpecs": {"Worker": {"template": template}}}})

    def pod(self, job: Body, index: int = 0, attempt: str = "0", said: Body | None = None) -> Body:
        labels = {KIND: "genericjob", JOB_UID: job["metadata"]["uid"], ROLE: "worker", INDEX: str(index)}
        name = f"{job['metadata']['name']}-worker-{index}"
        meta = {"name": name, "namespace": "lab", "labels": labels | {ATTEMPT: attempt}}
        spec = {"containers": [{"name": "main", "image": "none"}], "nodeName": "east"}
        made: Body = self.store.create(
            PODS.whole(), {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        )
        if said is not None:
            self.store.patch(PODS.whole(), Key("lab", name), {"status": said}, status=True)
        return made

    def event(self, name: str, kind: str, about: str, uid: str, at: str = "2999-01-01T00:00:00Z", **more: Any) -> None:
        object_ = {"kind": kind, "name": about, "namespace": "lab", "uid": uid}
        head = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "lab"}}
        body = head | {"involvedObject": object_, "reason": name, "message": "m", "type": "Normal", "lastTimestamp": at}
        self.store.create(EVENTS.whole(), body | more)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with api() as server:
        yield Place(server, tmp_path)


# -- the job ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "namespace", "expected", "kinds"),
    [
        ("demo", "", "lab/demo", 8),
        ("demo", "other", "other/demo", 8),
        ("red/demo", "", "red/demo", 8),
        ("red/demo", "red", "red/demo", 8),
        ("gj/demo", "", "lab/demo", 1),
        ("TFJob/demo", "other", "other/demo", 1),
        ("tfjobs.kubeflow.org/demo", "", "lab/demo", 1),
    ],
)
def test_a_job_is_named_as_kubectl_does_or_with_its_namespace(
    word: str, namespace: str, expected: str, kinds: int
) -> None:
    name = parse_name(word, namespace, "lab")

    assert (str(name.key), len(name.kinds)) == (expected, kinds)


@pytest.mark.parametrize("word", ["", "/", "a/b/c", "/demo", "demo/"])
def test_a_word_that_is_no_name_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="expected NAME, NAMESPACE/NAME or KIND/NAME"):
        parse_name(word, "", "lab")


@pytest.mark.parametrize("text", ["k\u00e9", "\udcff"], ids=["UTF-8", "not UTF-8"])
def test_a_name_that_is_not_ascii_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^JOB: .*; expected only ASCII"):
        parse_name(text, "", "lab")
    with pytest.raises(UsageError, match=r"^--namespace: .*; expected only ASCII"):
        parse_name("demo", text, "lab")
    with pytest.raises(InvalidError, match=r"^metadata\.name: .*; expected a name in ASCII"):
        object_path(PODS, Key("lab", text))


def test_two_namespaces_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="'red/demo' names the namespace 'red', but --namespace is 'blue'"):
        parse_name("red/demo", "blue", "lab")


async def test_the_job_is_found_among_all_kinds(place: Place) -> None:
    place.tfjob()
    found = await place.collect()

    assert (found.kind.name, found.body["metadata"]["name"]) == ("TFJob", "demo")
    assert (found.place, found.live, found.gaps) == ("cluster here", True, ())


async def test_one_name_of_two_kinds_needs_the_kind(place: Place) -> None:
    place.job()
    place.tfjob()

    with pytest.raises(UsageError, match=r"'demo' can mean genericjob/demo or tfjob/demo in .* give KIND/NAME"):
        await place.collect()
    assert (await place.collect("tfjob/demo")).kind.name == "TFJob"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("dmo", "there is no job 'dmo' in namespace 'lab' of cluster here; did you mean `demo`?"),
        ("zzz", "jobs there: demo, third"),
        ("tfjob/demo", "there is no TFJob 'demo' in namespace 'lab' of cluster here; it has no jobs"),
        ("other", "did you mean `red/other`?"),
        ("empty/zzz", "there is no job 'zzz' in namespace 'empty' of cluster here; it has no jobs"),
    ],
)
async def test_an_unknown_job_is_answered_with_the_nearest(place: Place, word: str, hint: str) -> None:
    place.job()
    place.job("third")
    place.job("other", "red")

    with pytest.raises(UsageError) as caught:
        await place.collect(word)
    assert hint in str(caught.value)


async def test_a_kind_whose_crd_is_not_installed_is_no_obstacle(place: Place) -> None:
    place.job()
    place.answers["/tfjobs/demo"] = web.Response(text="404 page not found\n", status=404)

    assert (await place.collect()).kind.name == "GenericJob"


async def test_a_cluster_without_any_of_our_kinds(place: Place) -> None:
    place.groups = {"apps": "v1"}

    with pytest.raises(UsageError, match=r"cluster here has no CRD of genericjobs.batch.tensorstack.dev, .* manifests"):
        await place.collect()


async def test_a_caller_who_may_not_read_jobs(place: Place) -> None:
    place.forbid("/genericjobs/demo", "/tfjobs/demo", "/paddlejobs/demo", "/aitrainingjobs/demo")

    with pytest.raises(ForbiddenError):
        await place.collect()


NO_ANSWERS = pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}", b'{"metadata":null,"groups":null}', b'"\xff"'])


@NO_ANSWERS
async def test_an_answer_that_is_no_job(place: Place, answer: bytes) -> None:
    place.answers["/genericjobs/demo"] = web.Response(body=answer)

    with pytest.raises(ApiError, match=r"^the server's answer cannot be read: "):
        await place.collect()


# -- the objects around it -------------------------------------------------------------------------------------------


async def test_the_pods_of_the_job_alone_are_collected(place: Place) -> None:
    job, other = place.job(), place.job("other")
    place.pod(job, 1)
    place.pod(job, 7, SPARE)
    place.pod(other)
    place.store.create(NODES.whole(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "east"}})
    found = await place.collect()

    assert [one["metadata"]["name"] for one in found.pods] == ["demo-worker-1"]
    assert found.nodes is not None
    assert [one["metadata"]["name"] for one in found.nodes] == ["east"]


async def test_events_of_children_that_are_gone_count_and_those_of_others_do_not(place: Place) -> None:
    job = place.job()
    uid = job["metadata"]["uid"]
    pod = place.pod(job)
    place.event("late", "GenericJob", "demo", uid, "2999-01-01T00:00:03Z")
    place.event("gone", "Pod", "demo-worker-1", "deleted", "2999-01-01T00:00:02Z")
    none: Body = {"lastTimestamp": None, "eventTime": "2999-01-01T00:00:01.500000Z"}
    place.event("there", "Pod", "demo-worker-0", pod["metadata"]["uid"], **none)
    place.event("earlier-job", "GenericJob", "demo", "another")
    place.event("earlier-pod", "Pod", "demo-worker-1", "older", "1999-01-01T00:00:00Z")
    place.event("other-job", "Pod", "demo-worker-1x", "foreign")
    place.event("node", "Node", "demo-worker-1", "foreign")
    found = await place.collect()

    assert [one["reason"] for one in found.events] == ["there", "gone", "late"]


async def test_each_missing_permission_is_one_sentence(place: Place) -> None:
    place.pod(place.job())
    place.groups["kueue.x-k8s.io"] = "v1beta1"
    place.forbid("/nodes", "/events", "/pods", "/workloads")
    found = await place.collect()

    assert (found.nodes, found.events, found.pods) == (None, (), ())
    assert found.gaps == (
        "you may not list events in namespace 'lab': events are left out",
        "you may not list nodes: the health and the resources of nodes are not known",
        "you may not list pods in namespace 'lab': the replicas are left out",
        "you may not list workloads.kueue.x-k8s.io in namespace 'lab': what Kueue says about the job is not known",
    )


async def test_a_broken_api_is_one_sentence_too(place: Place) -> None:
    place.job()
    place.answers["/events"] = status(500, "InternalError", "etcd is away")
    place.answers["/events"].headers["Retry-After"] = "60"
    found = await place.collect()

    assert found.gaps == ("cannot list events in namespace 'lab' (etcd is away): events are left out",)


@NO_ANSWERS
async def test_api_groups_that_cannot_be_read_are_one_sentence(place: Place, answer: bytes) -> None:
    place.job()
    place.answers["/apis"] = web.Response(body=answer)
    found = await place.collect()

    assert found.admission == ()
    (gap,) = found.gaps
    assert gap.startswith("cannot read the API groups (the server's answer cannot be read: ")


async def test_pod_groups_and_workloads_of_the_job_are_collected(place: Place) -> None:
    uid = place.job()["metadata"]["uid"]
    place.groups |= {"scheduler.tensorstack.dev": "v1beta1", "kueue.x-k8s.io": "v1beta2"}
    group = {"metadata": {"name": "demo", "uid": "g"}, "status": {"phase": "Pending"}}
    ours = {"metadata": {"name": "ours", "uid": "w", "ownerReferences": [{"uid": uid}]}}
    theirs = {"metadata": {"name": "theirs", "uid": "x", "ownerReferences": [{"uid": "other"}]}}
    place.answers["/podgroups"] = web.json_response({"metadata": {}, "items": [group]})
    place.answers["kueue.x-k8s.io/v1beta2/namespaces/lab/workloads"] = web.json_response(
        {"metadata": {}, "items": [theirs, ours]}
    )
    place.event("quota", "Workload", "ours", "w")
    found = await place.collect()

    assert [(one["kind"], one["metadata"]["name"]) for one in found.admission] == [
        ("PodGroup", "demo"),
        ("Workload", "ours"),
    ]
    assert [one["reason"] for one in found.events] == ["quota"]
    asked = next(path for path in place.asked if "podgroups" in path)
    assert f"labelSelector=trainwright.dev%2Fjob-uid%3D{uid}" in asked


async def test_an_api_that_the_cluster_does_not_have_is_no_gap(place: Place) -> None:
    """RBAC refuses a list before the server looks whether the API exists."""
    place.job()
    place.forbid("/podgroups", "/workloads")

    assert (await place.collect()).gaps == ()


WAITS = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


@pytest.mark.parametrize(
    ("forbidden", "gaps"),
    [
        ((), ()),
        (("/api/v1/pods",), ("you may not list pods in all namespaces: the free resources of nodes are not known",)),
    ],
    ids=["all pods", "own pods"],
)
async def test_what_is_missing_for_an_unschedulable_pod(
    place: Place, forbidden: tuple[str, ...], gaps: tuple[str, ...]
) -> None:
    place.pod(place.job(), said=WAITS)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "east"}}
    place.store.create(NODES.whole(), node)
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4", "pods": "0"}}
    place.store.patch(NODES.whole(), Key("", "east"), {"status": ready}, status=True)
    place.forbid(*forbidden)
    found = await place.collect()

    assert (found.shortages, found.gaps) == ({"demo-worker-0": "east: pods: needs 1, this node has none"}, gaps)


# -- logs --------------------------------------------------------------------------------------------------------------

CAUSE = {"why": "Exit", "code": 1, "container": "main", "node": "east"}
FAILURE = {
    "role": "worker",
    "index": 0,
    "pod": "demo-worker-0",
    "attempt": 1,
    "at": "2026-01-01T00:00:00Z",
    "cause": CAUSE,
}
ENDED = {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}}


def failed(**cause: Any) -> Body:
    failure = FAILURE | {"cause": CAUSE | cause}
    outcome = {"result": "Failed", "reason": "Rule", "at": "2026-01-01T00:00:00Z", "failure": failure}
    return {"phase": "Failed", "outcome": outcome, "failures": [failure]}


def container(state: Body, last: Body | None = None) -> Body:
    one: Body = {"name": "main", "restartCount": 1 if last else 0, "state": state, "lastState": last or {}}
    return {"phase": "Failed", "containerStatuses": [one]}


@pytest.mark.parametrize(
    ("said", "previous"),
    [
        (container(ENDED), False),
        (container(ENDED, ENDED), False),
        (container({"running": {}}, ENDED), True),
        (container({"waiting": {"reason": "CrashLoopBackOff"}}, ENDED), True),
    ],
)
async def test_the_log_of_the_failed_container_is_read(place: Place, said: Body, *, previous: bool) -> None:
    place.pod(place.job(ledger=failed()), attempt="1", said=said)
    place.answers["/demo-worker-0/log"] = web.Response(text="one\ntwo\n")
    found = await place.collect()

    assert found.log is not None
    assert (found.log.lines, found.log.problem, found.log.failure.pod) == (("one", "two"), "", "demo-worker-0")
    asked = next(path for path in place.asked if "/log" in path)
    assert ("previous=true" in asked, "container=main" in asked, "tailLines=" in asked) == (previous, True, True)


async def test_a_node_that_does_not_answer_does_not_hold_up_the_answer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(request: web.Request) -> web.Response | None:
        if request.path.endswith("/log"):
            await asyncio.sleep(60)
        return await before(request)

    before, place.server.before = place.server.before, silent
    monkeypatch.setattr(cluster, "_LOG_SECONDS", 0.1)
    place.pod(place.job(ledger=failed()), attempt="1", said=container(ENDED))
    found = await place.collect()

    assert found.log is not None
    assert found.log.problem == "node east did not answer within 0.1 s"


#: A bare name may mean a job of any kind.
PLURALS = {"genericjobs", "tfjobs", "paddlejobs", "aitrainingjobs", "pytorchjobs", "xgboostjobs", "jaxjobs"}


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (Wanted.JOB, PLURALS),
        (Wanted.EVENTS, PLURALS | {"events"}),
    ],
)
async def test_only_what_is_wanted_is_asked_for(place: Place, wanted: Wanted, asked: set[str]) -> None:
    job = place.job(ledger=failed())
    place.pod(job, attempt="1", said=container(ENDED))
    place.event("late", "GenericJob", "demo", job["metadata"]["uid"], "2999-01-01T00:00:03Z")
    place.event("gone", "Pod", "demo-worker-1", "deleted", "2999-01-01T00:00:02Z")
    place.forbid("/pods", "/nodes")
    found = await place.collect(wanted=wanted)

    assert {path.partition("?")[0].removesuffix("/demo").rpartition("/")[2] for path in place.asked} == asked
    twice = 1  # two groups have `paddlejobs`
    assert (len(place.asked), found.gaps, found.log) == (len(asked) + twice, (), None)
    assert [one["reason"] for one in found.events] == (["gone", "late"] if wanted is Wanted.EVENTS else [])


async def test_a_container_that_never_ran_has_no_log(place: Place) -> None:
    place.pod(place.job(ledger=failed(why="CreateError")), attempt="1", said=container(ENDED))

    assert (await place.collect()).log is None


@pytest.mark.parametrize(
    ("attempt", "answer", "problem"),
    [
        ("1", status(403, "Forbidden", "no"), "you may not read logs of pods in namespace 'lab'"),
        ("1", status(404, "NotFound", 'pods "demo-worker-0" not found'), 'pods "demo-worker-0" not found'),
        ("2", None, "pod demo-worker-0 was replaced: it is attempt 2 now"),
        ("", None, "pod demo-worker-0 does not exist any more"),
    ],
    ids=["forbidden", "gone meanwhile", "replaced", "gone"],
)
async def test_why_a_log_was_not_read(place: Place, attempt: str, answer: web.Response | None, problem: str) -> None:
    job = place.job(ledger=failed())
    if attempt:
        place.pod(job, attempt=attempt, said=container(ENDED))
    if answer is not None:
        place.answers["/demo-worker-0/log"] = answer
    found = await place.collect()

    assert found.log is not None
    assert (found.log.lines, found.log.problem) == ((), problem)
    assert found.gaps == ()
