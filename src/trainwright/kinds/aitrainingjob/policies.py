# SPDX-License-Identifier: Apache-2.0
"""AITrainingJob's policies in the internal model: end, restart, clean-up and EDL policies, annotations."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from trainwright.kinds.aitrainingjob.environment import main_containers
from trainwright.kinds.aitrainingjob.wire import AITrainingJobSpec, ReplicaSpec
from trainwright.kinds.scalars import MAX_REPLICAS, item
from trainwright.model.cause import CauseKind
from trainwright.model.job import (
    CleanPods,
    CleanUp,
    Deadline,
    Elastic,
    Lifecycle,
    RequestedEnd,
    Restart,
    RestartScope,
    Role,
    Since,
)
from trainwright.model.meta import ObjectMeta
from trainwright.model.problem import Problem, shown
from trainwright.model.rule import NEVER, AllOf, AnyOf, Atom, Result, Rule, Which

#: The causes for which Kubernetes reports a pod as Failed.
FAILED_POD = frozenset({CauseKind.EXIT, CauseKind.EVICTED, CauseKind.DISRUPTED, CauseKind.REJECTED})
NODE = frozenset({CauseKind.NODE_LOST})
_EXIT = frozenset({CauseKind.EXIT})
#: By policy: the causes after which replicas are restarted, and whether only the listed exit codes count.
_CAUSES: Mapping[str, tuple[frozenset[CauseKind], bool]] = {
    "Never": (frozenset(), False),
    "OnFailure": (FAILED_POD, False),
    "ExitCode": (_EXIT, True),
    "OnNodeFail": (NODE, False),
    "OnNodeFailWithExitCode": (NODE | _EXIT, True),
    "Always": (FAILED_POD | NODE, False),
}
_SCOPES = {"All": RestartScope.JOB, "Replica": RestartScope.ROLE, "Pod": RestartScope.POD}
_WHICH: Mapping[str, Which | tuple[int, ...]] = {"Any": Which.SOME, "Rank0": (0,), "All": Which.EVERY}
_OF_JOB: Mapping[str, Callable[[tuple[Rule, ...]], Rule]] = {"Any": AnyOf, "All": AllOf}
#: Two spellings of the policy that keeps pods; the second is only in the README of the original controller.
KEEPS = ("None", "CleanPodPolicyNone")
#: Annotations that end a job; if a job has several, the first of these decides.
ENDINGS = ("Preempted", "Failed", "NodeFail", "Timeout", "Succeed")
_BY_LOWER = {word.lower(): word for word in ENDINGS} | {"nodefailed": "NodeFail"}


def replicas(one: ReplicaSpec) -> int:
    """The number of replicas that the user wants."""
    return max(1, one.min_replicas or 0) if one.replicas is UNSET else one.replicas


def success(spec: AITrainingJobSpec) -> Rule:
    """When the job succeeds: by `completePolicy` of the replica types and of the job."""
    policies = {name: one.complete_policy for name, one in ordered(spec) if replicas(one)}
    return success_rule(spec.complete_policy, policies)


def failure(spec: AITrainingJobSpec) -> Rule:
    """When the job fails: by `failPolicy` of the replica types and of the job."""
    policies = {name: one.fail_policy for name, one in ordered(spec) if replicas(one)}
    return failure_rule(spec.fail_policy, policies)


def success_rule(policy: str, of_types: Mapping[str, str]) -> Rule:
    """The success rule of a job: its policy, and the policies of its types."""
    return _rule(policy, of_types, Result.SUCCEEDED)


def failure_rule(policy: str, of_types: Mapping[str, str]) -> Rule:
    """The failure rule of a job: its policy, and the policies of its types."""
    return _rule(policy, of_types, Result.FAILED)


def _rule(policy: str, of_types: Mapping[str, str], result: Result) -> Rule:
    """Combine the types' policies by the job's policy. `None` never decides; `Rank0` works only as a type's policy."""
    rules = tuple(Atom(name, _WHICH[one], result) if one in _WHICH else NEVER for name, one in of_types.items())
    return _OF_JOB[policy](rules) if policy in _OF_JOB else NEVER


def ordered(spec: AITrainingJobSpec) -> list[tuple[str, ReplicaSpec]]:
    """The replica types sorted by name, because an API server does not keep the order of the document."""
    return sorted(spec.replica_specs.items())


def restart(one: ReplicaSpec, codes: Any) -> Restart:
    """The restart policy of a replica type; no policy restarts replicas that have succeeded."""
    causes, by_code = _CAUSES[one.restart_policy]
    return Restart(
        causes,
        codes=tuple((code, code) for code in exit_codes(codes)) if by_code else None,
        limit=None if one.restart_limit is UNSET else one.restart_limit,
        scope=_SCOPES[one.restart_scope],
        shared=True,
        # If exit codes decide, only main containers count: a failed init container or sidecar causes no restart.
        retries_other_containers=not by_code,
    )


def elastic(one: ReplicaSpec) -> Elastic | None:
    """The bounds of a replica type, if it has bounds; a bound that is not given does not limit."""
    if one.edl_policy == "Never" or (one.edl_policy != "Auto" and one.min_replicas is one.max_replicas is UNSET):
        return None
    auto = one.edl_policy == "Auto"
    least = one.min_replicas if one.min_replicas is not UNSET else min(1, replicas(one))
    if auto and replicas(one):
        # Never shrink a role to zero.
        least = max(least, 1)
    # An automatically sized role never grows above the number that the user wants.
    most = one.max_replicas if one.max_replicas is not UNSET else replicas(one) if auto else MAX_REPLICAS
    return Elastic(least, most, auto)


def roles(spec: AITrainingJobSpec, _meta: ObjectMeta) -> tuple[Role, ...]:
    """The replica types, sorted by name."""
    return tuple(_role(name, one, spec) for name, one in ordered(spec))


def _role(name: str, one: ReplicaSpec, spec: AITrainingJobSpec) -> Role:
    return Role(
        name,
        replicas(one),
        one.template,
        restart(one, spec.restarting_exit_code),
        elastic=elastic(one),
        # The environment of each replica lists all replicas, so a new size restarts them. This also applies with
        # edlPolicy Never: an edit may change the size together with the policy.
        resize=RestartScope.ROLE,
        main_containers=frozenset(str(container["name"]) for container in main_containers(one.template)),
        recreates_pods=True,
        service=True,
    )


def ending(annotations: Mapping[str, str] | None) -> RequestedEnd | None:
    """The end that an annotation asks for. Upper and lower case are equal; the annotation's value is the message."""
    if not annotations:
        return None
    asked = {_BY_LOWER[key.lower()]: key for key in sorted(annotations) if key.lower() in _BY_LOWER}
    phase = next((phase for phase in ENDINGS if phase in asked), None)
    if phase is None:
        return None
    key = asked[phase]
    return RequestedEnd(phase, annotations[key], succeeded=phase == "Succeed", by=f"annotation {key}")


def lifecycle(spec: AITrainingJobSpec, meta: ObjectMeta) -> Lifecycle:
    """Suspension, clean-up, time limit, and the end that an annotation asks for."""
    level = CleanPods.NONE if spec.clean_pod_policy in KEEPS else CleanPods.ALL
    return Lifecycle(
        suspended=spec.suspend,
        # After a timeout, a lost node or an end by annotation, pods are always removed.
        clean=CleanUp(level, level, CleanPods.ALL, lost=CleanPods.ALL),
        deadline=None if spec.time_limit is UNSET else Deadline(spec.time_limit, Since.RUNNING),
        ending=ending(meta.annotations),
    )


# -- restartingExitCode ----------------------------------------------------------------------------------------------

EXIT_CODE_PATH = "spec.restartingExitCode"
_WANTED = "expected exit codes from 0 to 255, such as 137, [137, 128] or '137,128'"


def exit_codes(value: Any) -> tuple[int, ...]:
    """The codes in `restartingExitCode`, each once. `value`: a number, a text such as `137,128`, or a list of these."""
    return tuple(dict.fromkeys(code for _, one in _entries(value) if (code := _code(one)) is not None))


def exit_code_problems(value: Any) -> tuple[Problem, ...]:
    """The entries of `restartingExitCode` that are no exit codes."""
    wrong = [(path, one) for path, one in _entries(value) if _code(one) is None]
    return tuple(Problem(path, f"{_WANTED}, found {shown(one)}") for path, one in wrong)


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Each single code with its path; blanks and empty parts of a text are ignored."""
    match value:
        case None:
            return []
        case list() | tuple():
            return [pair for place, one in enumerate(value) for pair in _single(one, item(EXIT_CODE_PATH, place))]
        case _:
            return _single(value, EXIT_CODE_PATH)


def _single(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, str):
        return [(path, word.strip()) for word in value.split(",") if word.strip()]
    return [(path, value)]


def _code(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 5:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255 else None
