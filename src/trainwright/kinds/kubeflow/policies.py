# SPDX-License-Identifier: Apache-2.0
"""The policies of the kinds of Kubeflow v1 in the internal model: restart policies, roles, run policy."""

from msgspec import UNSET

from trainwright.kinds.kubeflow.framework import Framework
from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.kubeflow.wire import KubeflowSpec, RunPolicy
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Deadline, Lifecycle, Restart, Role
from trainwright.model.meta import ObjectMeta

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


def roles(framework: Framework, spec: KubeflowSpec) -> tuple[Role, ...]:
    """The replica types; in each pod only the container that trains decides whether the replica succeeds."""
    follows = framework.awaits_leader and framework.types.leading(spec) != WORKER
    return tuple(
        Role(
            name,
            one.replicas,
            one.template,
            RESTARTS[framework.policy_of(spec, name)],
            main_containers=frozenset({framework.main.name}),
            service=True,
            stage=int(follows and name == WORKER),
            awaits_running=follows and name == WORKER,
            waits_in_pod=follows and name == WORKER,
        )
        for name, one in framework.types.specs(spec).items()
    )


def lifecycle(spec: KubeflowSpec, _meta: ObjectMeta) -> Lifecycle:
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
