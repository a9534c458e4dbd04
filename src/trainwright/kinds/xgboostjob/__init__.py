# SPDX-License-Identifier: Apache-2.0
"""XGBoostJob, `kubeflow.org/v1`, as a `Kind`: one master, whose success decides the job, and workers."""

from collections.abc import Iterator

from trainwright.kinds.kubeflow.framework import Framework, leader_texts
from trainwright.kinds.kubeflow.kind import make_kind
from trainwright.kinds.kubeflow.replicas import MASTER, one_master
from trainwright.kinds.scalars import check_variable
from trainwright.kinds.xgboostjob import environment
from trainwright.kinds.xgboostjob.wire import MAIN, REPLICA_TYPES, XGBoostJob
from trainwright.model.problem import Problem

_SPECS = "spec.xgbReplicaSpecs"


def check(job: XGBoostJob) -> Iterator[Problem]:
    """Check that there is a master, and the size of the list of workers."""
    specs = job.spec.replica_specs
    if MASTER not in specs and all(key in REPLICA_TYPES.names for key in specs):
        yield Problem(f"{_SPECS}.{MASTER}", "must be present: the master decides whether the job succeeds")
    size = sum(one.replicas * (len(job.metadata.name) + len("-worker-0000,")) for one in specs.values())
    yield from check_variable("WORKER_ADDRS", size, _SPECS)


XGBOOST = Framework(
    name="XGBoostJob",
    field="xgbReplicaSpecs",
    types=REPLICA_TYPES,
    main=MAIN,
    texts=leader_texts("XGBoostJob"),
    wire=XGBoostJob,
    variables=environment.variables,
    endpoints=environment.endpoints,
    variable_names=("MASTER_PORT", "MASTER_ADDR", "WORLD_SIZE", "RANK", "WORKER_PORT", "WORKER_ADDRS"),
    runs_before_end=True,
    check_replicas=one_master,
    check=check,
    cel_rules=(
        ("'Master' in self.xgbReplicaSpecs", "xgbReplicaSpecs must have a Master"),
        (
            "!('Master' in self.xgbReplicaSpecs) || self.xgbReplicaSpecs['Master'].replicas == 1",
            "xgbReplicaSpecs must have exactly one Master",
        ),
    ),
)
XGBOOSTJOB = make_kind(XGBOOST)
