# SPDX-License-Identifier: Apache-2.0
"""The facts of the place a job runs in, as one frozen value. Engines make it; `core` and the dialects read it."""

from collections.abc import Mapping

from msgspec import Struct

from trainwright.model.meta import Key


class Site(Struct, frozen=True):
    """Cluster domain, the operator's settings, gang APIs found, and how addresses are written."""

    #: Appended to host names where a kind writes full ones.
    domain: str = ""
    #: Gang APIs that were found here, as `group/version`.
    gangs: frozenset[str] = frozenset()
    #: How long a node may be silent before its pods are given up, in seconds.
    node_grace: float = 60.0
    #: How long past its deadline a terminating pod may linger on a lost node before it is removed by force.
    linger: float = 30.0
    #: Host of a replica's name, where names do not resolve (process runtime); empty: the name itself.
    hosts: Mapping[tuple[Key, str], str] = {}
    #: Port of a replica in place of the one its kind would hand out, where replicas share one machine's ports.
    ports: Mapping[tuple[Key, str, int], int] = {}

    def host(self, job: Key, name: str) -> str:
        """How others reach the replica called `name`."""
        return self.hosts.get((job, name), name) if self.hosts else name

    def port(self, job: Key, name: str, port: int) -> int:
        """At which port others reach the replica called `name`, where its kind hands out `port`."""
        return self.ports.get((job, name, port), port) if self.ports else port
