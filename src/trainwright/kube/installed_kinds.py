# SPDX-License-Identifier: Apache-2.0
"""The kinds whose CRDs are installed: the operator manages these, and leaves out the other ones.

A new version of the operator knows kinds that the definitions and roles of the version before do not have. It must work
with them nevertheless, because an upgrade replaces the parts of an installation one after the other. For the same
reason it leaves out kinds whose CRDs belong to another operator: that operator may manage them beside ours. A kind that
the user names with `--kinds` must be installed and ours.
"""

import logging
from collections.abc import Collection, Sequence

from msgspec import Struct

from trainwright.crd.compare import is_foreign, unusable
from trainwright.errors import (
    ApiError,
    ForbiddenError,
    ForeignDefinitionError,
    NotFoundError,
    TrainwrightError,
    UsageError,
)
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import DEFINITIONS, Cluster
from trainwright.runtime.telemetry import LogMessage

_LOG = logging.getLogger(__name__)


class InstalledKinds(Struct, frozen=True):
    """The kinds that the operator can manage, and those that it leaves out."""

    managed: tuple[Kind, ...]
    left_out: tuple[Kind, ...] = ()


async def installed_kinds(cluster: Cluster, named: Collection[str] | None) -> InstalledKinds:
    """Find the kinds whose CRDs are installed. `named` are the kinds that the user named; None means all kinds.

    Raises UsageError if a CRD of ours is not usable, if a named kind is not installed or not ours, or if no kind is.
    """
    managed, errors = list[Kind](), list[tuple[Kind, TrainwrightError]]()
    for kind in KINDS:
        if named is None or kind.id in named:
            try:
                await check_definition(cluster, kind)
            except (NotFoundError, ForbiddenError, ForeignDefinitionError) as error:
                errors.append((kind, error))
            else:
                managed.append(kind)
    left_out = tuple(kind for kind, _ in errors)
    if errors and (named is not None or not managed):
        for _, cause in errors:
            if not isinstance(cause, NotFoundError):
                raise cause
        names = ", ".join(map(_name, left_out))
        raise UsageError(f"not installed: {names}; {_install(left_out)} installs what is missing")
    if errors:
        _warn(errors)
    return InstalledKinds(tuple(managed), left_out)


def _warn(errors: Sequence[tuple[Kind, TrainwrightError]]) -> None:
    """Log which kinds the operator leaves out, why, and how to install those that are missing."""
    missing = [kind for kind, cause in errors if not isinstance(cause, ForeignDefinitionError)]
    causes = "; ".join(f"{_name(kind)}: {_cause(cause)}" for kind, cause in errors)
    about = {"kinds": ",".join(kind.id for kind, _ in errors), "causes": causes}
    about |= {"install": _install(missing)} if missing else {}
    _LOG.warning(LogMessage("the operator leaves out kinds whose definitions it cannot use", **about))


class NewKindFinder:
    """Finds out whether one of the kinds that the operator left out has been installed in the meantime."""

    def __init__(self, cluster: Cluster, left_out: Sequence[Kind]) -> None:
        self._cluster, self._left_out = cluster, left_out
        #: The problems of definitions that the finder has already reported.
        self._reported: set[str] = set()

    async def find(self) -> list[Kind]:
        """The kinds that the operator could manage now. It does not raise an ApiError: the caller asks again later."""
        found = []
        for kind in self._left_out:
            try:
                definition = await check_definition(self._cluster, kind)
            except ApiError:
                continue
            except UsageError as problem:
                # The operator would not start with this definition, so a restart would stop the other kinds too.
                if str(problem) not in self._reported:
                    _LOG.warning(LogMessage("the operator still leaves out a kind", kind=kind.id, cause=problem))
                    self._reported.add(str(problem))
                continue
            if _is_established(definition):
                found.append(kind)
        return found


async def check_definition(cluster: Cluster, kind: Kind) -> Body:
    """Read the CRD of a kind, and refuse a CRD without the fields of the ledger with UsageError.

    API servers would drop the ledger, and jobs would start again.
    """
    definition: Body = await cluster.get(DEFINITIONS, Key("", _name(kind)))
    if reason := unusable(kind, definition):
        raise ForeignDefinitionError(reason) if is_foreign(definition) else UsageError(reason)
    return definition


def _is_established(definition: Body) -> bool:
    """Whether the API server serves the kind. This takes a moment after the CRD has been created."""
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def _name(kind: Kind) -> str:
    return f"{kind.plural}.{kind.group}"


def _cause(error: TrainwrightError) -> str:
    return "not installed" if isinstance(error, NotFoundError) else str(error)


def _install(kinds: Sequence[Kind]) -> str:
    return f"`trainwright crds {' '.join(kind.id for kind in kinds)} | kubectl apply --server-side -f -`"
