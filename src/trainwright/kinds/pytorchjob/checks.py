# SPDX-License-Identifier: Apache-2.0
"""The checks that only a PyTorchJob needs, and the same as CEL rules."""

from collections.abc import Iterator

from msgspec import UNSET

from trainwright.kinds.cel import CelRule
from trainwright.kinds.kubeflow.replicas import WORKER, one_master
from trainwright.kinds.kubeflow.wire import ReplicaSpec
from trainwright.kinds.pytorchjob.wire import PyTorchJob, TorchElasticPolicy
from trainwright.model.problem import Problem, nearest

_POLICY = "spec.elasticPolicy"
_SPECS = "spec.pytorchReplicaSpecs"
_WORDS = ("auto", "cpu", "gpu")
#: What the original's webhook says about the old place of this field.
_DEPRECATED = f"{_POLICY}.nProcPerNode is deprecated, use spec.nprocPerNode instead"

CEL_RULES: tuple[CelRule, ...] = (
    (
        "[self.pytorchReplicaSpecs].all(specs, (!('Master' in specs) || specs['Master'].replicas == 1)"
        " && (!('Worker' in specs) || specs['Worker'].replicas >= 1)"
        " && (!has(self.elasticPolicy) || 'Worker' in specs))",
        "pytorchReplicaSpecs may have one Master and must have at least 1 replica of Worker if it has Worker;"
        " elasticPolicy needs Worker",
    ),
    (
        "!has(self.elasticPolicy) || [self.elasticPolicy].all(policy,"
        " (!has(policy.minReplicas) || !has(policy.maxReplicas) || policy.minReplicas <= policy.maxReplicas)"
        " && !(has(policy.nProcPerNode) && has(self.nprocPerNode)))",
        "minReplicas of elasticPolicy must not be more than maxReplicas;"
        " use either nprocPerNode or elasticPolicy.nProcPerNode",
    ),
)


def check_replicas(name: str, one: ReplicaSpec, path: str) -> Iterator[Problem]:
    """Check that there is one master, and not a type of worker without workers."""
    yield from one_master(name, one, path)
    if name == WORKER and not one.replicas:
        yield Problem(f"{path}.replicas", "must be at least 1, found 0; leave Worker out if the job has none")


def check(job: PyTorchJob) -> Iterator[Problem]:
    """Check the elastic policy and the number of processes."""
    policy, processes = job.spec.elastic_policy, job.spec.nproc_per_node
    if policy is not None:
        yield from _elastic(policy, job.spec.replica_specs.get(WORKER))
        if policy.n_proc_per_node is not UNSET:
            yield Problem(f"{_POLICY}.nProcPerNode", _DEPRECATED, warning=True)
            if processes is not UNSET:
                yield Problem(f"{_POLICY}.nProcPerNode", "spec.nprocPerNode is set too; leave this one out")
    if isinstance(processes, str) and processes not in _WORDS and not processes.isdecimal():
        message = f"{processes[:60]!r} is not known to every torchrun; expected auto, cpu, gpu or a number"
        yield Problem("spec.nprocPerNode", message, nearest(processes, _WORDS), warning=True)


def _elastic(policy: TorchElasticPolicy, workers: ReplicaSpec | None) -> Iterator[Problem]:
    if workers is None:
        yield Problem(f"{_SPECS}.{WORKER}", "missing: elasticPolicy is about the workers")
        return
    least, most = policy.min_replicas, policy.max_replicas
    if least is UNSET or most is UNSET:
        return  # 0 workers, which is an error of its own
    if least > most:
        yield Problem(f"{_POLICY}.minReplicas", f"{least} is more than maxReplicas, which is {most}")
    elif not least <= workers.replicas <= most:
        message = f"{workers.replicas} is outside minReplicas and maxReplicas of elasticPolicy ({least} to {most})"
        yield Problem(f"{_SPECS}.{WORKER}.replicas", message, warning=True)
