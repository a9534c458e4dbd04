# SPDX-License-Identifier: Apache-2.0
"""The thirty defects of the original, by their numbers in its reference: each a story in which it does not happen."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from aitrainingjob_driver import MAIN, Driver, container, last, manifest, ports, replicas, told

from trainwright.crd.schema import crd
from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.base import load
from trainwright.model.job import Body
from trainwright.model.meta import Owner
from trainwright.model.plan import Write
from trainwright.model.site import CreationRules, Site
from trainwright.testing import factories

NODES = ("trainer-0", "trainer-1", "spare")


def two(nodes: tuple[str, ...] = (), spec: Body | None = None, **more: Any) -> Driver:
    return Driver(manifest(trainer=replicas(2, **more), spec=spec), nodes=nodes).running()


def test_01_a_list_of_nodes_that_failed_is_not_a_failure_of_all_nodes() -> None:
    world = two(NODES, restartPolicy="OnNodeFail")
    world.nodes = None
    world.wait(3600)

    assert world.go()["phase"] == "Running"
    assert world.names() == ["trainer-0", "trainer-1"]


def test_02_a_finished_pod_on_a_lost_node_stays_finished() -> None:
    world = two(NODES, restartPolicy="Always")
    world.end("trainer-1")
    world.lose_node("trainer-1")
    world.wait(3600)
    world.go()

    assert world.end("trainer-0")["phase"] == "Succeed"
    assert "RestartCount" not in world.status


def stuck_again_and_again(times: int, *, fail: bool = False, **more: Any) -> Driver:
    site = Site(creating=CreationRules(restart_period=1000, duration_period=100, fail=fail))
    world = Driver(manifest(trainer=replicas(1, **more)), site=site)
    world.go()
    for _ in range(times):
        world.stick("trainer-0")
        world.pass_by(101)
        world.pass_by(60)  # the back-off
    return world


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "OnNodeFail"])
def test_03_a_pod_that_cannot_be_created_is_replaced_more_than_once_whatever_the_restart_policy(policy: str) -> None:
    world = stuck_again_and_again(3, restartPolicy=policy)

    assert (world.status["RestartCount"], world.names()) == ({"trainer": 3}, ["trainer-0#3"])
    told_of = [message for kind, message in told(world.status) if kind == "Terminating"]
    assert told_of[-1] == (
        "restart times is 3, pod demo-trainer-0: create container failed[aitj-main: ImagePullBackOff: no such image]"
    )


def test_03_the_restart_limit_holds_for_creation_too() -> None:
    world = stuck_again_and_again(3, restartLimit=2)

    assert (world.status["RestartCount"], world.names()) == ({"trainer": 2}, ["trainer-0#2"])
    assert "create container failed" in last(world.status)[1]


def test_03_after_the_window_the_job_fails_where_the_operator_is_told_so() -> None:
    world = stuck_again_and_again(6, fail=True)
    world.stick("trainer-0")
    status = world.pass_by(200)

    assert last(status) == (
        "Failed",
        "pod demo-trainer-0 is failed, create container failed[aitj-main: ImagePullBackOff: no such image]; "
        "deleted pods",
    )


def test_04_by_default_there_is_a_window_in_which_creation_is_tried_again() -> None:
    creating = Site().creating

    assert creating.restart_period > creating.duration_period > 0
    assert not creating.fail


def test_05_an_exit_code_of_0_does_not_poison_the_others() -> None:
    pod = {"containers": [container(), container("aitj-helper")]}
    world = two(pod=pod, restartPolicy="ExitCode", spec={"restartingExitCode": "137"})
    ends = (factories.container("aitj-helper", exit_code=0), factories.container(MAIN, exit_code=137))
    world.change("demo-trainer-1", phase="Failed", container_statuses=ends)

    assert world.go()["RestartCount"] == {"trainer": 1}


@pytest.mark.parametrize("listed", ["137, 128", 128, [137, 128], ["128"]])
def test_05_blanks_numbers_and_lists_of_exit_codes(listed: Any) -> None:
    world = two(restartPolicy="ExitCode", spec={"restartingExitCode": listed})

    assert world.end("trainer-1", code=128)["RestartCount"] == {"trainer": 1}


def test_05_a_container_that_does_not_count_has_no_say() -> None:
    pod = {"initContainers": [container("prepare")]}
    world = two(pod=pod, restartPolicy="ExitCode", spec={"restartingExitCode": "137"})
    ends = (factories.container("prepare", exit_code=137),)
    world.change("demo-trainer-1", phase="Failed", container_statuses=None, init_container_statuses=ends)

    assert world.go()["phase"] == "Failed"


@pytest.mark.parametrize("clean", ["All", "None"])
@pytest.mark.parametrize("key", ["NodeFail", "nodefailed", "Succeed", "Timeout", "Preempted", "Failed", "FAILED"])
def test_06_every_ending_annotation_ends_the_job_after_its_pods_are_gone(key: str, clean: str) -> None:
    asked: Body = {key: "enough"}
    world = two(spec={"cleanPodPolicy": clean})
    word = {"nodefailed": "NodeFail", "FAILED": "Failed"}.get(key, key)

    assert last(world.annotate(reaps=False, **asked)) == ("Terminating", "enough; deleting pods")
    status = world.go()

    assert last(status) == (word, "enough; deleted pods")
    assert (world.names(), world.names("Service")) == ([], [])
    assert [reason for reason, _ in world.said()].count(f"TrainingJob{word}") == 1


@pytest.mark.parametrize("policy", ["Any", "All", "Rank0", "None"])
@pytest.mark.parametrize("key", ["Preempted", "Failed"])
def test_07_an_annotation_ends_the_job_whatever_the_fail_policy(key: str, policy: str) -> None:
    asked: Body = {key: ""}
    world = two(spec={"failPolicy": policy}, failPolicy=policy)

    assert world.annotate(**asked)["phase"] == key


def test_08_a_delete_that_was_not_carried_out_is_asked_for_again() -> None:
    world = two()
    world.catch_up()
    world.exit("demo-trainer-0", 1)
    world.catch_up()
    world.step(dies_after=1)  # the status is stored; nothing was deleted
    assert len(world.pods()) == 2

    assert world.go()["phase"] == "Failed"
    assert world.names() == []


def test_08_a_pod_on_a_dead_node_does_not_keep_a_job_in_terminating() -> None:
    world = two(NODES)
    world.lose_node("trainer-1")
    world.end("trainer-0", code=1)
    assert world.status["phase"] == "Terminating"

    assert world.pass_by(200)["phase"] == "Failed"
    assert world.pods() == {}


def test_09_the_end_is_dated_also_where_pods_are_kept() -> None:
    world = two(spec={"cleanPodPolicy": "None"})
    world.wait(60)

    assert world.end("trainer-0", "trainer-1")["endTime"] == "2026-11-15T12:01:00Z"


def test_10_the_time_limit_starts_when_no_pod_waits_any_more() -> None:
    world = Driver(manifest(trainer=2, spec={"timeLimit": 100}))
    world.go()
    world.start_all("trainer-0")
    world.end("trainer-0")
    world.wait(500)
    assert world.start_all()["phase"] == "Running"
    assert world.look().wake == factories.later(600)

    assert world.pass_by(100)["phase"] == "Timeout"


def test_11_a_pod_that_ends_before_the_last_one_runs_does_not_hide_that_the_job_runs() -> None:
    world = Driver(manifest(trainer=2))
    world.go()
    world.start_all("trainer-0")
    world.end("trainer-0")
    world.start_all()
    world.end("trainer-1")

    assert world.phases == ["Pending", "Running", "Terminating", "Succeed"]


def test_12_a_surplus_pod_does_not_hold_a_restart_up() -> None:
    world = Driver(manifest(trainer=replicas(3, restartPolicy="OnFailure", restartScope="Pod"))).running()
    world.document["spec"]["replicaSpecs"]["trainer"]["replicas"] = 2
    world.exit("demo-trainer-1", 1)
    world.go(reaps=False)
    world.again()

    assert world.status["phase"] == "Running"
    assert [name.split("#")[0] for name in world.names()] == ["trainer-0", "trainer-1"]


def test_13_the_type_that_restarts_may_be_taken_away() -> None:
    one = replicas(1, restartPolicy="OnFailure", restartScope="Replica")
    world = Driver(manifest(a=one, b=one)).running()
    world.exit("demo-a-0", 1)
    world.go(reaps=False)
    assert world.status["RestartReplicaName"] == "a"
    del world.document["spec"]["replicaSpecs"]["a"]

    status = world.edited()

    assert (status["phase"], status["RestartReplicaName"], world.names()) == ("Running", "", ["b-0"])


@pytest.mark.parametrize("broken", [None, {}, {"template": None}, {"template": {"spec": {"containers": None}}}])
def test_13_a_replica_spec_of_nothing_is_told_and_breaks_nothing(broken: Any) -> None:
    document = manifest(trainer=1)
    document["spec"]["replicaSpecs"]["trainer"] = broken

    assert Driver(document).go()["phase"] == "Failed"


def test_13_a_pod_without_a_start_time_is_waited_for() -> None:
    world = Driver(manifest(trainer=1))
    world.go()
    world.stick("trainer-0")
    world.change("demo-trainer-0", start_time=None)

    assert world.go()["phase"] == "Creating"


def test_14_15_neither_annotations_nor_the_spec_are_ever_written() -> None:
    world = two(restartPolicy="OnFailure")
    before = msgspec.json.encode({key: world.document[key] for key in ("metadata", "spec")})
    world.end("trainer-0", code=1)
    world.again()
    world.end("trainer-0", "trainer-1")

    assert world.status["phase"] == "Succeed"
    assert msgspec.json.encode({key: world.document[key] for key in ("metadata", "spec")}) == before
    assert not [patch for plan in world.plans for patch in plan.patches]


def test_16_a_stale_operator_neither_makes_a_pod_twice_nor_counts_a_restart_twice() -> None:
    world = Driver(manifest(trainer=replicas(2, restartPolicy="OnFailure", restartScope="Pod")))
    for _ in range(3):
        world.step()
    world.go()
    world.start_all()
    world.exit("demo-trainer-1", 1)
    world.catch_up()
    world.step(dies_after=1)
    for _ in range(3):
        world.step()
    world.go()

    assert world.status["RestartCount"] == {"trainer": 1}
    assert [write for write in world.writes if write == "create Pod demo-trainer-0"] == ["create Pod demo-trainer-0"]


def test_17_which_of_several_failures_wins_does_not_depend_on_the_order_of_a_map() -> None:
    ends = []
    for names in (("a", "b"), ("b", "a")):
        types: Body = dict.fromkeys(names, 1)
        world = Driver(manifest(**types)).running()
        ends.append(last(world.end("a-0", "b-0", code=1)))

    why = "container aitj-main on node node-1 exited with reason Error exitcode 1"
    assert ends == [("Failed", f"pod demo-a-0 is failed, {why}; deleted pods")] * 2


def test_18_node_fail_is_as_final_as_the_others() -> None:
    world = two(NODES)
    world.lose_node("trainer-1")
    world.pass_by(61)
    status = world.pass_by(200)
    assert status["phase"] == "NodeFail"
    world.return_node("trainer-1")

    assert world.annotate(Failed="too late") == status
    assert world.pass_by(10**6) == status


def test_19_a_job_is_scaled_down_and_up_and_its_pods_are_told() -> None:
    world = Driver(manifest(trainer=replicas(4, minReplicas=2, maxReplicas=4))).running()
    world.scale("trainer", 2)
    world.again()

    assert world.names("Service") == ["trainer-0", "trainer-1"]
    assert world.env("trainer-0")["TRAINER_INSTANCES_NUM"] == "2"
    assert world.status["phase"] == "Running"
    assert "RestartCount" not in world.status
    assert ("Restarting", "trainer is scaled from 4 to 2 replicas") in told(world.status)
    assert world.said()[-1] == ("TrainingJobScaled", "trainer is scaled from 4 to 2 replicas")

    world.scale("trainer", 4)
    world.again()

    assert [world.env(f"trainer-{place}")["TRAINER_INSTANCES_NUM"] for place in range(4)] == ["4"] * 4
    assert world.status["phase"] == "Running"


def test_19_a_size_beyond_the_bounds_is_refused_and_would_not_be_followed() -> None:
    document = manifest(trainer=replicas(9, minReplicas=2, maxReplicas=4))
    mild = manifest(trainer=replicas(4, minReplicas=2, maxReplicas=4))

    assert load(AITRAININGJOB, document).errors
    elastic = load(AITRAININGJOB, mild).job.roles[0].elastic
    assert elastic is not None
    assert (elastic.least, elastic.most) == (2, 4)


def test_20_a_pod_that_is_refused_is_asked_for_again() -> None:
    world = Driver(manifest(trainer=1))
    owner = Owner("apps/v1", "ReplicaSet", "other", "other-uid", controller=True)
    other = factories.pod(name="demo-trainer-0", owners=(owner,), uid="foreign")
    world.truth["Pod", "demo-trainer-0"] = other
    world.step()
    assert "could not be created" in last(world.go())[1]
    world.vanish("demo-trainer-0")
    world.wait(31)

    assert last(world.go()) == ("Pending", "all pods are waiting for scheduling")
    assert world.names() == ["trainer-0"]


def test_21_columns_a_status_subresource_and_a_singular_name() -> None:
    spec = crd(AITRAININGJOB)["spec"]
    version = spec["versions"][0]

    assert spec["names"] == {
        "plural": "aitrainingjobs",
        "singular": "aitrainingjob",
        "kind": "AITrainingJob",
        "listKind": "AITrainingJobList",
        "shortNames": ["aitj"],
    }
    assert version["subresources"] == {"status": {}}
    assert [column["name"] for column in version["additionalPrinterColumns"]][:3] == ["Phase", "Restarts", "Age"]


def test_22_names_with_a_dash_have_variables_that_shells_can_read() -> None:
    types: Body = {"param-server": replicas(1, pod={"containers": [container(ports=ports(5))]})}
    world = Driver(manifest(**types))
    world.go()

    assert world.env("param-server-0")["PARAM_SERVER_HOSTS"] == "demo-param-server-0.lab:5"


def test_23_peers_resolve_while_they_start() -> None:
    world = two()

    assert world.body("Service", "trainer-0")["spec"]["publishNotReadyAddresses"] is True


def test_24_a_pod_on_the_hosts_network_resolves_services() -> None:
    world = two(pod={"hostNetwork": True})

    assert world.body("Pod", "trainer-0")["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_25_why_a_pod_is_not_scheduled_is_shown() -> None:
    world = Driver(manifest(trainer=1))
    world.go()

    assert last(world.unschedulable("trainer-0", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")) == (
        "Pending",
        "all pods are waiting for scheduling; pod demo-trainer-0: 0/2 nodes are available: 2 Insufficient "
        "nvidia.com/gpu.",
    )


def test_26_conditions_are_bounded_and_dated() -> None:
    world = two(restartPolicy="OnFailure")
    for _ in range(30):
        world.vanish("demo-trainer-1")
        world.go()
        world.start_all()
        world.wait(10)
    times = [one["lastTransitionTime"] for one in world.status["conditions"]]

    assert len(times) == 20
    assert times == sorted(times)
    assert times[-1] == factories.later(290).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_27_pods_are_known_by_the_uid_of_their_job() -> None:
    world = Driver(manifest(trainer=1))
    older = Owner("elasticdeeplearning.ai/v1", "AITrainingJob", "demo", "an-older-job", controller=True)
    world.truth["Pod", "demo-trainer-0"] = factories.pod(name="demo-trainer-0", owners=(older,), uid="foreign")
    world.restart_operator()
    for _ in range(3):
        world.step()  # the executor waits until the older job's pod is collected

    assert "demo-trainer-0" in world.pods()
    assert not [delete for plan in world.plans for delete in plan.deletes]


def test_28_only_apis_that_kubernetes_still_has() -> None:
    document = crd(AITRAININGJOB)
    world = two()

    assert document["apiVersion"] == "apiextensions.k8s.io/v1"
    assert {body["apiVersion"] for body in world.bodies.values()} == {"v1"}


def test_29_a_restarted_pod_comes_back_under_its_name_and_only_it_is_counted_anew() -> None:
    world = two(restartPolicy="OnFailure", restartScope="Pod")
    before = world.pods()["demo-trainer-0"].metadata.uid
    world.end("trainer-1", code=1)
    world.again()

    assert world.pods()["demo-trainer-0"].metadata.uid == before
    assert world.names() == ["trainer-0", "trainer-1#1"]
    assert world.env("trainer-1")["TRAININGJOB_SERVICE"] == "demo-trainer-1.lab"


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(manifest(), id="no replica specs"),
        pytest.param(manifest(trainer=replicas(pod={"containers": []})), id="no containers"),
        pytest.param(manifest(trainer=replicas(pod={"containers": [{"name": "aitj-a"}]})), id="no image"),
        pytest.param(manifest(trainer=replicas(restartScope="pods")), id="a bad word"),
        pytest.param(manifest(name="a" * 60, trainer=1), id="a long name"),
    ],
)
def test_30_what_cannot_run_is_refused(document: Body) -> None:
    assert load(AITRAININGJOB, document).errors


def test_a_flapping_job_writes_its_status_only_when_something_happens() -> None:
    world = two()
    before = len(world.plans)
    for _ in range(10):
        world.clock += timedelta(seconds=30)
        world.go()

    assert {plan.write for plan in world.plans[before:]} == {Write.NOT}
