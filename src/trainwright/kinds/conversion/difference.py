# SPDX-License-Identifier: Apache-2.0
"""`Difference`: one difference between a job and its conversion."""

from msgspec import Struct


class Difference(Struct, frozen=True):
    """What the source does, and what the result does instead."""

    #: A setting in `Writer.paths`, and the role if the difference is about one role.
    setting: str
    message: str
    role: str = ""
    #: False: the result does what the source asks for, but users should know about the difference.
    lost: bool = True
