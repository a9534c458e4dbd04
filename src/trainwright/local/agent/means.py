# SPDX-License-Identifier: Apache-2.0
"""What every worker of an agent shares. Made by `agent`, handed to each `charge`."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from trainwright.local.agent.awaited import Awaited
from trainwright.local.agent.devices import Devices
from trainwright.local.agent.hosts import Hosts
from trainwright.local.agent.link import Link
from trainwright.local.agent.report import Reports
from trainwright.local.agent.settings import Settings
from trainwright.local.network.pools import Subnet
from trainwright.model.job import Body
from trainwright.runtime.ports import Clock, Cluster

#: A token for a pod: from the pod, the audience (empty: the API server) and the seconds that it should last.
Tokens = Callable[[Body, str, int], Awaitable[str]]


class Notices:
    """Things people should be told once, not once per pod; `tell` is for those that come again."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.tell = notify
        self._told: set[str] = set()

    def once(self, text: str, about: str = "") -> None:
        """Tell it, unless it (or something else about the same) was told already."""
        if (about or text) not in self._told:
            self._told.add(about or text)
            self.tell(text)


class Means(Struct, frozen=True):
    """The place an agent works in."""

    cluster: Cluster
    link: Link
    clock: Clock
    settings: Settings
    reports: Reports
    devices: Devices
    notices: Notices
    awaited: Awaited
    #: None where pods have no hosts file of their own.
    hosts: Hosts | None = None
    #: Where addresses come from, where this agent gives them.
    pool: Subnet | None = None
    #: None where there are no service accounts.
    tokens: Tokens | None = None
