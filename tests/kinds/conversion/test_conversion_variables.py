# SPDX-License-Identifier: Apache-2.0
"""How the variables of a kind become variables of a GenericJob, and what happens to the user's own texts."""

from typing import Any

import pytest
from conversion_driver import Body, environments, generic, pods, to

Env = dict[str, str]


def kubeflow(kind: str, roles: dict[str, int], container: Body | None = None, **spec: Any) -> Body:
    field, name = {
        "JAXJob": ("jaxReplicaSpecs", "jax"),
        "XGBoostJob": ("xgbReplicaSpecs", "xgboost"),
        "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
        "TFJob": ("tfReplicaSpecs", "tensorflow"),
    }[kind]
    pod = {"spec": {"containers": [{"name": name, "image": "busybox", **(container or {})}]}}
    specs = {role: {"replicas": count, "restartPolicy": "OnFailure", "template": pod} for role, count in roles.items()}
    body = {field: specs, **spec}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "demo"}, "spec": body}


def written(job: Body, role: int = 0) -> Env:
    """The variables in the template of the result."""
    container = job["spec"]["replicaSpecs"][role]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def scaled(job: Body, role: int, replicas: int) -> Body:
    specs = [dict(one) for one in job["spec"]["replicaSpecs"]]
    specs[role]["replicas"] = replicas
    return job | {"spec": job["spec"] | {"replicaSpecs": specs}}


def test_rank_size_and_host_are_variables_of_the_generic_job() -> None:
    env = written(generic(kubeflow("JAXJob", {"Worker": 3})))

    assert env == {
        "PYTHONUNBUFFERED": "1",
        "COORDINATOR_PORT": "6666",
        "COORDINATOR_ADDRESS": "$(service.worker[0].host)",
        "NUM_PROCESSES": "$(replicas[worker])",
        "PROCESS_ID": "$(rank)",
    }


def test_scaling_keeps_working() -> None:
    result = scaled(generic(kubeflow("JAXJob", {"Worker": 3})), 0, 5)
    source = kubeflow("JAXJob", {"Worker": 5})

    assert [environments(pod) for pod in pods(result).values()] == [environments(pod) for pod in pods(source).values()]
    assert [note for note in to("genericjob", source).notes if "fits this number" in note.message] == []


@pytest.mark.parametrize("workers", [1, 2, 12])
@pytest.mark.parametrize("kind", ["XGBoostJob", "PyTorchJob"])
def test_a_rank_after_the_master_is_selected_from_a_list(kind: str, workers: int) -> None:
    result = generic(kubeflow(kind, {"Master": 1, "Worker": workers}))

    ranks = {name: environments(pod)[-1]["RANK"] for name, pod in pods(result).items()}
    assert ranks == {"demo-master-0": "0", **{f"demo-worker-{at}": str(at + 1) for at in range(workers)}}
    if workers > 1:
        assert written(result, 1)["RANK"] == "$(RANK_OF_REPLICA_$(rank))"


def test_a_size_that_is_a_sum_is_a_number_and_a_note_says_so() -> None:
    found = to("genericjob", kubeflow("XGBoostJob", {"Master": 1, "Worker": 2}))

    assert found.document is not None
    assert written(found.document, 1)["WORLD_SIZE"] == "3"
    (note,) = [note.message for note in found.notes if "fits this number" in note.message]
    assert note.startswith("the value of RANK, WORKER_ADDRS, WORLD_SIZE in the result")


def test_a_number_that_is_a_size_only_by_chance_stays() -> None:
    """The port, or a user's own number, is equal to the number of workers."""
    container = {"env": [{"name": "LAYERS", "value": "3"}], "ports": [{"name": "jaxjob-port", "containerPort": 3}]}
    env = written(generic(kubeflow("JAXJob", {"Worker": 3}, container)))

    assert (env["LAYERS"], env["COORDINATOR_PORT"], env["NUM_PROCESSES"]) == ("3", "3", "$(replicas[worker])")


def test_the_cluster_of_a_tfjob_has_hosts_of_both_roles() -> None:
    env = written(generic(kubeflow("TFJob", {"PS": 1, "Worker": 2})), 1)

    assert env["TF_CONFIG"] == (
        '{"cluster":{"ps":["$(service.ps[0].host):2222"],'
        '"worker":["$(service.worker[0].host):2222","$(service.worker[1].host):2222"]},'
        '"task":{"type":"worker","index":$(rank)},"environment":"cloud"}'
    )


def test_a_variable_that_the_kind_overrides_is_written_once() -> None:
    container = {"env": [{"name": "PROCESS_ID", "value": "mine"}, {"name": "OTHER", "value": "kept"}]}
    result = generic(kubeflow("JAXJob", {"Worker": 2}, container))

    names = [one["name"] for one in result["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["env"]]
    assert sorted(names) == sorted(set(names))
    assert written(result)["PROCESS_ID"] == "$(rank)"
    assert written(result)["OTHER"] == "kept"


@pytest.mark.parametrize("text", ["echo $(rank)", "$(type) -a sh", "$$(rank)", "$(replicas[worker])", "$(date) $HOME"])
def test_texts_of_the_user_reach_the_program_unchanged(text: str) -> None:
    source = kubeflow("JAXJob", {"Worker": 2}, {"command": ["sh", "-c", text], "env": [{"name": "A", "value": text}]})
    found = to("genericjob", source)

    assert found.losses == ()
    before, after = (
        [environments(pod)[0]["A"] for pod in pods(one).values()] for one in (source, found.document or {})
    )
    assert before == after


def test_a_text_that_the_kubelet_fills_in_and_a_generic_job_cannot_is_a_loss() -> None:
    """The container has a variable called `rank`, which the escaped text would no longer read."""
    container = {"command": ["sh", "-c", "echo $(rank)"], "env": [{"name": "rank", "value": "7"}]}
    losses = to("genericjob", kubeflow("JAXJob", {"Worker": 2}, container)).losses

    assert [problem.message for problem in losses] == [
        "the command of container jax differs: the new kind fills in other variables"
    ]


def test_another_kind_gets_values_that_all_replicas_share() -> None:
    """Nothing fills in variables in a TFJob: what differs by replica is lost, the rest is not."""
    found = to("tfjob", kubeflow("JAXJob", {"Worker": 2}))

    assert "programs get PROCESS_ID; the result does not set it" in [problem.message for problem in found.losses]
    assert found.document is not None
    (container,) = found.document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "tensorflow"
    assert {"name": "COORDINATOR_ADDRESS", "value": "demo-worker-0"} in container["env"]


def test_labels_for_services_of_the_old_kind_are_dropped_and_the_users_kept() -> None:
    source = kubeflow("JAXJob", {"Worker": 2})
    pod = source["spec"]["jaxReplicaSpecs"]["Worker"]["template"]
    pod["metadata"] = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    (spec,) = generic(source)["spec"]["replicaSpecs"]

    assert spec["template"]["metadata"] == {"labels": {"team": "a"}, "annotations": {"note": "b"}}
