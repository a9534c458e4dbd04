# SPDX-License-Identifier: Apache-2.0
"""The policies that only a TFJob has: worker 0 may decide, dynamic workers may fail, `v1alpha2` restarts always."""

from trainwright.kinds.kubeflow.policies import FAILED_POD, POD_POLICIES, RESTARTS, lifecycle
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.tfjob.wire import REPLICA_TYPES, TFJobSpec, defaults_version
from trainwright.model.rule import NEVER, AnyOf, Atom, Result, Rule, Which

__all__ = ["FAILED_POD", "POD_POLICIES", "RESTARTS", "adjust_policy", "failure", "lifecycle", "success"]

ALL_WORKERS = "AllWorkers"


def success(spec: TFJobSpec) -> Rule:
    """Every chief must succeed. Without chief: worker 0, or all workers for AllWorkers. Without workers: no success."""
    leading = REPLICA_TYPES.leading(spec)
    replica_spec = REPLICA_TYPES.specs(spec).get(leading)
    if replica_spec is None or not replica_spec.replicas:
        return NEVER
    every = leading != WORKER or spec.success_policy == ALL_WORKERS
    return Atom(leading, Which.EVERY if every else (0,), Result.SUCCEEDED)


def failure(spec: TFJobSpec) -> Rule:
    """One failed replica of any type is enough; dynamic workers do not count."""
    named = [name for name in REPLICA_TYPES.specs(spec) if not (spec.enable_dynamic_worker and name == WORKER)]
    return AnyOf(tuple(Atom(name, Which.SOME, Result.FAILED) for name in named))


def adjust_policy(spec: TFJobSpec, name: str, policy: str) -> str:
    """The restart policy that applies to a replica type.

    With Always, the leading replicas restart after success too, so the job never ends. In `v1` the user asked for
    this, as in the original controller. In `v1alpha2` Always is the default, so the leading type gets OnFailure there.
    """
    endless = policy == "Always" and defaults_version(spec) == "v1alpha2" and name == REPLICA_TYPES.leading(spec)
    return "OnFailure" if endless else policy
