# SPDX-License-Identifier: Apache-2.0
"""Rules: when a job has succeeded or failed. One algebra, to which every kind's policies compile.

`kinds` build rules, `core.rules` judges them in three values. A rule over nothing never decides anything.
"""

from enum import StrEnum

from msgspec import Struct


class Result(StrEnum):
    """How a replica, or a job, ends."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Which(StrEnum):
    """Which replicas of a role an atom speaks of, when it does not name them."""

    EVERY = "Every"
    SOME = "Some"


class Atom(Struct, frozen=True, gc=False):
    """These replicas of this role ended so. A tuple of ranks means all of them."""

    role: str
    which: Which | tuple[int, ...]
    result: Result


class AllOf(Struct, frozen=True, gc=False):
    """Every rule holds. `text` is how the user wrote it."""

    rules: tuple["Rule", ...]
    text: str = ""


class AnyOf(Struct, frozen=True, gc=False):
    """At least one rule holds."""

    rules: tuple["Rule", ...]
    text: str = ""


Rule = Atom | AllOf | AnyOf

#: The rule that never decides.
NEVER: Rule = AnyOf(())
