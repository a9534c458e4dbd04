# SPDX-License-Identifier: Apache-2.0
"""What `checks` demands of `spec`, as CEL, so that an API server refuses it too where our webhook is not installed.

`crd.manifests` writes the rules into the CRD. They keep to plain CEL, which every server since 1.29 has; a test demands
the verdict of `checks`. Pod templates and exit codes are open, so what is wrong inside of them is not seen here.
"""

_SPECS = "self.replicaSpecs"
_NAME = "^[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?$"


def _field(root: str, name: str, otherwise: str) -> str:
    """A field, or what stands for it: CEL cannot step over what is missing."""
    return f"(has({root}.{name}) ? {root}.{name} : {otherwise})"


def _count(root: str) -> str:
    """How many replicas are wanted."""
    least = _field(root, "minReplicas", "1")
    return _field(root, "replicas", f"({least} > 1 ? {least} : 1)")


def _each(demand: str) -> str:
    return f"{_SPECS}.all(r, {demand.replace('@', f'{_SPECS}[r]')})"


def _policy(root: str) -> str:
    return _field(root, "edlPolicy", "''")


#: (rule, message), in the order in which a server reports them.
RULES: tuple[tuple[str, str], ...] = (
    (
        f"{_SPECS}.all(r, r.matches('{_NAME}'))",
        "replicaSpecs may only have names of letters, digits and dashes, with a letter first and no dash at the end",
    ),
    (
        f"{_SPECS}.all(r, !r.matches('{_NAME}') || {_SPECS}.exists_one(o, o.matches('^(?i)' + r + '$')))",
        "replicaSpecs may not have names that differ only in case",
    ),
    (f"{_SPECS}.exists(r, {_count(f'{_SPECS}[r]')} > 0)", "replicaSpecs must have at least one replica in all"),
    (
        _each("!has(@.minReplicas) || !has(@.maxReplicas) || @.minReplicas <= @.maxReplicas"),
        "minReplicas may not be more than maxReplicas",
    ),
    (_each(f"!has(@.minReplicas) || {_count('@')} >= @.minReplicas"), "replicas may not be less than minReplicas"),
    (_each(f"!has(@.maxReplicas) || {_count('@')} <= @.maxReplicas"), "replicas may not be more than maxReplicas"),
    (
        f"{_SPECS}.all(r, !(r in oldSelf.replicaSpecs) || {_policy(f'{_SPECS}[r]')} != 'Never'"
        f" || {_policy('oldSelf.replicaSpecs[r]')} != 'Never'"
        f" || {_count(f'{_SPECS}[r]')} == {_count('oldSelf.replicaSpecs[r]')})",
        "replicas cannot be changed while edlPolicy is Never",
    ),
    (
        "!has(self.priority) || self.priority.matches('^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$')",
        "priority must be able to be the value of a label",
    ),
)
