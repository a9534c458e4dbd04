# SPDX-License-Identifier: Apache-2.0
"""What `checks` demands of `spec`, as CEL, so that an API server refuses it too where our webhook is not installed.

`crd.manifests` writes the rules into the CRD. They keep to plain CEL, which every server since 1.29 has; a test demands
the verdict of `checks`. The server multiplies the limits of `wire` to estimate what a rule may cost and refuses a CRD
with a rule above 10 million; only the ranks come near.
"""

Rule = tuple[str, str]

_DEBUG = "runMode.debug.replicaSpecs"
_RESUME = "runMode.pause.resumeSpecs"
_PORTS = "service.ports"


def _given(path: str, root: str = "self") -> str:
    """That every step of a dotted path is there: CEL cannot step over what is missing."""
    steps = path.split(".")
    return " && ".join(f"has({root}.{'.'.join(steps[: end + 1])})" for end in range(len(steps)))


def _every(path: str, name: str, demand: str) -> str:
    """That every element meets the demand; a list that is not there has none."""
    return f"!({_given(path)}) || self.{path}.all({name}, {demand})"


def _only(path: str, same: str) -> str:
    """That no other element `o` is the same as `e`."""
    return _every(path, "e", f"self.{path}.exists_one(o, {same})")


def _known(path: str) -> Rule:
    rule = _every(path, "e", "self.replicaSpecs.exists(s, s.type == e.type)")
    return rule, f"{path} may only name types that replicaSpecs has"


def _once(path: str) -> Rule:
    return _only(path, "o.type == e.type"), f"{path} may have each type once"


def _types(path: str) -> Rule:
    rule = _every(path, "r", "r.all(t, self.replicaSpecs.exists(s, s.type == t))")
    return rule, f"{path} may only name types that replicaSpecs has"


def _ranks(path: str) -> Rule:
    """Ranks are below the replicas of their type; the schema has already refused negative ones.

    The list of one element binds `n` outside the loop over the ranks, which keeps the estimate down. For a type that
    is not there any rank will do: that is the business of another rule.
    """
    count = "(self.replicaSpecs.map(s, s.type == t, s.replicas) + [100000])[0]"
    rule = _every(path, "r", f"r.all(t, [{count}].all(n, r[t].all(i, int(i) < n)))")
    return rule, f"{path} may only name ranks that their type has, counted from 0"


def _constant(path: str) -> Rule:
    """On the whole spec: a transition rule on the field itself is skipped when the field comes or goes."""
    now, before = (f"({_given(path, root)} ? {root}.{path} : [])" for root in ("self", "oldSelf"))
    return f"{now} == {before}", f"{path} cannot be changed after creation"


def _protocol(port: str) -> str:
    return f"(has({port}.protocol) ? {port}.protocol : 'TCP')"


#: (rule, message), in the order in which a server reports them.
RULES: tuple[Rule, ...] = (
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
