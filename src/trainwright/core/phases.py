# SPDX-License-Identifier: Apache-2.0
"""Where a job is, and which moves there are. `lifecycle` asks for the phase; `docs/state-machine.md` prints MOVES.

`Pending` and `Resuming` last until every replica has run; after that a replica that is missing means `Restarting`.
The ends are final. A test drives random worlds and holds every move it sees against the table, both ways.
"""

from collections.abc import Mapping

from trainwright.core.observe import View
from trainwright.model.ledger import Phase
from trainwright.model.status import RoleSeen, Seen, State

_ENDS: Mapping[Phase, str] = {
    Phase.SUCCEEDED: "the success rule is fulfilled, or somebody asked for this end",
    Phase.FAILED: "a failure rule is fulfilled, success is out of reach, or a deadline, a budget or somebody ended it",
}
_SUSPEND = {Phase.SUSPENDED: "suspension is asked for: every pod is removed, what had finished is forgotten"}
_RUN = {Phase.RUNNING: "every replica runs or has finished"}

MOVES: Mapping[Phase, Mapping[Phase, str]] = {
    Phase.NEW: {
        Phase.PENDING: "the job is accepted",
        Phase.SUSPENDED: "the job is created suspended",
        Phase.RUNNING: "the job is accepted and its pods already run (a status was lost)",
        Phase.SUCCEEDED: "the job is accepted and its pods have already fulfilled the success rule (a status was lost)",
        Phase.FAILED: "the manifest cannot be run, or its end was asked for before it began",
    },
    Phase.PENDING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.RUNNING: {
        Phase.RESTARTING: "a replica that ran is being replaced",
        **_SUSPEND,
        **_ENDS,
    },
    Phase.RESTARTING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.SUSPENDED: {
        Phase.RESUMING: "suspension is lifted: every replica is made anew",
        Phase.SUCCEEDED: "somebody asked for this end",
        Phase.FAILED: "somebody asked for this end",
    },
    Phase.RESUMING: {**_RUN, **_SUSPEND, **_ENDS},
    Phase.SUCCEEDED: {},
    Phase.FAILED: {},
}

FINAL = frozenset(phase for phase, moves in MOVES.items() if not moves)


def up(seen: Seen) -> bool:
    """It runs, or has run to its end."""
    return seen.state is State.RUNNING or seen.final


def present(role: RoleSeen) -> bool:
    """Every replica of the role has a pod, or has finished."""
    return all(seen.pod is not None or seen.final for seen in role.replicas)


def arrived(view: View, role: RoleSeen) -> bool:
    """Every replica of the role has existed; those by which it grows while the job runs count once they are up.

    Else they would be missed in the next pass, as if they had been up before.
    """
    return all(up(seen) for seen in role.replicas) if view.ledger.phase is Phase.RUNNING else present(role)


def current(view: View) -> Phase:
    """The phase of a job that is neither suspended nor at its end."""
    before = view.ledger.phase
    if view.calm:
        return Phase.RUNNING
    if all(role.calm or all(up(seen) for seen in role.replicas) for role in view.roles):
        # All of them finished and no rule decided: nothing runs, so nothing has changed.
        return Phase.RUNNING if any(role.running for role in view.roles) else before
    return Phase.RESTARTING if before is Phase.RUNNING and _replaced(view) else before


def _replaced(view: View) -> bool:
    """Whether a replica that once existed is not up: growth alone is not a restart."""
    reached = {book.name: book.reached for book in view.stored.roles}
    return any(not up(seen) and seen.index < reached.get(role.name, 0) for role in view.roles for seen in role.replicas)
