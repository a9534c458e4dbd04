# SPDX-License-Identifier: Apache-2.0
"""What `checks` demands of `spec`, as CEL, so that an API server refuses it too where our webhook is not installed.

`crd.manifests` writes the rules into the CRD; a test demands the verdict of `checks`. Pod templates are open, so what
is wrong inside of them is not seen here.
"""

from trainwright.kinds.limits import MOST_REPLICAS
from trainwright.kinds.paddlejob.roles import ROLES


def _given(field: str, otherwise: str) -> tuple[str, str]:
    """A field before and after an edit, or nothing: CEL cannot step over what is missing."""
    return tuple(f"(has({one}.{field}) ? {one}.{field} : {otherwise})" for one in ("self", "oldSelf"))  # type: ignore[return-value]


_TOTAL = " + ".join(f"(has(self.{name}) ? self.{name}.replicas : 0)" for name in ROLES)
_ROLES = " && ".join(f"has(self.{name}) == has(oldSelf.{name})" for name in ROLES)

#: (rule, message), in the order in which a server reports them.
RULES: tuple[tuple[str, str], ...] = (
    ("has(self.worker) && self.worker.replicas >= 1", "spec.worker must have at least one replica"),
    (f"{_TOTAL} <= {MOST_REPLICAS}", f"a job may have {MOST_REPLICAS} replicas in all"),
    *((f"!has(self.{name}) || has(self.{name}.template)", f"spec.{name}.template is missing") for name in ROLES),
    *(
        (
            f"!has(self.{name}) || !has(self.{name}.requests) || !has(self.{name}.limits)"
            f" || self.{name}.requests <= self.{name}.limits",
            f"spec.{name}.requests may not be more than spec.{name}.limits",
        )
        for name in ROLES
    ),
    (_ROLES, "roles cannot be added or removed after the job was created"),
    (" == ".join(_given("intranet", "''")), "spec.intranet is immutable"),
    (" == ".join(_given("withGloo", "-1")), "spec.withGloo is immutable"),
    ("has(self.elastic) == has(oldSelf.elastic)", "spec.elastic cannot be added or removed after the job was created"),
)
