# SPDX-License-Identifier: Apache-2.0
"""Checks that compare fields of a GenericJob, the same checks as CEL rules, and the patches of `suspend` and `scale`.

`decode` checks the shape and `template` the pod templates. With the CEL rules, an API server refuses an invalid job
without a webhook. A test compares the results of the rules with the results of `check`. The rules use only CEL that
every server since 1.29 has. The server multiplies the limits in `wire` to estimate the cost of a rule, and refuses a
CRD if a rule costs more than 10 million. Only the rule for ranks comes near this cost.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from trainwright.kinds.cel import CelRule
from trainwright.kinds.genericjob.environment import Reference, scan, unknown
from trainwright.kinds.genericjob.policies import RESTART_SCOPE, SCOPES
from trainwright.kinds.genericjob.wire import FinishRule, GenericJob, GenericJobSpec, ReplicaSpec, ResumeSpec
from trainwright.kinds.scalars import LABEL, check_replica_names, check_total, under, unknown_role, unusable_count
from trainwright.kinds.template import entries, pod_spec
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest

#: At most this many unknown references and variable names are compared, so that a huge template is checked quickly.
_MAX_NAMES_COMPARED = 32


def check(job: GenericJob) -> tuple[Problem, ...]:
    """All problems, in document order."""
    spec = job.spec
    return (
        *_name(job),
        *_restart_scope(job),
        *_rules("spec.successRules", spec.success_rules, spec),
        *_rules("spec.failureRules", spec.failure_rules, spec),
        *_service(spec),
        *_run_mode(spec),
        *_replica_specs(job),
    )


def _restart_scope(job: GenericJob) -> Iterator[Problem]:
    given = (job.metadata.annotations or {}).get(RESTART_SCOPE)
    if given is not None and given not in SCOPES:
        message = f"{given[:60]!r} is not known; expected {' or '.join(SCOPES)}"
        yield Problem(under("metadata.annotations", RESTART_SCOPE), message, nearest(given, SCOPES))


def check_edit(stored: GenericJob, edited: GenericJob) -> tuple[Problem, ...]:
    """A problem for each changed field that must stay the same after creation; the CRD refuses the same changes."""
    if _resume_specs(stored.spec) == _resume_specs(edited.spec):
        return ()
    return (Problem("spec.runMode.pause.resumeSpecs", "cannot be changed after the job was created"),)


def _resume_specs(spec: GenericJobSpec) -> tuple[ResumeSpec, ...]:
    pause = spec.run_mode.pause if spec.run_mode is not None else None
    return pause.resume_specs if pause is not None else ()


def _name(job: GenericJob) -> Iterator[Problem]:
    name, path = job.metadata.name, "metadata.name"
    if not name:
        yield Problem(path, "a job needs a name")
    elif not LABEL.fullmatch(name):
        yield Problem(path, f"{name!r} becomes part of object names: use lower-case letters, digits and dashes")
    elif job.spec.service is not None and name[0].isdigit():
        yield Problem(path, f"{name!r} starts with a digit, which the names of services may not")


def _replica_specs(job: GenericJob) -> Iterator[Problem]:
    specs = job.spec.replica_specs
    yield from _unique("spec.replicaSpecs", [one.type for one in specs], "replica type")
    total = sum(one.replicas for one in specs)
    if not total:
        yield Problem("spec.replicaSpecs", "every type has 0 replicas; a job needs at least one")
    yield from check_total(total, "spec.replicaSpecs")
    for position, one in enumerate(specs):
        path = f"spec.replicaSpecs[{position}]"
        yield from check_replica_names(job.metadata.name, one.type, one.replicas, f"{path}.type", " or the type")
        yield from _restart(one, path)
        yield from _bad_references(_texts(one.template, f"{path}.template"), job.spec)
        yield from _misspelt_references(one.template, f"{path}.template")


def _restart(one: ReplicaSpec, path: str) -> Iterator[Problem]:
    if one.restart_policy.policy == "Always" and not one.restart_policy.limit:
        message = "policy Always with limit 0 never restarts anything: give the number of restarts"
        yield Problem(f"{path}.restartPolicy.limit", message, warning=True)
    given = pod_spec(one.template).get("restartPolicy")
    if given not in (None, "Never"):
        message = f"{given!r} is ignored: the controller restarts replicas, by restartPolicy of the replica"
        yield Problem(f"{path}.template.spec.restartPolicy", message, warning=True)


def _unique(path: str, names: list[str], what: str) -> Iterator[Problem]:
    for name, times in Counter(names).items():
        if times > 1:
            yield Problem(path, f"{what} {name!r} is given {times} times; each may be given once")


def _rules(path: str, rules: tuple[FinishRule, ...], spec: GenericJobSpec) -> Iterator[Problem]:
    sizes = {one.type: one.replicas for one in spec.replica_specs}
    for position, rule in enumerate(rules):
        for name, ranks in rule.items():
            if name not in sizes:
                yield unknown_role(f"{path}[{position}]", name, sizes)
            elif any(sizes.values()):  # another message reports a job without replicas
                for rank in (one for one in ranks if not 0 <= int(one) < sizes[name]):
                    message = f"there is no rank {rank}: {name} has {_replicas(sizes[name])}, counted from 0"
                    yield Problem(f"{path}[{position}].{name}", message)


def _service(spec: GenericJobSpec) -> Iterator[Problem]:
    ports = spec.service.ports if spec.service is not None else ()
    yield from _unique("spec.service.ports", [port.name for port in ports if port.name], "port name")
    numbers = [f"{port.port}/{port.protocol or 'TCP'}" for port in ports]
    yield from _unique("spec.service.ports", numbers, "port")
    if len(ports) > 1:
        for position, port in enumerate(ports):
            if not port.name:
                yield Problem(f"spec.service.ports[{position}].name", "every port needs a name when there are several")


def _run_mode(spec: GenericJobSpec) -> Iterator[Problem]:
    mode, known = spec.run_mode, [one.type for one in spec.replica_specs]
    if mode is None:
        return
    debug = [one.type for one in mode.debug.replica_specs] if mode.debug is not None else []
    resume = [one.type for one in mode.pause.resume_specs] if mode.pause is not None else []
    for path, names in (("spec.runMode.debug.replicaSpecs", debug), ("spec.runMode.pause.resumeSpecs", resume)):
        yield from _unique(path, names, "replica type")
        yield from (
            unknown_role(f"{path}[{position}].type", name, known)
            for position, name in enumerate(names)
            if name not in known
        )
    if mode.debug is not None and mode.pause is not None and mode.debug.enabled and mode.pause.enabled:
        yield Problem("spec.runMode", "both pause and debug are enabled; the job stays paused", warning=True)
    yield from _bad_references(_mode_texts(spec), spec)


def _mode_texts(spec: GenericJobSpec) -> Iterator[tuple[str, str]]:
    """The commands and arguments of the run modes, which replace those of the template."""
    mode = spec.run_mode
    debug = enumerate(mode.debug.replica_specs if mode is not None and mode.debug is not None else ())
    resume = enumerate(mode.pause.resume_specs if mode is not None and mode.pause is not None else ())
    lists = [(f"spec.runMode.debug.replicaSpecs[{i}].command", one.command) for i, one in debug]
    for i, one in resume:
        path = f"spec.runMode.pause.resumeSpecs[{i}]"
        lists += [(f"{path}.command", one.command), (f"{path}.args", one.args)]
    return ((f"{path}[{index}]", text) for path, texts in lists for index, text in enumerate(texts))


def _bad_references(texts: Iterable[tuple[str, str]], spec: GenericJobSpec) -> Iterator[Problem]:
    """Problems of variables: malformed, or with a type, rank, port or service that the job does not have."""
    for where, text in texts:
        for ref in scan(text):
            if (problem := _reference(where, ref, spec)) is not None:
                yield problem


def _texts(body: Body, path: str) -> Iterator[tuple[str, str]]:
    """Every text in which variables are filled in. The template may have any shape."""
    for place, container in _containers(body, path):
        yield from _container_texts(container, place)


def _containers(body: Body, path: str) -> Iterator[tuple[str, Body]]:
    """Every container of a template, with its path."""
    for group in ("initContainers", "containers"):
        yield from entries(pod_spec(body), group, f"{path}.spec")


def _misspelt_references(body: Body, path: str) -> Iterator[Problem]:
    """References without a value that look like misspellings."""
    for where, (name, known, rest) in islice(_unknown_references(body, path), _MAX_NAMES_COMPARED):
        if near := nearest(name, known[:_MAX_NAMES_COMPARED]):
            message = f"$({name}{rest}) is neither a variable of this job nor of the container, and is left as it is"
            yield Problem(where, message, f"$({near}{rest})", warning=True)


def _unknown_references(body: Body, path: str) -> Iterator[tuple[str, tuple[str, tuple[str, ...], str]]]:
    """References without a value. Containers with `envFrom` are skipped: `envFrom` can add variables of any name."""
    for place, container in _containers(body, path):
        if container.get("envFrom"):
            continue
        names = dict.fromkeys(str(entry.get("name")) for _, entry in entries(container, "env", place))
        for where, text in _container_texts(container, place):
            yield from ((where, found) for found in unknown(text, names))


def _container_texts(container: Body, path: str) -> Iterator[tuple[str, str]]:
    for key in ("command", "args"):
        texts = container.get(key)
        for position, text in enumerate(texts if isinstance(texts, list) else ()):
            if isinstance(text, str):
                yield f"{path}.{key}[{position}]", text
    for place, entry in entries(container, "env", path):
        if isinstance(entry.get("value"), str):
            yield f"{place}.value", entry["value"]


def _replicas(count: int) -> str:
    return f"{count} replica{'s' * (count != 1)}"


def _reference(path: str, ref: Reference, spec: GenericJobSpec) -> Problem | None:
    sizes = {one.type: one.replicas for one in spec.replica_specs}
    if ref.asks in ("host", "port") and spec.service is None:
        return Problem(path, f"{ref.text} needs spec.service, which is not set: no replica is exposed")
    if ref.asks in ("host", "count") and ref.name not in sizes:
        return unknown_role(path, ref.name, sizes)
    if ref.asks == "host" and ref.rank >= sizes[ref.name] and any(sizes.values()):
        return Problem(path, f"{ref.text}: {ref.name} has {_replicas(sizes[ref.name])}, counted from 0")
    if ref.asks == "port" and spec.service is not None:
        names = [port.name for port in spec.service.ports]
        if ref.name not in names:
            return Problem(path, f"{ref.text}: spec.service has no port of that name", nearest(ref.name, names))
    if ref.asks == "malformed":
        forms = "$(service.TYPE[RANK].host), $(service.port[NAME]) or $(replicas[TYPE])"
        nested = " and cannot be nested" if ref.text.count("$(") > 1 else ""
        return Problem(path, f"{ref.text} is left as it is; variables are written {forms}{nested}", warning=True)
    return None


# -- the same checks as CEL ------------------------------------------------------------------------------------------

_DEBUG = "runMode.debug.replicaSpecs"
_RESUME = "runMode.pause.resumeSpecs"
_PORTS = "service.ports"


def _given(path: str, root: str = "self") -> str:
    """CEL: every step of a dotted path is present. The rule tests each step, because CEL fails at a missing step."""
    steps = path.split(".")
    return " && ".join(f"has({root}.{'.'.join(steps[: end + 1])})" for end in range(len(steps)))


def _every(path: str, name: str, demand: str) -> str:
    """CEL: every element of a list meets the demand; a missing list has no elements."""
    return f"!({_given(path)}) || self.{path}.all({name}, {demand})"


def _only(path: str, same: str) -> str:
    """CEL: each element `e` of the list occurs once. `same` is the CEL expression for "`o` is the same as `e`"."""
    return _every(path, "e", f"self.{path}.exists_one(o, {same})")


def _known(path: str) -> CelRule:
    rule = _every(path, "e", "self.replicaSpecs.exists(s, s.type == e.type)")
    return rule, f"{path} may only name types that replicaSpecs has"


def _once(path: str) -> CelRule:
    return _only(path, "o.type == e.type"), f"{path} may have each type once"


def _types(path: str) -> CelRule:
    rule = _every(path, "r", "r.all(t, self.replicaSpecs.exists(s, s.type == t))")
    return rule, f"{path} may only name types that replicaSpecs has"


def _ranks(path: str) -> CelRule:
    """CEL: ranks are below the number of replicas of their type; the schema refuses negative ranks.

    `[count].all(n, …)` computes `n` once, outside the loop over the ranks. This lowers the estimated cost. An unknown
    type counts as 100000 replicas: it may have any rank here, because another rule refuses the type.
    """
    count = "(self.replicaSpecs.map(s, s.type == t, s.replicas) + [100000])[0]"
    rule = _every(path, "r", f"r.all(t, [{count}].all(n, r[t].all(i, int(i) < n)))")
    return rule, f"{path} may only name ranks that their type has, counted from 0"


def _constant(path: str) -> CelRule:
    """CEL on the whole spec: if an edit adds or removes the field, a server would skip a rule on the field itself."""
    now, before = (f"({_given(path, root)} ? {root}.{path} : [])" for root in ("self", "oldSelf"))
    return f"{now} == {before}", f"{path} cannot be changed after creation"


def _protocol(port: str) -> str:
    return f"(has({port}.protocol) ? {port}.protocol : 'TCP')"


#: (rule, message), in the order in which a server reports them.
CEL_RULES: tuple[CelRule, ...] = (
    _once("replicaSpecs"),
    ("self.replicaSpecs.exists(s, s.replicas > 0)", "replicaSpecs must have at least one replica in all"),
    _types("successRules"),
    _ranks("successRules"),
    _types("failureRules"),
    _ranks("failureRules"),
    _once(_DEBUG),
    _known(_DEBUG),
    _once(_RESUME),
    _known(_RESUME),
    _constant(_RESUME),
    (
        _every(_PORTS, "p", f"size(self.{_PORTS}) == 1 || (has(p.name) && p.name != '')"),
        f"{_PORTS} need names when there is more than one",
    ),
    (
        _every(_PORTS, "e", f"!has(e.name) || self.{_PORTS}.exists_one(o, has(o.name) && o.name == e.name)"),
        f"{_PORTS} may have each name once",
    ),
    (
        _only(_PORTS, f"o.port == e.port && {_protocol('o')} == {_protocol('e')}"),
        f"{_PORTS} may have each port and protocol once",
    ),
)


# -- edits -----------------------------------------------------------------------------------------------------------


def suspend(document: Body, on: bool) -> Body:
    """The merge patch that pauses or resumes a stored job; it removes the old spelling of `enabled`."""
    mode = document["spec"].get("runMode") or {}
    old = {"enable": None} if "enable" in (mode.get("pause") or {}) else {}
    return {"spec": {"runMode": {"pause": {"enabled": on, **old}}}}


def scale(document: Body, role: str, replicas: int) -> Body | Problem:
    """The merge patch that sets the replicas of a type; it contains the whole list, as merge patches must."""
    specs = document["spec"]["replicaSpecs"]
    names = [one["type"] for one in specs]
    if role not in names:
        return unknown_role("spec.replicaSpecs", role, names)
    problem = unusable_count(f"spec.replicaSpecs[{names.index(role)}].replicas", replicas)
    changed = [one | {"replicas": replicas} if one["type"] == role else one for one in specs]
    return problem or {"spec": {"replicaSpecs": changed}}
