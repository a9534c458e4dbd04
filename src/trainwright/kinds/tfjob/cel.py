# SPDX-License-Identifier: Apache-2.0
"""What `checks` demands of `spec`, as CEL, so that an API server refuses it too where our webhook is not installed.

`crd.manifests` writes the rules into the CRD. They keep to plain CEL, which every server since 1.29 has; a test demands
the verdict of `checks`. Pod templates are open, so what is wrong inside of them is not seen here.
"""

from trainwright.kinds.tfjob.types import TYPES

_SPECS = "self.tfReplicaSpecs"
_SPELLINGS = {name: name.lower() for name in TYPES} | {"Evaluator": "eval(uator)?"}


def _named(pattern: str) -> str:
    """The keys that mean one of these types."""
    return f"{_SPECS}.filter(t, t.matches('^(?i)({pattern})$'))"


def _policy(root: str, path: str, otherwise: str = "''") -> str:
    """A field of the run policy, or nothing: CEL cannot step over what is missing."""
    steps = f"runPolicy.{path}".split(".")
    given = " && ".join(f"has({root}.{'.'.join(steps[: end + 1])})" for end in range(len(steps)))
    return f"({given} ? {root}.{'.'.join(steps)} : {otherwise})"


_MANAGED = " == ".join(_policy(root, "managedBy") for root in ("self", "oldSelf"))
_QUEUES = [_policy(root, "schedulingPolicy.queue") for root in ("self", "oldSelf")]

#: (rule, message), in the order in which a server reports them.
RULES: tuple[tuple[str, str], ...] = (
    (
        f"{_SPECS}.all(t, t.matches('^(?i)({'|'.join(_SPELLINGS.values())})$'))",
        f"tfReplicaSpecs may only have the types {', '.join(TYPES)}",
    ),
    *(
        (f"size({_named(spelling)}) <= 1", f"tfReplicaSpecs may have {name} once")
        for name, spelling in _SPELLINGS.items()
    ),
    (f"size({_named('chief')}) + size({_named('master')}) <= 1", "must not have more than 1 Chief or Master role"),
    (f"{_SPECS}.exists(t, {_SPECS}[t].replicas > 0)", "tfReplicaSpecs must have at least one replica in all"),
    (_MANAGED, "spec.runPolicy.managedBy is immutable"),
    (
        f"{_QUEUES[0]} == '' || {_QUEUES[1]} == '' || {_QUEUES[0]} == {_QUEUES[1]}",
        "spec.runPolicy.schedulingPolicy.queue is immutable",
    ),
)
