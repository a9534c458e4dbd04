# SPDX-License-Identifier: Apache-2.0
"""The texts of a TFJob's conditions. `kinds.kubeflow.conditions` has the algorithm."""

from trainwright.kinds.kubeflow.conditions import put
from trainwright.kinds.kubeflow.framework import Texts

__all__ = ["TEXTS", "put"]

TEXTS = Texts(
    running="TFJob {0} is running.",
    succeeded="TFJob {0} successfully completed.",
    failed="TFJob {0} has failed because {1} {2} replica(s) failed.",
)
