# SPDX-License-Identifier: Apache-2.0
"""TFJob's policies in the one model: success and failure rules, restart policies, run policy. For `translate`."""

from msgspec import UNSET

from trainwright.kinds.tfjob.wire import CONTAINER, WORKER, RunPolicy, TFJobSpec, form, leader, typed
from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, CleanUp, Deadline, Lifecycle, Restart, Role
from trainwright.model.rule import NEVER, AnyOf, Atom, Result, Rule, Which

ALL_WORKERS = "AllWorkers"
#: A pod that Kubernetes calls Failed, for whatever reason, or whose node is gone.
FAILED_POD = frozenset(
    {CauseKind.EXIT, CauseKind.EVICTED, CauseKind.DISRUPTED, CauseKind.REJECTED, CauseKind.NODE_LOST}
)
#: From here on an exit code says: try again. Some systems have codes of more than a byte.
RETRYABLE = ((128, 2**31 - 1),)
#: By the controller: what the kubelet restarts in place never shows as a failed pod.
RESTARTS = {
    "Never": Restart(),
    "OnFailure": Restart(FAILED_POD),
    "Always": Restart(FAILED_POD | {CauseKind.COMPLETED}),
    "ExitCode": Restart(FAILED_POD, codes=RETRYABLE),
}
#: The longest deadline that a calendar can hold; longer ones are the same to everybody.
_AGES = 100 * 366 * 24 * 3600
#: What the kubelet does by itself.
POD_POLICIES = {"Never": "Never", "OnFailure": "OnFailure", "Always": "Always", "ExitCode": "Never"}


def success(spec: TFJobSpec) -> Rule:
    """The chief's replicas; without a chief worker 0, or all workers; without workers nothing."""
    decides = leader(spec)
    one = typed(spec).get(decides)
    if one is None or not one.replicas:
        return NEVER
    every = decides != WORKER or spec.success_policy == ALL_WORKERS
    return Atom(decides, Which.EVERY if every else (0,), Result.SUCCEEDED)


def failure(spec: TFJobSpec) -> Rule:
    """Any replica of any type; with dynamic workers those do not count."""
    named = [name for name in typed(spec) if not (spec.enable_dynamic_worker and name == WORKER)]
    return AnyOf(tuple(Atom(name, Which.SOME, Result.FAILED) for name in named))


def restarts(spec: TFJobSpec, name: str) -> str:
    """The restart policy that a type goes by.

    Always would run those anew who have done the job, so it would never end. Whoever writes that gets it, as in the
    original; but `v1alpha2` has it from everybody who says nothing, and says what success is all the same.
    """
    given = str(typed(spec)[name].restart_policy)
    unasked = given == "Always" and form(spec) == "v1alpha2" and name == leader(spec)
    return "OnFailure" if unasked else given


def role(spec: TFJobSpec, name: str) -> Role:
    """One type; the container that trains decides, whatever runs beside it."""
    one = typed(spec)[name]
    return Role(
        name,
        one.replicas,
        one.template,
        RESTARTS[restarts(spec, name)],
        main_containers=frozenset({CONTAINER}),
        service=True,
    )


def lifecycle(policy: RunPolicy) -> Lifecycle:
    """The run policy of a job whose defaults are filled in."""
    limit, deadline, ttl = policy.backoff_limit, policy.active_deadline_seconds, policy.ttl_seconds_after_finished
    # Anything but these two removes all; the same after every end.
    level = {"None": CleanPods.NONE, "Running": CleanPods.UNFINISHED}.get(str(policy.clean_pod_policy), CleanPods.ALL)
    return Lifecycle(
        suspended=policy.suspend,
        clean=CleanUp(level, level, level),
        backoff_limit=None if limit is UNSET else limit,
        # Three restarts of three are too many.
        fails_at_limit=True,
        counts_in_place=True,
        deadline=None if deadline is UNSET else Deadline(min(deadline, _AGES)),
        ttl=None if ttl is UNSET else ttl,
    )
