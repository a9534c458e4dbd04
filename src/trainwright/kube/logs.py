# SPDX-License-Identifier: Apache-2.0
"""What a container wrote, as the kubelet kept it. `cluster` offers it; the command line prints it."""

from datetime import datetime

from msgspec import Struct

from trainwright.kube.calls import Call, one_of, with_query
from trainwright.model.meta import Key
from trainwright.runtime.resources import PODS


class Wanted(Struct, frozen=True):
    """Which part of a log."""

    container: str = ""
    #: Go on as it is written.
    follow: bool = False
    #: Of the container before the last restart.
    previous: bool = False
    timestamps: bool = False
    #: So many lines from the end.
    tail: int | None = None
    since: datetime | None = None


def call_of(key: Key, wanted: Wanted) -> Call:
    """The request for a log."""
    given = {
        "container": wanted.container,
        "follow": "true" if wanted.follow else "",
        "previous": "true" if wanted.previous else "",
        "timestamps": "true" if wanted.timestamps else "",
        "tailLines": "" if wanted.tail is None else str(wanted.tail),
        "sinceTime": wanted.since.isoformat(timespec="seconds") if wanted.since else "",
    }
    query = {name: value for name, value in given.items() if value}
    return Call("get", f"{PODS.id}/log", with_query(one_of(PODS, key, "log"), query), repeatable=True)
