# SPDX-License-Identifier: Apache-2.0
"""The defects of the original that its users met, one test each: here they do not happen.

Numbers are those of the list that this project keeps of them.
"""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from paddlejob_driver import Driver, container, manifest, role

from trainwright.crd.rbac import cluster_role
from trainwright.kinds.base import load
from trainwright.kinds.gangs import VOLCANO_API
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.model.child import ContainerState, ContainerStatus, Extra, GroupStatus, Pod, Refusal, Waiting
from trainwright.model.meta import Owner
from trainwright.model.site import Site
from trainwright.testing.factories import NOW, UID, later

PS: dict[str, Any] = {"ps": 2, "worker": 2}
MODES = ("PodIP", "Service", "Host")


def itself(world: Driver, name: str) -> str:
    """The endpoint by which Paddle's role maker looks for the pod in a list: `POD_IP:PADDLE_PORT`."""
    env = world.data | world.env(name)
    address = env["POD_IP"]
    if isinstance(address, dict):
        assert address == {"fieldRef": {"fieldPath": "status.podIP"}}
        address = world.pods()[f"demo-{name}"].status.pod_ip
    return f"{address}:{env['PADDLE_PORT']}"


def problems(**spec: Any) -> dict[str, str]:
    """What is said of a manifest, by path."""
    return {one.path: str(one) for one in load(PADDLEJOB, manifest(**spec)).problems}


# -- addresses and variables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("intranet", MODES)
def test_01_every_server_finds_itself_in_the_list(intranet: str) -> None:
    world = Driver(manifest(**PS, intranet=intranet))
    world.run()

    assert world.data["PADDLE_PSERVERS_IP_PORT_LIST"].split(",") == [itself(world, "ps-0"), itself(world, "ps-1")]
    assert world.data["PADDLE_TRAINER_ENDPOINTS"].split(",") == [itself(world, f"worker-{place}") for place in (0, 1)]


@pytest.mark.parametrize("intranet", MODES)
def test_02_gloo_meets_beside_the_servers_port(intranet: str) -> None:
    world = Driver(manifest(**PS, intranet=intranet, withGloo=2))
    world.run()
    host, _, port = world.data["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")[0].rpartition(":")

    assert world.data["PADDLE_GLOO_HTTP_ENDPOINT"] == f"{host}:{int(port) + 18}"
    assert (world.data["PADDLE_WITH_GLOO"], world.data["PADDLE_GLOO_RENDEZVOUS"]) == ("2", "3")


def test_03_ports_are_fixed_or_remembered_never_random() -> None:
    for intranet in ("PodIP", "Service"):
        first, second = (Driver(manifest(**PS, intranet=intranet)) for _ in range(2))
        first.run()
        second.run()
        assert first.data["PADDLE_PORT"] == second.data["PADDLE_PORT"] == "36000"
    hosted = Driver(manifest(**PS, intranet="Host"))
    hosted.run()
    before = hosted.status["trainwright"]["ports"]
    hosted.vanish("demo-worker-0")
    hosted.wait_out()
    hosted.run()

    assert hosted.names() == ["ps-0#1", "ps-1#1", "worker-0#1", "worker-1#1"]
    assert hosted.status["trainwright"]["ports"] == before


def test_04_on_the_hosts_network_names_resolve_and_nothing_waits_for_nslookup() -> None:
    world = Driver(manifest(worker=role(1), ps=role(1, pod={"dnsPolicy": "Default"}), intranet="Host"))
    world.go()
    worker, server = (world.bodies["Pod", f"demo-{name}-0"]["spec"] for name in ("worker", "ps"))

    assert (worker["hostNetwork"], worker["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert server["dnsPolicy"] == "Default", "what the user says stays"
    assert "initContainers" not in worker


def test_05_two_pods_on_one_node_do_not_share_ports() -> None:
    world = Driver(manifest(worker=50, ps=50, intranet="Host"))
    world.held = frozenset(range(35000, 50000, 20))
    world.run()
    bases = sorted(world.status["trainwright"]["ports"].values())

    assert len(bases) == 100
    assert all(after - before >= 20 for before, after in pairwise(bases))
    assert not any(base < 50000 for base in bases), "others hold those"
    assert {world.env(f"{kind}-{place}")["PADDLE_PORT"] for kind in ("ps", "worker") for place in range(50)} == {
        str(base) for base in bases
    }
    ports = world.bodies["Pod", "demo-ps-0"]["spec"]["containers"][0]["ports"]
    assert [str(one["containerPort"]) for one in ports] == [world.env("ps-0")["PADDLE_PORT"]], "the scheduler sees it"


def test_06_heterogeneous_workers_are_called_what_paddle_reads() -> None:
    world = Driver(manifest(ps=1, worker=2, heter=1))
    world.run()
    env, worker = world.env("heter-0"), world.env("worker-1")
    listed = {world.data[key] for key in world.data if "HETER" in key}

    assert (env["TRAINING_ROLE"], env["PADDLE_TRAINING_ROLE"]) == ("HETER_TRAINER", "HETER_TRAINER")
    assert {"PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_HETER_ENDPOINTS"} <= set(world.data)
    assert listed == {itself(world, "heter-0")}
    assert (world.data["STAGE_NUM"], world.data["PADDLE_STAGE_TRAINERS_NUM"]) == ("2", "[2, 1]")
    assert (worker["STAGE_ID"], env["STAGE_ID"], env["HETER_DEVICE_TYPE"]) == ("1", "2", "cpu")
    assert worker["PADDLE_NEXT_HETER_TRAINER_IP_PORT_LIST"]["configMapKeyRef"]["key"] in world.data
    assert env["PADDLE_PREVIOUS_HETER_TRAINER_IP_PORT_LIST"]["configMapKeyRef"] == {
        "name": "demo",
        "key": "PADDLE_TRAINER_ENDPOINTS",
    }


def test_07_addresses_may_be_of_ipv6() -> None:
    world = Driver(manifest(ps=1, worker=1))
    world.go()
    for place, name in enumerate(("ps-0", "worker-0")):
        world.bind(f"demo-{name}")
        world.change(f"demo-{name}", pod_ip=f"fd00::{place + 1}")
    world.go()

    assert world.data["PADDLE_PSERVERS_IP_PORT_LIST"] == "[fd00::1]:36000"
    assert world.data["PADDLE_TRAINER_ENDPOINTS"] == "[fd00::2]:36000"
    assert world.data["PADDLE_GLOO_HTTP_ENDPOINT"] == "[fd00::1]:36018"
    assert world.data["PADDLE_TRAINERS"] == "fd00::2"


def test_08_the_container_called_paddle_is_told_wherever_it_stands() -> None:
    sidecar = [container("proxy"), container()]
    world = Driver(manifest(worker=role(2, pod={"containers": sidecar})))
    world.go()
    first = Driver(manifest(worker=role(1, pod={"containers": [container("a"), container("b")]})))
    first.go()

    assert (world.env("worker-1", 0), world.env("worker-1", 1)["PADDLE_TRAINER_ID"]) == ({}, "1")
    assert "PADDLE_TRAINER_ID" in first.env("worker-0", 0)
    assert (
        "so the first one, 'a', gets the peers' addresses"
        in problems(worker=role(1, pod={"containers": [container("a"), container("b")]}))[
            "spec.worker.template.spec.containers"
        ]
    )
    assert (
        "may not be empty" in problems(worker=role(1, pod={"containers": []}))["spec.worker.template.spec.containers"]
    )


@pytest.mark.parametrize("intranet", MODES)
def test_09_after_scaling_or_a_new_address_nobody_reads_of_peers_that_are_no_more(intranet: str) -> None:
    world = Driver(manifest(worker=2, intranet=intranet))
    world.run()
    before = world.data["PADDLE_TRAINER_ENDPOINTS"]
    world.scale("worker", 3)
    status = world.run()

    assert world.names() == ["worker-0#1", "worker-1#1", "worker-2#1"], "all start anew in the new world"
    assert (world.data["PADDLE_TRAINERS_NUM"], world.data["PADDLE_TRAINER_ENDPOINTS"].count(",")) == ("3", 2)
    assert status["phase"] == "Running"
    if intranet == "PodIP":
        assert not set(before.split(",")) & set(world.data["PADDLE_TRAINER_ENDPOINTS"].split(","))


def test_10_no_container_starts_before_every_address_of_every_role_is_known() -> None:
    world = Driver(manifest(**PS))
    world.go()
    for name in ("ps-0", "ps-1", "worker-0"):
        world.start(f"demo-{name}")
    world.go()

    assert world.names("ConfigMap") == []
    assert {pod.status.phase for pod in world.pods().values()} == {"Pending"}
    world.start("demo-worker-1")
    world.go()
    assert world.names("ConfigMap") == ["demo"]


def test_11_nothing_is_added_that_asks_for_resources() -> None:
    world = Driver(manifest(**PS))
    world.go()
    spec = world.bodies["Pod", "demo-ps-0"]["spec"]

    assert "initContainers" not in spec
    assert [one["name"] for one in spec["containers"]] == ["paddle"]


def test_12_a_job_without_annotations_runs_on_the_hosts_network_and_lists_the_ports_it_has() -> None:
    document = manifest(**PS, intranet="Host")
    assert "annotations" not in document["metadata"]
    world = Driver(document)
    world.step()

    assert len(world.status["trainwright"]["ports"]) == 4, "before the first pod"
    assert world.writes[0] == "status"
    world.run()
    ends = world.data["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
    assert [end.rpartition(":")[2] for end in ends] == [world.env(f"ps-{place}")["PADDLE_PORT"] for place in (0, 1)]


# -- status and control ------------------------------------------------------------------------------------------------


def test_13_a_failure_is_not_masked_by_another_role_and_nothing_is_written_without_need() -> None:
    world = Driver(manifest(**PS))
    world.run()
    writes = len(world.writes)
    for _ in range(5):
        world.step()
    assert len(world.writes) == writes, "a calm pass writes nothing"
    world.change("demo-ps-0", phase="Pending")
    world.exit("demo-worker-1", 1)
    world.catch_up()

    world.step()
    assert world.phase == "Failed", "in the very pass that sees it"


def test_14_a_pod_that_is_refused_is_told_of_and_tried_again() -> None:
    world = Driver(manifest(worker=1))
    world.refusals["Pod", "demo-worker-0"] = Refusal("demo-worker-0", "Forbidden", "exceeded quota", later(30), "Pod")
    world.go()

    assert world.conditions["ReplicaFailure"] == ("True", "FailedCreate")
    assert "exceeded quota" in world.status["conditions"][-1]["message"]
    assert world.plans[-1].wake == later(30)
    world.wait(31)
    world.go()
    assert world.names() == ["worker-0"]


@pytest.mark.parametrize("intranet", MODES)
def test_15_a_hundred_pods_are_made_and_removed_in_one_pass_each(intranet: str) -> None:
    world = Driver(manifest(ps=20, worker=80, intranet=intranet, cleanPodPolicy="Always"))
    plan = world.step()
    made = [create.body["kind"] for create in plan.creates]
    world.run()
    for name in world.pods():
        world.exit(name)
    world.catch_up()
    plan = world.step()

    assert made.count("Pod") == 100
    assert [delete.kind for delete in plan.deletes].count("Pod") == 100


def test_16_nothing_is_made_for_a_job_that_is_being_deleted_and_the_old_finalizer_goes() -> None:
    document = manifest(**PS)
    document["metadata"] |= {
        "finalizers": ["finalizers.paddlepaddle.org", "somebody.else/s"],
        "deletionTimestamp": NOW.isoformat(),
    }
    world = Driver(document)
    plan = world.step()

    assert plan.creates == ()
    assert world.document["metadata"]["finalizers"] == ["somebody.else/s"]
    assert world.phase == "Terminating"
    assert world.step().empty
    assert PADDLEJOB.obsolete_finalizers == ("finalizers.paddlepaddle.org",)
    broken = load(PADDLEJOB, document | {"spec": {}}).job
    assert (bool(broken.invalid), broken.finalizers) == (True, ("somebody.else/s",)), "also of a job that cannot run"


def test_17_a_pod_that_is_kept_and_deleted_by_hand_does_not_train_again() -> None:
    world = Driver(manifest(worker=1, cleanPodPolicy="Never"))
    world.run()
    world.end("worker-0")
    world.vanish("demo-worker-0")
    world.wait_out()

    assert (world.phase, world.names()) == ("Completed", [])


@pytest.mark.parametrize("policy", ["", "OnCompletion", "OnFailure", "Always", "Never", "Nerver"])
def test_18_pods_of_a_failed_job_do_not_hold_gpus_for_ever(policy: str) -> None:
    world = Driver(manifest(**PS, cleanPodPolicy=policy))
    world.run()
    world.end("worker-1", code=1)

    assert world.phase == "Failed"
    assert not [pod for pod in world.pods().values() if pod.status.phase == "Running"]


def test_19_a_job_without_workers_is_refused_and_a_role_of_nobody_is_not_waited_for() -> None:
    assert "needs at least one worker" in problems()["spec.worker"]
    assert "needs at least one worker" in problems(worker=0)["spec.worker.replicas"]
    world = Driver(manifest(worker=1, ps=0, heter=0))
    assert world.run()["phase"] == "Running"
    before = load(PADDLEJOB, manifest(**PS))
    after = load(PADDLEJOB, manifest(worker=2))
    (problem,) = PADDLEJOB.check_edit(before.wire, after.wire)
    assert (problem.path, problem.warning) == ("spec.ps", False)
    # One that went all the same takes its pods along.
    world = Driver(manifest(**PS))
    world.run()
    del world.document["spec"]["ps"]
    world.edited()
    assert {name.partition("-")[0] for name in world.names()} == {"worker"}


def test_20_elastic_without_workers_is_refused_and_with_servers_everybody_keeps_the_configmap() -> None:
    assert "spec.worker" in problems(elastic=1)
    assert "has no effect" in problems(**PS, elastic=1)["spec.elastic"]
    world = Driver(manifest(**PS, elastic=1))
    world.run()

    assert "PADDLE_PSERVERS_IP_PORT_LIST" in world.data
    assert "PADDLE_ELASTIC_NP" not in world.env("worker-0")
    assert world.bodies["Pod", "demo-ps-0"]["spec"]["containers"][0]["envFrom"] == [{"configMapRef": {"name": "demo"}}]


def test_21_bounds_server_and_generation_are_heeded() -> None:
    site = Site(elastic_server="etcd:2379,other:2379")
    world = Driver(manifest(worker=role(9, requests=2, limits=4), elastic=1), site=site)
    world.run()
    env = world.env("worker-0")

    assert world.names() == [f"worker-{place}" for place in range(4)], "within its bounds"
    assert (env["PADDLE_ELASTIC_NP"], env["PADDLE_ELASTIC_SERVER"]) == ("2:4", "etcd:2379")
    assert env["PADDLE_ELASTIC_JOB_ID"] == "lab-demo"
    assert world.status["observedGeneration"] == 1
    world.scale("worker", 3)
    assert (world.names(), world.status["observedGeneration"]) == (["worker-0", "worker-1", "worker-2"], 2)
    assert world.status["elastic"] == "DONE"


def test_22_pods_of_an_older_job_of_the_same_name_are_not_taken_over() -> None:
    world = Driver(manifest(worker=1))
    world.go()
    old = world.truth["Pod", "demo-worker-0"]
    owner = Owner("batch.paddlepaddle.org/v1", "PaddleJob", "demo", "another-uid", controller=True)
    labels = (old.metadata.labels or {}) | {"trainwright.dev/job-uid": "another-uid"}
    theirs = msgspec.structs.replace(old.metadata, uid="theirs", owner_references=(owner,), labels=labels)
    stranger = msgspec.structs.replace(old, metadata=theirs)
    assert isinstance(stranger, Pod)
    world.put(("Pod", "demo-worker-0"), stranger)
    world.exit("demo-worker-0", 1)
    world.go()

    assert world.phase == "Pending", "its failure is not ours"
    mine, other = (
        load(PADDLEJOB, manifest() | {"metadata": {"name": "demo", "uid": uid}, "spec": manifest(worker=1)["spec"]}).job
        for uid in (UID, "x")
    )
    assert mine.world != other.world, "nor could a pod read the other's ConfigMap"


def test_23_a_foreign_pod_of_that_name_is_told_of() -> None:
    world = Driver(manifest(worker=1))
    world.go()
    pod = world.truth["Pod", "demo-worker-0"]
    world.put(
        ("Pod", "demo-worker-0"),
        msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, uid="x", owner_references=None, labels=None)
        ),
    )
    world.wait_out()

    assert world.conditions["ReplicaFailure"] == ("True", "FailedCreate")
    assert "demo-worker-0" in world.status["conditions"][-1]["message"]


def test_24_success_may_be_left_to_the_workers() -> None:
    world = Driver(manifest(**PS, runPolicy={"successPolicy": "Workers"}))
    world.run()
    world.end("worker-0", "worker-1")

    assert (world.phase, world.names()) == ("Completed", []), "and the servers go"


def test_25_conditions_have_reasons_and_events_name_what_they_are_about() -> None:
    world = Driver(manifest(**PS))
    world.run()
    assert world.conditions == {"Running": ("True", "Running")}
    world.end("worker-1", code=3)

    assert world.conditions == {"Running": ("False", "PodFailed"), "Failed": ("True", "PodFailed")}
    assert "demo-worker-1: container main exited with code 3" in world.status["conditions"][-1]["message"]
    assert [(emit.reason or str(emit.event_reason), emit.source) for emit in world.told] == [
        ("Running", "paddlejob-controller"),
        ("Failed", "paddlejob-controller"),
    ]


@pytest.mark.parametrize(
    ("field", "word", "meant"),
    [
        ("cleanPodPolicy", "OnFailed", "OnFailure"),
        ("cleanPodPolicy", "Nerver", "Never"),
        ("intranet", "HostNetwork", "Host"),
        ("intranet", "service", "Service"),
        ("intranet", "PodIPs", "PodIP"),
        ("cleanPolicy", "Never", "cleanPodPolicy"),
    ],
)
def test_26_misspellings_of_shipped_examples_run_with_a_warning_and_a_suggestion(
    field: str, word: str, meant: str
) -> None:
    loaded = load(PADDLEJOB, manifest(worker=1, **{field: word}))

    assert loaded.errors == ()
    assert [(one.path, one.nearest, one.warning) for one in loaded.problems] == [(f"spec.{field}", meant, True)]


def test_27_the_group_counts_init_containers_and_follows_the_jobs_size() -> None:
    asks: dict[str, Any] = {"resources": {"requests": {"cpu": "1"}}}
    early = {"name": "data", "image": "x", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}
    pod = {"containers": [container(**asks)], "initContainers": [early]}
    site = Site(gangs=frozenset({VOLCANO_API}))
    world = Driver(
        manifest(worker=role(2, pod=pod), schedulingPolicy={"queue": "q", "priorityClass": "high"}), site=site
    )
    world.go()
    group = world.bodies["PodGroup", "demo"]["spec"]

    assert world.names() == [], "not before its turn"
    assert group == {
        "minMember": 2,
        "queue": "q",
        "priorityClassName": "high",
        "minResources": {"cpu": "8", "memory": "2147483648"},
    }
    passes = len(world.writes)
    for _ in range(3):
        world.step()
    assert len(world.writes) == passes, "waiting costs nothing"
    world.admit()
    world.run()
    pod_ = world.bodies["Pod", "demo-worker-1"]
    assert pod_["spec"]["schedulerName"] == "volcano"
    assert pod_["metadata"]["annotations"] == {
        "paddle-resource": "worker",
        "scheduling.k8s.io/group-name": "demo",
        "volcano.sh/task-spec": "worker",
        "volcano.sh/job-name": "demo",
        "volcano.sh/job-version": "0",
        "volcano.sh/queue-name": "q",
    }
    world.scale("worker", 3)
    patches = [patch for plan in world.plans for patch in plan.patches if patch.kind == "PodGroup"]
    assert patches[0].body["spec"]["minMember"] == 3
    # A group that turns Unknown while pods run does not keep a lost one from being made again.
    found = world.truth["PodGroup", "demo"]
    assert isinstance(found, Extra)
    world.put(("PodGroup", "demo"), msgspec.structs.replace(found, status=GroupStatus("Unknown")))
    world.wait_out()
    world.run()
    assert world.bodies["Pod", "demo-worker-2"]["metadata"]["annotations"]["volcano.sh/job-version"] == "1"
    world.end("worker-0", "worker-1", "worker-2")
    assert world.names("PodGroup") == []


@pytest.mark.parametrize(
    ("name", "intranet", "right"),
    [
        ("a" * 53, "Service", True),
        ("a" * 60, "PodIP", False),
        ("7up", "Service", False),
        ("7up", "PodIP", True),
        ("a.b", "PodIP", False),
        ("Up", "PodIP", False),
    ],
)
def test_28_names_that_no_host_or_service_can_have_are_refused(name: str, intranet: str, right: bool) -> None:
    assert (load(PADDLEJOB, manifest(name, worker=1, intranet=intranet)).errors == ()) is right


def test_29_the_operator_may_not_run_commands_in_pods() -> None:
    rules = cluster_role((PADDLEJOB,))["rules"]

    assert not [rule for rule in rules if "pods/exec" in rule["resources"]]
    assert [rule["verbs"] for rule in rules if rule["resources"] == ["configmaps"]] == [
        ["list", "watch", "get", "create", "patch", "delete"]
    ]


def test_30_restarts_are_bounded_and_there_are_deadline_time_to_live_and_suspension() -> None:
    policy = {"backoffLimit": 1, "activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 50}
    world = Driver(manifest(worker=1, runPolicy=policy))
    world.run()
    world.end("worker-0", code=101)
    world.wait(5)
    world.run()
    world.end("worker-0", code=101)
    assert world.conditions["Failed"] == ("True", "BackoffLimitExceeded")
    world.wait(51)
    world.go()
    assert world.gone

    world = Driver(manifest(worker=1, runPolicy=policy))
    world.run()
    world.wait(101)
    world.go()
    assert world.conditions["Failed"] == ("True", "DeadlineExceeded")

    world = Driver(manifest(**PS))
    world.run()
    world.edited(runPolicy={"suspend": True})
    assert (world.phase, world.names(), world.names("ConfigMap")) == ("Suspended", [], [])
    world.edited(runPolicy={"suspend": False})
    assert world.run()["phase"] == "Running"
    assert world.conditions["Suspended"] == ("False", "Resumed")


def test_a_missing_secret_is_told_while_the_missing_configmap_is_not() -> None:
    world = Driver(manifest(worker=2))
    world.go()
    world.start("demo-worker-0")
    status = world.go()
    assert "ReplicaFailure" not in world.conditions
    assert status["worker"] == {"pending": 1, "starting": 1, "refs": status["worker"]["refs"]}

    def waits(message: str) -> tuple[ContainerStatus, ...]:
        return (
            ContainerStatus("paddle", state=ContainerState(waiting=Waiting("CreateContainerConfigError", message))),
        )

    world.change("demo-worker-0", container_statuses=waits('secret "token" not found'))
    world.go()
    assert world.conditions["ReplicaFailure"] == ("True", "CreateContainerConfigError")
    world.change("demo-worker-0", container_statuses=waits('configmap "demo-data" not found'))
    world.go()
    assert world.conditions["ReplicaFailure"] == ("True", "CreateContainerConfigError")
