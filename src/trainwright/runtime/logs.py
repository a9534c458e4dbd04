# SPDX-License-Identifier: Apache-2.0
"""Which part of a container's log is wanted. `kube.kubelet` reads it from a request, `local.agent.logs` finds it."""

from datetime import datetime

from msgspec import Struct


class Part(Struct, frozen=True, kw_only=True):
    """Everything, unless it says less."""

    #: Go on as it is written, until the container ends.
    follow: bool = False
    #: Of the container before its last restart.
    previous: bool = False
    #: Each line with the time at which it was written.
    timestamps: bool = False
    #: So many lines from the end.
    tail: int | None = None
    since: datetime | None = None
    #: So many bytes at most.
    limit: int | None = None
