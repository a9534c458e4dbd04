# SPDX-License-Identifier: Apache-2.0
"""TFJob's policies in the internal model: success and failure rules, restart policies, run policy."""

from msgspec import UNSET

from trainwright.kinds.tfjob.wire import (
    CONTAINER,
    WORKER,
    RunPolicy,
    TFJobSpec,
    defaults_version,
    leading_type,
    replica_specs,
)
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Deadline, Lifecycle, Restart, Role
from trainwright.model.meta import ObjectMeta
from trainwright.model.rule import NEVER, AnyOf, Atom, Result, Rule, Which

ALL_WORKERS = "AllWorkers"
#: The causes for which Kubernetes reports a pod as Failed, and a lost node.
FAILED_POD = frozenset(
    {CauseKind.EXIT, CauseKind.EVICTED, CauseKind.DISRUPTED, CauseKind.REJECTED, CauseKind.NODE_LOST}
)
#: Exit codes after which a replica is restarted. Some systems have codes above 255.
RETRYABLE = ((128, 2**31 - 1),)
#: By policy: when the controller restarts a replica. If the kubelet restarts a container, the pod does not fail.
RESTARTS = {
    "Never": Restart(),
    "OnFailure": Restart(FAILED_POD),
    "Always": Restart(FAILED_POD | {CauseKind.COMPLETED}),
    "ExitCode": Restart(FAILED_POD, codes=RETRYABLE),
}
#: A hundred years, in seconds. Longer deadlines are reduced to this value, because `datetime` has a limit.
_MAX_DEADLINE_SECONDS = 100 * 366 * 24 * 3600
#: The restartPolicy of the pod for each policy: what the kubelet restarts.
POD_POLICIES = {"Never": "Never", "OnFailure": "OnFailure", "Always": "Always", "ExitCode": "Never"}


def success(spec: TFJobSpec) -> Rule:
    """Every chief must succeed. Without chief: worker 0, or all workers for AllWorkers. Without workers: no success."""
    leading = leading_type(spec)
    replica_spec = replica_specs(spec).get(leading)
    if replica_spec is None or not replica_spec.replicas:
        return NEVER
    every = leading != WORKER or spec.success_policy == ALL_WORKERS
    return Atom(leading, Which.EVERY if every else (0,), Result.SUCCEEDED)


def failure(spec: TFJobSpec) -> Rule:
    """One failed replica of any type is enough; dynamic workers do not count."""
    named = [name for name in replica_specs(spec) if not (spec.enable_dynamic_worker and name == WORKER)]
    return AnyOf(tuple(Atom(name, Which.SOME, Result.FAILED) for name in named))


def restart_policy(spec: TFJobSpec, name: str) -> str:
    """The restart policy that applies to a replica type.

    With Always, the leading replicas restart after success too, so the job never ends. In `v1` the user asked for
    this, as in the original controller. In `v1alpha2` Always is the default, so the leading type gets OnFailure there.
    """
    given = str(replica_specs(spec)[name].restart_policy)
    endless = given == "Always" and defaults_version(spec) == "v1alpha2" and name == leading_type(spec)
    return "OnFailure" if endless else given


def roles(spec: TFJobSpec, _meta: ObjectMeta) -> tuple[Role, ...]:
    """The replica types; in each pod only the container that trains decides whether the replica succeeds."""
    return tuple(
        Role(
            name,
            one.replicas,
            one.template,
            RESTARTS[restart_policy(spec, name)],
            main_containers=frozenset({CONTAINER}),
            service=True,
        )
        for name, one in replica_specs(spec).items()
    )


def lifecycle(spec: TFJobSpec, _meta: ObjectMeta) -> Lifecycle:
    """The run policy."""
    policy = spec.run_policy or RunPolicy()
    limit, deadline, ttl = policy.backoff_limit, policy.active_deadline_seconds, policy.ttl_seconds_after_finished
    # Every other value removes all pods; the clean-up is the same after success and failure.
    level = {"None": CleanPods.NONE, "Running": CleanPods.UNFINISHED}.get(str(policy.clean_pod_policy), CleanPods.ALL)
    return Lifecycle(
        suspended=policy.suspend,
        clean=CleanUp(level, level, level),
        backoff_limit=None if limit is UNSET else limit,
        fails_at_limit=True,
        counts_in_place=True,
        deadline=None if deadline is UNSET else Deadline(min(deadline, _MAX_DEADLINE_SECONDS)),
        ttl=None if ttl is UNSET else ttl,
    )
