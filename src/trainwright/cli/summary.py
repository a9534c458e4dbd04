# SPDX-License-Identifier: Apache-2.0
"""What a table shows of a finished job. The background engine records it, so that a list of many jobs is fast."""

from trainwright.cli.record import JobSummary
from trainwright.core.autosize import within_bounds
from trainwright.kinds.base import Kind, load
from trainwright.model.job import Body
from trainwright.model.ledger import Ledger
from trainwright.model.units import parse_indexes


def total_replicas(kind: Kind, body: Body) -> int:
    """The number of replicas that the job wants."""
    return sum(role.replicas for role in within_bounds(load(kind, body).job).roles)


def succeeded_replicas(ledger: Ledger) -> int:
    """The number of replicas that have succeeded."""
    return sum(len(parse_indexes(role.succeeded)) for role in ledger.roles)


def summarize(kind: Kind, body: Body, ledger: Ledger, outcome: str) -> JobSummary:
    """The summary of a job that has ended; `outcome` is the phase of a job that was deleted before its end."""
    phase = kind.phase_of(body.get("status") or {}) if ledger.outcome is not None else outcome
    replicas = f"{succeeded_replicas(ledger)}/{total_replicas(kind, body)}"
    return JobSummary(kind.title, phase, replicas, str(body["metadata"].get("creationTimestamp", "")))
