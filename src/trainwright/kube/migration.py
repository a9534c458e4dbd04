# SPDX-License-Identifier: Apache-2.0
"""The steps from another operator of our kinds to ours, in their order, and which of them are done. Pure.

docs/migrate.md describes each step. The steps are derived from the survey of the cluster, so every run of
`trainwright preflight` shows where the migration is.
"""

from collections.abc import Iterator

from msgspec import Struct

from trainwright.crd.compare import CrdOrigin
from trainwright.kube.controller_signs import ControllerSign
from trainwright.kube.survey import Survey


class MigrationStep(Struct, frozen=True):
    """One step. `action` says what the user does; it is empty if the step is done."""

    name: str
    action: str = ""


def migration_steps(found: Survey) -> tuple[MigrationStep, ...]:
    """All steps; empty if the cluster shows no sign of another operator."""
    signs = [one for one in found.controllers if one.active]
    foreign = any(one.jobs.foreign for one in found.kinds if one.jobs is not None)
    theirs = [one for one in found.kinds if one.definition.origin is CrdOrigin.OTHER]
    if not (signs or foreign or theirs):
        return ()
    ids = " ".join(one.id for one in theirs)
    return (
        MigrationStep("Hold new jobs", _hold(found, is_needed=bool(signs or foreign))),
        MigrationStep("Let running jobs end", "; ".join(_running(found))),
        MigrationStep("Stop the other operator", "; ".join(dict.fromkeys(map(_stop, signs)))),
        MigrationStep("Replace its definitions", _piped(f"crds {ids}", "--force-conflicts") if theirs else ""),
        MigrationStep("Start ours", "" if found.operators else _piped("manifests --no-crds --image IMAGE")),
        MigrationStep("Release held jobs", _release(found)),
    )


def _hold(found: Survey, *, is_needed: bool) -> str:
    return "`trainwright preflight --hold | kubectl apply -f -`" if is_needed and not found.held else ""


def _release(found: Survey) -> str:
    """How to end the hold. If we cannot see whether there is one, the command does no harm."""
    if found.held is False:
        return ""
    return "`trainwright preflight --hold | kubectl delete --ignore-not-found -f -`, then resume the suspended jobs"


def _running(found: Survey) -> Iterator[str]:
    """The unfinished jobs of other controllers by kind and namespace."""
    for one in found.kinds:
        counts = one.jobs.namespaces if one.jobs is not None else {}
        places = [f"{counted.foreign} in {name}" for name, counted in counts.items() if counted.foreign]
        if places:
            yield f"{one.kind}: {', '.join(places)}"


def _stop(sign: ControllerSign) -> str:
    kind, _, name = sign.object.partition(" ")
    namespace, _, plain = name.rpartition("/")
    if kind == "Deployment":
        return f"`kubectl -n {namespace} scale deployment {plain} --replicas=0`"
    if kind == "Lease":
        return f"wait until nobody renews the lease {name} any more (five minutes)"
    return f"`kubectl delete {kind.lower()} {name}`"


def _piped(words: str, *options: str) -> str:
    return f"`trainwright {words} | kubectl apply {' '.join(('--server-side', *options))} -f -`"
