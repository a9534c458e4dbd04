# SPDX-License-Identifier: Apache-2.0
"""`restartingExitCode`: a text such as `137,128`, a number, or a list of either. For policies and checks.

The original knew the text alone and took blanks for part of a code; a single code without quotes broke its client.

AITrainingJob's policies in the one model: end, restart, clean-up and EDL policies, annotations. For `translate`.
"""

from collections.abc import Callable, Mapping
from typing import Any
from typing import Any as Anything

from msgspec import UNSET

from trainwright.kinds.aitrainingjob.environment import counting
from trainwright.kinds.aitrainingjob.wire import AITrainingJobSpec, ReplicaSpec
from trainwright.kinds.scalars import MOST_REPLICAS, item
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
from trainwright.model.problem import Problem, shown
from trainwright.model.rule import NEVER, AllOf, AnyOf, Atom, Result, Rule, Which

EXIT_CODE_PATH = "spec.restartingExitCode"
_WANTED = "expected exit codes from 0 to 255, such as 137, [137, 128] or '137,128'"


def exit_codes(value: Any) -> tuple[int, ...]:
    """The codes that it lists, each once; what is none is left to `problems`."""
    return tuple(dict.fromkeys(code for _, one in _entries(value) if (code := _code(one)) is not None))


def exit_code_problems(value: Any) -> tuple[Problem, ...]:
    """What is no exit code."""
    wrong = [(path, one) for path, one in _entries(value) if _code(one) is None]
    return tuple(Problem(path, f"{_WANTED}, found {shown(one)}") for path, one in wrong)


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Each single code with its path; blanks and empty parts of a text mean nothing."""
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


#: A pod that Kubernetes calls Failed.
FAILED_POD = frozenset({CauseKind.EXIT, CauseKind.EVICTED, CauseKind.DISRUPTED, CauseKind.REJECTED})
NODE = frozenset({CauseKind.NODE_LOST})
_EXIT = frozenset({CauseKind.EXIT})
#: The causes that each policy answers, and whether only listed exit codes are meant.
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
#: As it is, and as the README calls it.
KEEPS = ("None", "CleanPodPolicyNone")
#: Annotations that end a job, in the order in which they are looked for.
ENDINGS = ("Preempted", "Failed", "NodeFail", "Timeout", "Succeed")
_BY_LOWER = {word.lower(): word for word in ENDINGS} | {"nodefailed": "NodeFail"}


def replicas(one: ReplicaSpec) -> int:
    """How many are wanted."""
    return max(1, one.min_replicas or 0) if one.replicas is UNSET else one.replicas


def success(spec: AITrainingJobSpec) -> Rule:
    """Complete policies on both levels."""
    rules = tuple(_of_type(name, one.complete_policy, Result.SUCCEEDED) for name, one in _deciding(spec))
    return _of_job(spec.complete_policy, rules)


def failure(spec: AITrainingJobSpec) -> Rule:
    """Fail policies on both levels."""
    rules = tuple(_of_type(name, one.fail_policy, Result.FAILED) for name, one in _deciding(spec))
    return _of_job(spec.fail_policy, rules)


def _deciding(spec: AITrainingJobSpec) -> list[tuple[str, ReplicaSpec]]:
    """The replica types that decide; one without replicas has nothing to say, and nobody waits for its word."""
    return [(name, one) for name, one in ordered(spec) if replicas(one)]


def ordered(spec: AITrainingJobSpec) -> list[tuple[str, ReplicaSpec]]:
    """The replica types by name: an API server hands maps back in that order, whatever the document had."""
    return sorted(spec.replica_specs.items())


def _of_type(name: str, policy: str, result: Result) -> Rule:
    return Atom(name, _WHICH[policy], result) if policy in _WHICH else NEVER


def _of_job(policy: str, rules: tuple[Rule, ...]) -> Rule:
    """Over the replica types; here even Rank0 never decides."""
    return _OF_JOB[policy](rules) if policy in _OF_JOB else NEVER


def restart(one: ReplicaSpec, listed: Anything) -> Restart:
    """The six policies; none of them restarts what has succeeded."""
    causes, by_code = _CAUSES[one.restart_policy]
    return Restart(
        causes,
        codes=tuple((code, code) for code in exit_codes(listed)) if by_code else None,
        limit=None if one.restart_limit is UNSET else one.restart_limit,
        scope=_SCOPES[one.restart_scope],
        shared=True,
        # Init containers and sidecars have no say: what ended without a code that counts is not on the list.
        retries_other_containers=not by_code,
    )


def elastic(one: ReplicaSpec) -> Elastic | None:
    """The bounds, where it has any; where only one is said, the other is as wide as it can be."""
    if one.edl_policy == "Never" or (one.edl_policy != "Auto" and one.min_replicas is one.max_replicas is UNSET):
        return None
    auto = one.edl_policy == "Auto"
    least = one.min_replicas if one.min_replicas is not UNSET else min(1, replicas(one))
    if auto and replicas(one):
        # Of nobody at all there would be no job any more.
        least = max(least, 1)
    # A role that sizes itself never grows beyond what was asked for.
    most = one.max_replicas if one.max_replicas is not UNSET else replicas(one) if auto else MOST_REPLICAS
    return Elastic(least, most, auto)


def role(name: str, one: ReplicaSpec, spec: AITrainingJobSpec) -> Role:
    """One replica type."""
    return Role(
        name,
        replicas(one),
        one.template,
        restart(one, spec.restarting_exit_code),
        elastic=elastic(one),
        # Everybody is told of everybody in the environment. Where a size may not be changed it is remembered all the
        # same: an edit may change it together with the policy.
        resize=RestartScope.ROLE,
        main_containers=frozenset(str(container["name"]) for container in counting(one.template)),
        recreates_pods=True,
        service=True,
    )


def ending(annotations: Mapping[str, str] | None) -> RequestedEnd | None:
    """The annotation that asks for an end, in whatever case it is written; its value is the message."""
    if not annotations:
        return None
    asked = {_BY_LOWER[key.lower()]: key for key in sorted(annotations) if key.lower() in _BY_LOWER}
    word = next((word for word in ENDINGS if word in asked), None)
    if word is None:
        return None
    key = asked[word]
    return RequestedEnd(word, annotations[key], succeeded=word == "Succeed", by=f"annotation {key}")


def lifecycle(spec: AITrainingJobSpec, annotations: Mapping[str, str] | None) -> Lifecycle:
    """What holds for the job as a whole."""
    level = CleanPods.NONE if spec.clean_pod_policy in KEEPS else CleanPods.ALL
    return Lifecycle(
        suspended=spec.suspend,
        # What timed out, lost its node or was ended from outside is removed in any case.
        clean=CleanUp(level, level, CleanPods.ALL, lost=CleanPods.ALL),
        deadline=None if spec.time_limit is UNSET else Deadline(spec.time_limit, Since.RUNNING),
        ending=ending(annotations),
    )
