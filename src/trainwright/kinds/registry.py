# SPDX-License-Identifier: Apache-2.0
"""The list of all kinds. A new kind gets a line here."""

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.base import Kind
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.jaxjob import JAXJOB
from trainwright.kinds.kubeflow_paddlejob import KUBEFLOW_PADDLEJOB
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.pytorchjob import PYTORCHJOB
from trainwright.kinds.tfjob import TFJOB
from trainwright.kinds.xgboostjob import XGBOOSTJOB

KINDS: tuple[Kind, ...] = (
    GENERICJOB,
    TFJOB,
    PADDLEJOB,
    AITRAININGJOB,
    PYTORCHJOB,
    XGBOOSTJOB,
    JAXJOB,
    KUBEFLOW_PADDLEJOB,
)


def find(api_version: str, name: str) -> Kind | None:
    """The kind with that name that serves that apiVersion; None if there is no such kind."""
    return next((kind for kind in KINDS if kind.name == name and api_version in kind.served), None)
