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

    def host(self, job: Key, name: str) -> str:
        """How others reach the replica called `name`."""
        return self.hosts.get((job, name), name) if self.hosts else name
