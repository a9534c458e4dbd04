# SPDX-License-Identifier: Apache-2.0
"""Terms of ours for a pod's node, beside the user's own. `avoid` names them, `render` adds them to the pod."""

from collections.abc import Mapping
from typing import Any

from trainwright.model.job import Body

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def merged(spec: Body, wanted: Body) -> Body:
    """A pod's spec with these terms beside the user's own: of their alternatives each gets the demand."""
    affinity: Mapping[str, Any] = spec.get("affinity") or {}
    given: Mapping[str, Any] = affinity.get("nodeAffinity") or {}
    node = dict(given)
    if PREFERRED in wanted:
        node[PREFERRED] = [*(given.get(PREFERRED) or ()), *wanted[PREFERRED]]
    if REQUIRED in wanted:
        ours = wanted[REQUIRED]["nodeSelectorTerms"][0]["matchExpressions"]
        theirs = (given.get(REQUIRED) or {}).get("nodeSelectorTerms")
        node[REQUIRED] = {"nodeSelectorTerms": [_both(one, ours) for one in theirs]} if theirs else wanted[REQUIRED]
    return {**spec, "affinity": {**affinity, "nodeAffinity": node}}


def _both(term: Body, ours: list[Body]) -> Body:
    """An alternative that asks for nothing matches no node, and stays so."""
    if not (term.get("matchExpressions") or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *ours]}
