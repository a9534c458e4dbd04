# SPDX-License-Identifier: Apache-2.0
"""The operator's rights on a real control plane: enough for everything in a job's life, and none that is not used.

The manifests are applied as they are printed, but for the Deployment: the operator runs beside, with a token of its
service account. The API server asks for leave for `blockOwnerDeletion`, which most do not.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_aitrainingjobs import AITrainingJobs, aitrainingjob
from cluster_aitrainingjobs import replicas as trainers
from cluster_bodies import Body, pod
from cluster_client import until
from cluster_gangs import Groups, install
from cluster_install import trainwright
from cluster_jobs import Jobs
from cluster_kubeflow import KINDS as KUBEFLOW
from cluster_kubeflow import METRICS, KubeflowJobs, kubeflow_job
from cluster_nodes import fake_nodes
from cluster_paddlejobs import PaddleJobs, paddlejob
from cluster_paddlejobs import role as part
from cluster_plane import ControlPlane
from cluster_pods import PREFIX, Script
from cluster_process import Process
from cluster_tfjobs import TFJobs, replicas, tfjob
from cluster_users import User

from trainwright.crd.rbac import LEASE, LEASE_NAMESPACE, NAME
from trainwright.kinds.gangs import PLUGINS_API, T9K_API, VOLCANO_API
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.registry import KINDS
from trainwright.model.meta import DIGEST

JOBS = "/apis/batch.tensorstack.dev/v1beta1/namespaces/{}/genericjobs"
ACCOUNT = "system:serviceaccount:{}:" + NAME
#: Rights that only the operator of the previous version uses: it patches the status. During an upgrade and after a
#: downgrade it works with the roles of this version. Remove them, and this, with the release after 0.1.0.
PREVIOUS_VERSION = {("patch", f"{kind.plural}.{kind.group}/status") for kind in KINDS}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    flags = {"kube-apiserver": ["--enable-admission-plugins=OwnerReferencesPermissionEnforcement"]}
    users = [User("anna", "anna"), User("bob", "bob")]
    folder = tmp_path_factory.mktemp("strict")
    with (
        ControlPlane(folder, flags=flags, users=users, first=install, scheduler=False) as plane,
        fake_nodes(plane, 2, script=Script(runs=None), binds=True),  # gangs ask for a scheduler that is not here
    ):
        yield plane


@contextmanager
def installed(plane: ControlPlane, *words: str) -> Iterator[list[Body]]:
    """All but the Deployment and the CRDs, until the end of the block."""
    printed = yaml.safe_load_all(trainwright("manifests", "--no-crds", *words).stdout)
    bodies = [body for body in printed if body["kind"] != "Deployment"]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies})
    plane.kubectl("apply", "--server-side", "-f", "-", given=text)
    try:
        yield bodies
    finally:  # the namespace of the lease stays for the next installation: one that is ending takes no objects
        ours = [body for body in bodies if body["metadata"]["name"] != LEASE_NAMESPACE]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
        plane.kubectl("delete", "--wait=false", "--ignore-not-found", "-f", "-", given=text)


@contextmanager
def operator(plane: ControlPlane, folder: Path, namespace: str, *words: str) -> Iterator[Process]:
    """As the service account of that namespace."""
    kubeconfig = plane.service_account(namespace, NAME)
    argv = [sys.executable, "-m", "trainwright", "operator", f"--kubeconfig={kubeconfig}"]
    # An operator for one namespace has a lease of its own, all others share one: as `manifests` prints it.
    lease_in = namespace if any("--namespace" in word for word in words) else LEASE_NAMESPACE
    process = Process("operator", [*argv, f"--lease={lease_in}/{LEASE}", *words], folder / "operator.log")
    process.start()
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def ended_well(plane: ControlPlane, folder: Path, namespace: str, *words: str) -> Iterator[None]:
    """The same, asked to end after the block; where that fails, with what it wrote."""
    with operator(plane, folder, namespace, *words) as process:
        try:
            yield
        except Exception as error:
            raise AssertionError(f"{error}; the operator wrote:\n{process.tail(40)}") from error
        assert process.end() == 0


def granted(bodies: list[Body]) -> set[tuple[str, str]]:
    """Verb and resource of everything that the operator's roles allow; `finalizers` is never a request."""
    roles = [body for body in bodies if body["kind"] in ("Role", "ClusterRole") and NAME in body["metadata"]["name"]]
    return {
        (verb, ".".join(filter(None, (resource.partition("/")[0], group))) + "".join(resource.partition("/")[1:]))
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if not resource.endswith("/finalizers")
    }


class Life:
    """Everything that can happen to jobs of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.jobs, self.groups = JOBS.format(namespace), Groups(plane, T9K_API, namespace)
        self.core = f"/api/v1/namespaces/{namespace}"

    def lead(self) -> None:
        self.grow_and_shrink()
        self.fail_and_start_again()
        self.lose_a_pod_and_find_it_again()
        self.meet_others()

    def make(self, name: str, replicas: int, *, exits: str = "", gang: bool = False, **spec: Any) -> None:
        notes = {f"{PREFIX}exit": exits, f"{PREFIX}runs": "0.2"} if exits else {}
        template = {
            "metadata": {"annotations": notes},
            "spec": {"containers": [{"name": "main", "image": "none", "command": ["true"]}]},
        }
        role = {"type": "worker", "replicas": replicas, "template": template, "restartPolicy": {"limit": 3}}
        given = {"service": {"ports": [{"name": "http", "port": 80}]}, "replicaSpecs": [role], **spec}
        given |= {"scheduler": {"t9kScheduler": {"queue": "default"}}} if gang else {}
        head = {"apiVersion": "batch.tensorstack.dev/v1beta1", "kind": "GenericJob", "metadata": {"name": name}}
        self.plane.call("POST", self.jobs, {**head, "spec": given})

    def until(self, name: str, phase: str) -> None:
        def there() -> bool:
            return bool(self.plane.call("GET", f"{self.jobs}/{name}").get("status", {}).get("phase") == phase)

        until(there, f"{name} is {phase}: {self.plane.find(f'{self.jobs}/{name}')}")

    def pods(self, name: str) -> list[Body]:
        found: list[Body] = self.plane.call("GET", f"{self.core}/pods?labelSelector=genericjob={name}")["items"]
        return found

    def services(self, name: str) -> list[Body]:
        found: list[Body] = self.plane.call("GET", f"{self.core}/services?labelSelector=genericjob={name}")["items"]
        return found

    def has(self, name: str, size: int) -> bool:
        return len(self.pods(name)) == len(self.services(name)) == size

    def edit(self, name: str, patch: Any) -> None:
        self.plane.call("PATCH", f"{self.jobs}/{name}", patch)

    def grow_and_shrink(self) -> None:
        """Under a pod group, which is kept in step; paused, the job has none."""
        self.make("life", 2, gang=True)
        self.until("life", "Running")
        for size in (3, 1):
            self.edit("life", GENERICJOB.scale(self.plane.call("GET", f"{self.jobs}/life"), "worker", size))
            until(partial(self.has, "life", size), f"it has {size} workers")
        for on in (True, False):
            self.edit("life", GENERICJOB.suspend(self.plane.call("GET", f"{self.jobs}/life"), on))
            self.groups.until("life", there=not on)
        self.plane.call("DELETE", f"{self.jobs}/life")
        until(lambda: not self.pods("life") and not self.services("life"), "Kubernetes removes its children")

    def fail_and_start_again(self) -> None:
        self.make("again", 1, exits="1,0", cleanUpPolicy="All")
        self.until("again", "Succeeded")
        until(lambda: not self.pods("again"), "it is cleaned up")

    def lose_a_pod_and_find_it_again(self) -> None:
        self.make("adopt", 1)
        self.until("adopt", "Running")
        path = f"{self.core}/pods/adopt-worker-0"
        self.plane.call("PATCH", path, {"metadata": {"ownerReferences": None}})
        until(lambda: self.plane.call("GET", path)["metadata"].get("ownerReferences"), "it is adopted")

    def meet_others(self) -> None:
        """Whose names children of the job would have."""
        service = {"metadata": {"name": "met-worker-1"}, "spec": {"ports": [{"port": 80}]}}
        mark = self.plane.mark()
        self.plane.call("POST", f"{self.core}/pods", pod("met-worker-0"))
        self.plane.call("POST", f"{self.core}/services", service)
        self.groups.make("met")
        self.make("met", 2, gang=True)
        wanted = {
            ("pods", "met-worker-0"),
            ("services", "met-worker-1"),
            ("podgroups.scheduler.tensorstack.dev", "met"),
        }

        until_looked_at(self.plane, mark, self.namespace, wanted)


def until_looked_at(plane: ControlPlane, mark: int, namespace: str, wanted: set[tuple[str, str]]) -> None:
    """Wait until the operator has asked for these, by resource and name."""

    def looked_at() -> set[tuple[str, str]]:
        calls = plane.audit(mark).where(verb="get", namespace=namespace)
        ours = [call for call in calls if call.user.startswith("system:serviceaccount:")]
        return {(call.resource, call.name) for call in ours}

    until(lambda: wanted <= looked_at(), f"they are looked at: {looked_at()}")


def train(plane: ControlPlane, namespace: str, api: str) -> None:
    """Whatever a TFJob does with a pod group of that scheduler, and its end, which it does not outlive."""
    jobs, groups = TFJobs(plane, namespace), Groups(plane, api, namespace)
    name, other = f"train-{api.split('.')[1]}", f"met-{api.split('.')[1]}"
    policy: Body = {"schedulingPolicy": {}}
    jobs.make(tfjob(name, spec={"runPolicy": policy}, Worker=replicas(1)))
    groups.until(name)
    groups.phase(name, "Inqueue")
    jobs.until(name, "Created", "Running")
    jobs.edit(name, tfReplicaSpecs={"Worker": {"replicas": 2}})
    until(lambda: groups.find(name)["spec"]["minMember"] == 2, "its pod group grows")
    jobs.edit(name, runPolicy={"suspend": True})
    groups.until(name, there=False)
    mark = plane.mark()
    groups.make(other)
    jobs.make(tfjob(other, spec={"runPolicy": policy}, Worker=replicas(1)))
    until_looked_at(plane, mark, namespace, {(f"podgroups.{api.partition('/')[0]}", other)})
    last = {"runPolicy": {"ttlSecondsAfterFinished": 0}}
    jobs.make(tfjob(f"last-{name}", spec=last, Worker=replicas(1, runs="0.2")))
    until(lambda: not jobs.find(f"last-{name}"), "it is removed once it has ended")


def paddle(plane: ControlPlane, namespace: str) -> None:
    """Whatever a PaddleJob does with its ConfigMap, and with a finalizer that nobody answers for."""
    jobs = PaddleJobs(plane, namespace)
    body = paddlejob("paddle", intranet="Service", worker=part(1))
    body["metadata"]["finalizers"] = ["finalizers.paddlepaddle.org"]
    jobs.make(body)
    jobs.until("paddle", "Running")
    jobs.edit("paddle", worker={"replicas": 2})
    until(lambda: jobs.data("paddle").get("PADDLE_TRAINERS_NUM") == "2", "its ConfigMap follows")
    told = f"{jobs.core}/configmaps/paddle"
    plane.call("PATCH", told, {"metadata": {"annotations": {DIGEST: "another"}}})
    until(lambda: plane.call("GET", told)["metadata"]["annotations"][DIGEST] != "another", "it is kept in step")
    jobs.edit("paddle", runPolicy={"suspend": True})
    until(lambda: not jobs.data("paddle"), "its ConfigMap goes")
    plane.call("DELETE", f"{jobs.path}/paddle")
    until(lambda: not jobs.find("paddle"), "it goes")
    mark = plane.mark()
    plane.call("POST", f"{jobs.core}/configmaps", {"metadata": {"name": "met-paddle"}})
    jobs.make(paddlejob("met-paddle", intranet="Service", worker=part(1)))
    until_looked_at(plane, mark, namespace, {("configmaps", "met-paddle")})
    jobs.make(paddlejob("last-paddle", worker=part(1, runs="0.2"), runPolicy={"ttlSecondsAfterFinished": 0}))
    until(lambda: not jobs.find("last-paddle"), "it is removed once it has ended")


def fit(plane: ControlPlane, namespace: str) -> None:
    """An AITrainingJob that is resized, and ended by an annotation."""
    jobs = AITrainingJobs(Jobs(plane, namespace))
    jobs.make(aitrainingjob("fit", trainer=trainers(1, runs="forever")))
    jobs.until("fit", "Running")
    plane.call("PATCH", f"{jobs.path}/fit", {"spec": {"replicaSpecs": {"trainer": {"replicas": 2}}}})
    until(lambda: jobs.steps("fit").count("Running") == 2, "it runs with two")
    plane.call("PATCH", f"{jobs.path}/fit", {"metadata": {"annotations": {"Preempted": "x"}}})
    jobs.until("fit", "Preempted")


def autoscale(plane: ControlPlane, namespace: str) -> None:
    """Whatever a PyTorchJob does with its autoscaler, and the ends of all kinds of Kubeflow v1."""
    jobs = KubeflowJobs(plane, namespace, "pytorchjobs")
    policy = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "metrics": METRICS}}
    jobs.make(kubeflow_job("pytorchjobs", "scaled", policy, Worker=1))
    until(lambda: bool(jobs.autoscaler("scaled")), "it has an autoscaler")
    jobs.edit("scaled", elasticPolicy={"maxReplicas": 3})
    until(lambda: jobs.autoscaler("scaled").get("maxReplicas") == 3, "its autoscaler follows")
    jobs.edit("scaled", runPolicy={"suspend": True})
    until(lambda: not jobs.autoscaler("scaled"), "its autoscaler goes")
    mark = plane.mark()
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "met-scaled"}
    plane.call(
        "POST",
        jobs.autoscalers,
        {"metadata": {"name": "met-scaled"}, "spec": {"scaleTargetRef": target, "maxReplicas": 2}},
    )
    jobs.make(kubeflow_job("pytorchjobs", "met-scaled", policy, Worker=1))
    until_looked_at(plane, mark, namespace, {("horizontalpodautoscalers.autoscaling", "met-scaled")})
    for plural in KUBEFLOW:
        last = KubeflowJobs(plane, namespace, plural)
        last.make(kubeflow_job(plural, f"last-{plural}", {"runPolicy": {"ttlSecondsAfterFinished": 0}}, runs="0.2"))
        until(partial(_is_gone, last, f"last-{plural}"), "it is removed once it has ended")


def _is_gone(jobs: KubeflowJobs, name: str) -> bool:
    return not jobs.find(name)


@pytest.mark.parametrize(
    ("home", "words"),
    [
        pytest.param("everywhere", (), id="all namespaces"),
        pytest.param("tools", ("--namespace=there",), id="one namespace"),
        pytest.param("there", ("--namespace=there",), id="beside its jobs"),
    ],
)
def test_rights_suffice_for_a_whole_life_and_none_is_too_much(
    strict: ControlPlane, tmp_path: Path, home: str, words: tuple[str, ...]
) -> None:
    watched = [word.replace("--namespace", "--watch-namespace") for word in words]
    strict.kubectl("create", "namespace", "there")
    with installed(strict, "-n", home, *watched) as bodies:
        mark = strict.mark()
        with ended_well(strict, tmp_path, home, *words):
            Life(strict, "there").lead()
            train(strict, "there", VOLCANO_API)
            paddle(strict, "there")
            fit(strict, "there")
            autoscale(strict, "there")
        with ended_well(strict, tmp_path, home, *words, "--gang-scheduler-name=together"):
            train(strict, "there", PLUGINS_API)
        calls = strict.audit(mark).where(user=ACCOUNT.format(home))
        strict.kubectl("delete", "namespace", "there", "--timeout=50s")

    assert calls.where(code=403).tally() == {}
    used = {(call.verb, call.resource) for call in calls}
    assert not used & PREVIOUS_VERSION
    assert used | PREVIOUS_VERSION == granted(bodies)


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "expected"),
    [
        ("create", "pods", "red", True),
        ("create", "pods", "blue", False),
        ("list", "genericjobs.batch.tensorstack.dev", "blue", False),
        ("list", "nodes", "", True),
        ("get", "leases.coordination.k8s.io/operator", "red", True),
        ("patch", "leases.coordination.k8s.io/somebody", "red", False),
        ("get", "secrets", "red", False),
        ("create", "pods --subresource=exec", "red", False),
        ("get", "customresourcedefinitions.apiextensions.k8s.io/podgroups.scheduler.tensorstack.dev", "", False),
    ],
)
def test_an_operator_of_one_namespace_has_no_say_in_another(
    strict: ControlPlane, verb: str, resource: str, namespace: str, *, expected: bool
) -> None:
    strict.kubectl("create", "namespace", "red", check=False)
    with installed(strict, "-n", "red", "--watch-namespace", "red"):
        account, place = ACCOUNT.format("red"), [f"--namespace={namespace}"] if namespace else []
        said = strict.kubectl("auth", "can-i", verb, *resource.split(), f"--as={account}", *place, check=False).stdout

    assert said.strip().splitlines()[-1] == ("yes" if expected else "no")


@pytest.mark.parametrize(
    ("user", "role", "verbs"),
    [
        pytest.param("anna", "edit", {"get", "list", "watch", "create", "patch", "update", "delete"}, id="edit"),
        pytest.param("bob", "view", {"get", "list", "watch"}, id="view"),
    ],
)
def test_people_may_do_with_jobs_what_their_role_says(
    strict: ControlPlane, user: str, role: str, verbs: set[str]
) -> None:
    strict.kubectl("create", "rolebinding", user, "-n", "default", f"--clusterrole={role}", f"--user={user}")
    every = ("get", "list", "watch", "create", "patch", "update", "delete")

    def may() -> set[str]:
        asked = {verb: ("auth", "can-i", verb, "gj", "-n", "default") for verb in every}
        said = {verb: strict.kubectl(*words, user=user, check=False).stdout.strip() for verb, words in asked.items()}
        return {verb for verb, answer in said.items() if answer == "yes"}

    with installed(strict, "-n", f"home-of-{user}"):
        until(lambda: may() == verbs, f"{user} may {sorted(verbs)}: {sorted(may())}")
