# SPDX-License-Identifier: Apache-2.0
"""Describes a job: its rules and policies in words, the replicas that decide, and whether it needs an etcd server."""

from collections.abc import Iterable

from trainwright.model.cause import CauseKind
from trainwright.model.job import CleanPods, Job, Lifecycle, Restart, RestartScope, Role, Since
from trainwright.model.ledger import Outcome, Reason
from trainwright.model.rule import AllOf, AnyOf, Atom, Result, Rule, Which
from trainwright.model.units import format_indexes

#: The indexes of replicas by role.
Ranks = dict[str, tuple[int, ...]]

#: The text of a rule shows this many alternatives, then the number of the rest. A rest of one is shown.
_MAX_ALTERNATIVES = 6
_NEVER = "never"
#: The highest exit code of a process.
_MAX_EXIT_CODE = 255
_CLEAN = {
    CleanPods.NONE: "keeps all pods",
    CleanPods.UNFINISHED: "removes unfinished pods, keeps finished ones for their logs",
    CleanPods.ALL: "removes all pods",
}


def replicas(who: Ranks) -> str:
    """The replicas in words, for example `worker 0` or `master 2 and worker 0-1`."""
    return " and ".join(f"{role} {format_indexes(ranks)}" for role, ranks in who.items())


def deciders(rule: Rule, job: Job) -> Ranks | None:
    """The replicas that fulfil the first possible alternative of the rule; None if no alternative is possible."""
    match rule:
        case Atom(role, which, _):
            size = next((one.replicas for one in job.roles if one.name == role), 0)
            ranks = which if isinstance(which, tuple) else tuple(range(size if which is Which.EVERY else min(size, 1)))
            return {role: ranks} if ranks and max(ranks) < size else None
        case AnyOf(rules, _):
            return next((found for part in rules if (found := deciders(part, job)) is not None), None)
        case AllOf(rules, _):
            parts = [deciders(part, job) for part in rules]
            known = [part for part in parts if part is not None]
            return _merged(known) if known and len(known) == len(parts) else None


def _merged(parts: Iterable[Ranks]) -> Ranks:
    whole: Ranks = {}
    for part in parts:
        for role, ranks in part.items():
            whole[role] = tuple(sorted({*whole.get(role, ()), *ranks}))
    return whole


def because(job: Job, outcome: Outcome) -> str:
    """A text that says why the job has this outcome: the rule of the user, or a rule of its kind in words."""
    if outcome.rule:
        return f"rule {outcome.rule}"
    if outcome.reason is Reason.RULE:
        return when(job.success if outcome.result is Result.SUCCEEDED else job.failure)
    return outcome.message


def when(rule: Rule) -> str:
    """A rule in words, for example `worker 0 succeeds`. Alternatives are joined with `or`."""
    alternatives = list(rule.rules) if isinstance(rule, AnyOf) else [rule]
    texts = [_alternative(part) for part in alternatives if part != AllOf(()) and part != AnyOf(())]
    rest = len(texts) - _MAX_ALTERNATIVES
    if rest > 1:
        texts = [*texts[:_MAX_ALTERNATIVES], f"{rest} other rules are fulfilled"]
    return ", or ".join(texts) or "never"


def _alternative(rule: Rule) -> str:
    if isinstance(rule, AnyOf):
        return f"({when(rule)})"
    atoms = list(rule.rules) if isinstance(rule, AllOf) else [rule]
    if not all(isinstance(atom, Atom) for atom in atoms):
        return " and ".join(_alternative(atom) for atom in atoms)
    named = [atom for atom in atoms if isinstance(atom, Atom)]
    single = len(named) == 1 and (not isinstance(named[0].which, tuple) or len(named[0].which) == 1)
    verb = "succeed" if named[0].result is Result.SUCCEEDED else "fail"
    return f"{' and '.join(_atom(atom) for atom in named)} {verb}{'s' * single}"


def _atom(atom: Atom) -> str:
    if isinstance(atom.which, tuple):
        return f"{atom.role} {format_indexes(atom.which)}"
    return f"{'every' if atom.which is Which.EVERY else 'any'} {atom.role}"


def rules(job: Job) -> dict[str, str]:
    """All rules that decide about the job, in words. The keys are the titles to print."""
    life = job.lifecycle
    clean = life.clean
    levels = (("success", clean.succeeded), ("failure", clean.failed), ("a deadline", clean.ended))
    each = "; ".join(f"after {end}: {_CLEAN[level]}" for end, level in levels)
    found = {
        "succeeds": _succeeds(job),
        "fails": _fails(job),
        **{f"restarts {role.name}": restarts(role) for role in job.roles if role.replicas},
        "clean-up": _CLEAN[clean.succeeded] if len({level for _, level in levels}) == 1 else each,
    }
    if life.backoff_limit is not None:
        found["limit"] = _limit(life)
    if life.deadline is not None:
        since = "it was submitted" if life.deadline.since is Since.STARTED else "every pod ran"
        found["deadline"] = f"fails {life.deadline.seconds:g} s after {since}"
    if life.start_deadline is not None:
        found["start"] = f"fails if not every pod runs within {life.start_deadline:g} s"
    if life.ttl is not None:
        found["removed"] = f"{life.ttl:g} s after its end"
    return found


def _succeeds(job: Job) -> str:
    rule = _reachable(job.success, job)
    if rule is not None:
        return f"when {when(rule)}"
    ends = ["it fails"] if _fails(job) != _NEVER else []
    ends += ["its deadline passes"] if job.lifecycle.deadline is not None else []
    return f"{_NEVER}: no replica can fulfil its success rule, so it runs until {_or([*ends, 'you end it'])}"


def _fails(job: Job) -> str:
    rule = _reachable(job.failure, job)
    ends = [when(rule)] if rule is not None else []
    ends += ["success is impossible"] if _allows_failures(job.failure) and _can_become_false(job.success, job) else []
    return f"when {', or '.join(ends)}" if ends else _NEVER


def _or(parts: list[str]) -> str:
    return " or ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _reachable(rule: Rule, job: Job) -> Rule | None:
    """The rule without the alternatives that no replicas can fulfil; None if no alternative is left."""
    if deciders(rule, job) is None:
        return None
    if isinstance(rule, AnyOf):
        parts = [part for one in rule.rules if (part := _reachable(one, job)) is not None]
        return AnyOf(tuple(parts), rule.text)
    return rule


def _can_become_false(rule: Rule, job: Job) -> bool:
    """Whether replicas can end in such a way that the rule can never be fulfilled afterwards."""
    match rule:
        case Atom(role, _, _):
            return any(one.replicas for one in job.roles if one.name == role)
        case AllOf(parts, _):
            return any(_can_become_false(part, job) for part in parts)
        case AnyOf(parts, _):
            return bool(parts) and all(_can_become_false(part, job) for part in parts)


def _limit(life: Lifecycle) -> str:
    limit = life.backoff_limit
    if life.restarts_allowed == 0:
        return f"fails with the first restart of any role (backoffLimit {limit})"
    return (
        f"fails {'with' if life.fails_at_limit else 'beyond'} {limit} restart{'s' * (limit != 1)} of all roles together"
    )


def _allows_failures(rule: Rule) -> bool:
    """Whether a replica can fail and not fulfil this failure rule. Its failure can still make success impossible."""
    match rule:
        case Atom(_, which, _):
            return which is not Which.SOME
        case AllOf(parts, _) | AnyOf(parts, _):
            return not parts or any(_allows_failures(part) for part in parts)


def restarts(role: Role) -> str:
    """In which cases replicas of a role are restarted, in words."""
    rule = role.restart
    counted, free = rule.causes - rule.free, rule.causes & rule.free
    if not counted or rule.limit == 0:
        never = "never (limit 0)" if counted else "never"
        return never + (", except after preemption or a lost node" if free else "")
    end = "success or failure" if CauseKind.COMPLETED in counted else _failure(rule)
    extent = "of each replica" if rule.per_replica else "in all"
    limit = "without limit" if rule.limit is None else f"at most {rule.limit} {extent}"
    scope = {
        RestartScope.POD: "",
        RestartScope.ROLE: ", all its replicas together",
        RestartScope.JOB: ", with the whole job",
    }[rule.scope]
    return f"after {end}, {limit}{scope}" + ("; preemption and lost nodes do not count" if free else "")


def _failure(rule: Restart) -> str:
    if CauseKind.EXIT not in rule.causes:
        return "the loss of its node" if rule.causes == {CauseKind.NODE_LOST} else "a disruption"
    if rule.codes is None:
        return "a failure"
    return "exit code " + ", ".join(_codes(first, last) for first, last in rule.codes)


def _codes(first: int, last: int) -> str:
    if last > _MAX_EXIT_CODE:
        return f"{first} and above"
    return f"{first}" if first == last else f"{first}-{last}"


ETCD_OPTION = "--etcd-server HOST:PORT"
#: If a template sets one of these variables, the job uses the etcd server at the address in this variable.
_ETCD_VARIABLES = frozenset({"PADDLE_ELASTIC_SERVER", "PADDLE_MASTER"})


def needs_etcd(job: Job, variables: Iterable[str] = ()) -> bool:
    """Whether a role needs an etcd server, but neither its template nor one of these variables sets its address."""
    if _ETCD_VARIABLES & set(variables):
        return False
    return any(role.size_key and not _names_etcd(role.template) for role in job.roles)


def _names_etcd(template: object) -> bool:
    spec = template.get("spec") if isinstance(template, dict) else None
    containers = (spec.get("containers") if isinstance(spec, dict) else None) or ()
    return any(one.get("name") in _ETCD_VARIABLES for container in containers for one in container.get("env") or ())
