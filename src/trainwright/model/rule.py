# SPDX-License-Identifier: Apache-2.0
"""Rules: when a job has succeeded or failed. Every kind translates its policies into rules.

`core.outcomes` evaluates rules. A rule over no replicas never decides anything.
"""

from enum import StrEnum

from msgspec import Struct


class Result(StrEnum):
    """How a replica or a job ends."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Which(StrEnum):
    """Which replicas of a role an atom is about, if it has no list of ranks."""

    EVERY = "Every"
    SOME = "Some"


class Atom(Struct, frozen=True, gc=False):
    """These replicas of this role ended with this result. A tuple of ranks means all of them."""

    role: str
    which: Which | tuple[int, ...]
    result: Result


class AllOf(Struct, frozen=True, gc=False):
    """Every rule holds. `text` is what the user wrote."""

    rules: tuple["Rule", ...]
    text: str = ""


class AnyOf(Struct, frozen=True, gc=False):
    """At least one rule holds."""

    rules: tuple["Rule", ...]
    text: str = ""


Rule = Atom | AllOf | AnyOf

#: The rule that never decides.
NEVER: Rule = AnyOf(())
