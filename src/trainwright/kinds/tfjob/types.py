# SPDX-License-Identifier: Apache-2.0
"""The types of replica, and how people spell them. Used wherever a key of `tfReplicaSpecs` is read."""

from collections.abc import Iterable

from trainwright.kinds.tfjob.wire import ReplicaSpec, TFJobSpec

CHIEFS = ("Chief", "Master")
WORKER, PS = "Worker", "PS"
#: In the order in which everything is walked.
TYPES = ("Chief", "Evaluator", "Master", "PS", "Worker")
#: The container that trains, and the port at which it is reached.
CONTAINER, PORT_NAME, PORT = "tensorflow", "tfjob-port", 2222
_BY_LOWER = {name.lower(): name for name in TYPES} | {"eval": "Evaluator"}


def canonical(key: str) -> str | None:
    """The type that a key means: in any case, and `Eval` as the design had it; None for anything else."""
    return _BY_LOWER.get(key.lower())


def typed(spec: TFJobSpec) -> dict[str, ReplicaSpec]:
    """The replica specs by type, in order; of a job that was found to be right."""
    found = {canonical(key): one for key, one in spec.tf_replica_specs.items()}
    return {name: found[name] for name in TYPES if name in found}


def chief_of(sizes: Iterable[tuple[str, int]]) -> str | None:
    """The type that leads, if there is one; one without replicas is none."""
    return next((name for name, replicas in sizes if name in CHIEFS and replicas), None)


def leader(spec: TFJobSpec) -> str:
    """The type whose success is the job's: the chief's, or the workers'."""
    return chief_of((name, one.replicas) for name, one in typed(spec).items()) or WORKER
