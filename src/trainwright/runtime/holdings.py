# SPDX-License-Identifier: Apache-2.0
"""Which ports of shared machines are whose, over all jobs: from what is stored, and from what was just decided.

`controller` asks before a pass over a job that needs some, and notes what that pass has handed out before anything else
is looked at: two jobs that are looked at in the same moment must not be given the same.
"""

from collections.abc import Mapping

from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.runtime.cache import Cache


class Holdings:
    """The ports of every job that has not ended."""

    def __init__(self, jobs: Mapping[str, Cache]) -> None:
        self._jobs = jobs
        self._decided: dict[str, frozenset[int]] = {}

    def others(self, uid: str) -> frozenset[int]:
        """Those that other jobs have."""
        found: set[int] = set()
        for cache in self._jobs.values():
            for document in cache.items():
                if document["metadata"].get("uid") != uid:
                    found |= _stored(document)
        for other, ports in self._decided.items():
            found |= ports if other != uid else frozenset()
        return frozenset(found)

    def note(self, uid: str, ledger: Ledger) -> None:
        """A pass has come to this."""
        if ledger.ports and ledger.outcome is None:
            self._decided[uid] = frozenset(ledger.ports.values())
        else:
            self._decided.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._decided.pop(uid, None)


def _stored(document: Body) -> set[int]:
    """What its status says; anything may stand there."""
    status = document.get("status")
    ledger = status.get("trainwright") if isinstance(status, dict) else None
    ports = ledger.get("ports") if isinstance(ledger, dict) and not ledger.get("outcome") else None
    return {port for port in ports.values() if isinstance(port, int)} if isinstance(ports, dict) else set()
