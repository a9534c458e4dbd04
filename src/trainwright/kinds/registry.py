# SPDX-License-Identifier: Apache-2.0
"""The tuple of kinds, and how to find one. Adding a kind is adding a line here."""

from trainwright.kinds.base import Kind
from trainwright.kinds.genericjob import GENERICJOB

KINDS: tuple[Kind, ...] = (GENERICJOB,)


def find(api_version: str, name: str) -> Kind | None:
    """The kind of that apiVersion and name, if it is one of ours."""
    return next((kind for kind in KINDS if kind.api_version == api_version and kind.name == name), None)
