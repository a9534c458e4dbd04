# SPDX-License-Identifier: Apache-2.0
"""The tuple of kinds, and how to find one. Adding a kind is adding a line here."""

from trainwright.kinds.aitrainingjob import AITRAININGJOB
from trainwright.kinds.base import Kind
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.kinds.paddlejob import PADDLEJOB
from trainwright.kinds.tfjob import TFJOB

KINDS: tuple[Kind, ...] = (GENERICJOB, TFJOB, PADDLEJOB, AITRAININGJOB)


def find(api_version: str, name: str) -> Kind | None:
    """The kind of that apiVersion and name, if it is one of ours; any version that it serves will do."""
    return next((kind for kind in KINDS if kind.name == name and api_version in kind.served), None)
