# SPDX-License-Identifier: Apache-2.0
"""The policies that only a PyTorchJob has: one worker of an elastic job without a master decides."""

from trainwright.kinds.kubeflow.replicas import WORKER
from trainwright.kinds.pytorchjob.wire import REPLICA_TYPES, PyTorchJobSpec
from trainwright.model.rule import Atom, Result, Rule, Which

__all__ = ["success"]


def success(spec: PyTorchJobSpec) -> Rule:
    """The master must succeed. Without a master: every worker, or one worker of an elastic job."""
    leading = REPLICA_TYPES.leading(spec)
    some = leading == WORKER and spec.elastic_policy is not None
    return Atom(leading, Which.SOME if some else Which.EVERY, Result.SUCCEEDED)
