# SPDX-License-Identifier: Apache-2.0
"""Random jobs for the random worlds: of the internal model, and jobs of Kubeflow v1 and PaddleJobs by their kinds."""

from typing import Any

from hypothesis import strategies as st

from trainwright.kinds.base import Kind, load
from trainwright.kinds.jaxjob import JAXJOB
from trainwright.kinds.kubeflow_paddlejob import KUBEFLOW_PADDLEJOB
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.pytorchjob import PYTORCHJOB
from trainwright.kinds.tfjob import TFJOB
from trainwright.kinds.xgboostjob import XGBOOSTJOB
from trainwright.model.cause import CauseKind
from trainwright.model.job import (
    CleanPods,
    CleanUp,
    Deadline,
    Elastic,
    Job,
    Lifecycle,
    Restart,
    RestartScope,
    Role,
    Since,
)
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.testing import factories
from trainwright.testing.factories import role

CAUSES = [
    CauseKind.EXIT,
    CauseKind.COMPLETED,
    CauseKind.DISRUPTED,
    CauseKind.NODE_LOST,
    CauseKind.EVICTED,
    CauseKind.REJECTED,
    CauseKind.DELETED,
]
FREE = frozenset({CauseKind.DISRUPTED, CauseKind.NODE_LOST, CauseKind.DELETED})


def mostly(usual: Any, other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The dull case four times out of five: a world in which everything is odd ends before anything happens."""
    return st.integers(0, 4).flatmap(lambda dice: other if dice == 4 else st.just(usual))


restarts = st.builds(
    Restart,
    causes=mostly(frozenset(CAUSES) - {CauseKind.COMPLETED}, st.frozensets(st.sampled_from(CAUSES))),
    codes=mostly(None, st.just(((128, 255),))),
    free=st.sampled_from([frozenset(), FREE]),
    # A budget there is: a replica that may be restarted without end in a world that always kills it never rests.
    limit=st.integers(0, 3),
    per_replica=st.booleans(),
    scope=st.sampled_from(RestartScope),
)
cleanups = st.builds(CleanUp, *[st.sampled_from(CleanPods)] * 3)
lifecycles = st.builds(
    Lifecycle,
    suspended=mostly(False, st.just(True)),
    clean=cleanups,
    backoff_limit=mostly(None, st.integers(0, 4)),
    counts_in_place=st.booleans(),
    deadline=mostly(None, st.builds(Deadline, st.integers(1, 300), st.sampled_from(Since))),
    start_deadline=mostly(None, st.integers(1, 300)),
    ttl=mostly(None, st.integers(0, 300)),
    ending=st.none(),
)


sizes = st.builds(Elastic, st.integers(1, 2), st.integers(2, 4), st.booleans())


def roles() -> st.SearchStrategy[tuple[Role, ...]]:
    worker = st.builds(
        lambda n, restart, service, more: role("worker", n, restart=restart, service=service, **more),
        st.integers(1, 4),
        restarts,
        st.booleans(),
        st.fixed_dictionaries(
            {
                "elastic": st.none() | sizes,
                "resize": st.sampled_from([None, RestartScope.ROLE, RestartScope.JOB]),
                "recreates_pods": st.booleans(),
                "gpus": st.integers(0, 1),
            }
        ),
    )
    server = st.builds(
        lambda n, restart, awaits: role("ps", n, restart=restart, stage=1, awaits_running=awaits),
        st.integers(0, 2),
        restarts,
        st.booleans(),
    )
    return st.tuples(worker) | st.tuples(worker, server)


POLICIES = ["Never", "OnFailure", "Always", "ExitCode"]


def replica_specs(container: str, least: int, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Replica specs of Kubeflow v1."""
    template = {"spec": {"containers": [{"name": container, "image": container}]}}
    return st.fixed_dictionaries(
        {
            "replicas": st.integers(least, most),
            "restartPolicy": st.sampled_from(POLICIES),
            "template": st.just(template),
        }
    )


def run_policies() -> st.SearchStrategy[dict[str, Any]]:
    """Run policies of Kubeflow v1."""
    return st.fixed_dictionaries(
        # A budget there is, as above.
        {"backoffLimit": st.integers(0, 5)},
        optional={
            "cleanPodPolicy": st.sampled_from(["", "None", "Running", "All"]),
            "activeDeadlineSeconds": st.integers(1, 300),
            "ttlSecondsAfterFinished": st.integers(0, 300),
            "suspend": mostly(False, st.just(True)),
        },
    )


def tfjobs() -> st.SearchStrategy[Job]:
    """TFJobs, through their real kind."""
    replica, worker = replica_specs("tensorflow", 0, 3), replica_specs("tensorflow", 1, 4)
    spec = st.fixed_dictionaries(
        {
            "tfReplicaSpecs": st.fixed_dictionaries(
                {"Worker": worker}, optional={"PS": replica, "Evaluator": replica, "Chief": replica}
            ),
            "runPolicy": run_policies(),
        },
        optional={"successPolicy": st.sampled_from(["", "AllWorkers"]), "enableDynamicWorker": st.booleans()},
    )
    return st.builds(_tfjob, spec, st.sampled_from(["v1", "v1alpha2"]))


def _tfjob(spec: dict[str, Any], version: str) -> Job:
    return _kubeflow(TFJOB, spec, version)


def jaxjobs() -> st.SearchStrategy[Job]:
    """JAXJobs, through their real kind."""
    specs = st.fixed_dictionaries({"Worker": replica_specs("jax", 1, 4)})
    spec = st.fixed_dictionaries({"jaxReplicaSpecs": specs, "runPolicy": run_policies()})
    return spec.map(lambda spec: _kubeflow(JAXJOB, spec))


def xgboostjobs() -> st.SearchStrategy[Job]:
    """XGBoostJobs, through their real kind."""
    master, worker = replica_specs("xgboost", 1, 1), replica_specs("xgboost", 0, 3)
    specs = st.fixed_dictionaries({"Master": master}, optional={"Worker": worker})
    spec = st.fixed_dictionaries({"xgbReplicaSpecs": specs, "runPolicy": run_policies()})
    return spec.map(lambda spec: _kubeflow(XGBOOSTJOB, spec))


def pytorchjobs() -> st.SearchStrategy[Job]:
    """PyTorchJobs, through their real kind: with and without a master, and elastic."""
    master, worker = replica_specs("pytorch", 1, 1), replica_specs("pytorch", 1, 3)
    led = st.fixed_dictionaries({"Master": master}, optional={"Worker": worker})
    plain = st.fixed_dictionaries({"pytorchReplicaSpecs": led, "runPolicy": run_policies()})
    workers = st.fixed_dictionaries({"Worker": worker}, optional={"Master": master})
    metrics = st.just([{"type": "Resource", "resource": {"name": "cpu"}}])
    policy = st.fixed_dictionaries(
        {"minReplicas": st.just(1), "maxReplicas": st.just(3)}, optional={"metrics": metrics}
    )
    elastic = st.fixed_dictionaries(
        {"pytorchReplicaSpecs": workers, "runPolicy": run_policies()}, optional={"elasticPolicy": policy}
    )
    return (plain | elastic).map(lambda spec: _kubeflow(PYTORCHJOB, spec))


def kubeflow_paddlejobs() -> st.SearchStrategy[Job]:
    """PaddleJobs of Kubeflow, through their real kind: with and without parameter servers."""
    master, worker = replica_specs("paddle", 0, 2), replica_specs("paddle", 1, 3)
    specs = st.fixed_dictionaries({"Worker": worker}, optional={"Master": master})
    spec = st.fixed_dictionaries({"paddleReplicaSpecs": specs, "runPolicy": run_policies()})
    return spec.map(lambda spec: _kubeflow(KUBEFLOW_PADDLEJOB, spec))


#: Jobs of the other kinds of Kubeflow v1.
kubeflow = st.deferred(lambda: jaxjobs() | xgboostjobs() | pytorchjobs() | kubeflow_paddlejobs())


def _kubeflow(kind: Kind, spec: dict[str, Any], version: str = "v1") -> Job:
    meta = {"name": "job", "namespace": "default", "uid": factories.UID}
    document = {"apiVersion": f"{kind.group}/{version}", "kind": kind.name, "metadata": meta, "spec": spec}
    loaded = load(kind, document)
    assert loaded.errors == ()
    return loaded.job


def paddlejobs() -> st.SearchStrategy[Job]:
    """PaddleJobs, through their real kind."""
    template = st.just({"spec": {"containers": [{"name": "paddle", "image": "paddle"}]}})
    policy = st.fixed_dictionaries(
        # A budget there is, as above.
        {"backoffLimit": st.integers(0, 5)},
        optional={
            "activeDeadlineSeconds": st.integers(1, 300),
            "ttlSecondsAfterFinished": st.integers(0, 300),
            "suspend": mostly(False, st.just(True)),
            "successPolicy": st.sampled_from(["All", "Workers"]),
        },
    )
    few = st.fixed_dictionaries({"replicas": st.integers(0, 2), "template": template})
    spec = st.fixed_dictionaries(
        {
            "worker": st.fixed_dictionaries({"replicas": st.integers(1, 3), "template": template}),
            "intranet": st.sampled_from(["PodIP", "PodIP", "Service", "Host"]),
            "runPolicy": policy,
        },
        optional={
            "ps": few,
            "heter": few,
            "elastic": mostly(1, st.just(1)),
            "cleanPodPolicy": st.sampled_from(["", "Always", "Never", "OnFailure", "OnCompletion"]),
        },
    )
    return st.builds(_paddlejob, spec)


def _paddlejob(spec: dict[str, Any]) -> Job:
    meta = {"name": "job", "namespace": "default", "uid": factories.UID}
    head = {"apiVersion": PADDLEJOB.api_version, "kind": "PaddleJob", "metadata": meta}
    loaded = load(PADDLEJOB, {**head, "spec": spec})
    assert loaded.errors == ()
    return loaded.job


def rules(result: Result) -> st.SearchStrategy[Rule]:
    atoms: st.SearchStrategy[Rule] = st.builds(
        Atom,
        st.sampled_from(["worker", "ps"]),
        st.sampled_from(Which) | st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
        st.just(result),
    )
    return st.recursive(
        atoms,
        lambda inner: (
            st.builds(AllOf, st.lists(inner, max_size=2).map(tuple))
            | st.builds(AnyOf, st.lists(inner, max_size=2).map(tuple))
        ),
        max_leaves=4,
    )
