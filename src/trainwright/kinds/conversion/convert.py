# SPDX-License-Identifier: Apache-2.0
"""Convert a manifest: load it, let the writer of the new kind write the job, load the result, and compare the two jobs.

There are no conversions between pairs of kinds: everything goes through the internal model.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from trainwright.kinds.base import Kind, Loaded, load, stored
from trainwright.kinds.conversion.compare import compare
from trainwright.kinds.conversion.compare_pods import compare_pods, missing_variables
from trainwright.kinds.conversion.difference import Difference
from trainwright.kinds.conversion.pods import new_job
from trainwright.kinds.conversion.templates import SourcePods, WithVariables, source_pods, templates, with_variables
from trainwright.kinds.scalars import parts
from trainwright.kinds.writing import Templates
from trainwright.model.job import Body
from trainwright.model.meta import ADOPT
from trainwright.model.problem import Problem

#: Metadata that a new object keeps.
_METADATA = ("name", "generateName", "namespace", "labels", "annotations")
#: Annotations that belong to the stored object, not to the job.
_ANNOTATIONS = (ADOPT, "kubectl.kubernetes.io/last-applied-configuration")
_FIXED = (
    "the value of {} in the result fits this number of replicas: to change it, change the original and convert again"
)


class Conversion(Struct, frozen=True):
    """The result of a conversion."""

    #: The new manifest; None if the new kind cannot have such a job at all.
    document: Body | None
    #: What the result does not do, and other differences, with their paths in the source. Notes are warnings.
    losses: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def convert(kind: Kind, document: Body, target: Kind) -> Conversion:
    """Convert a valid manifest of a kind to another kind, or to the stored version of the same kind."""
    if target is kind:
        return Conversion(_with_head(target, document, {"spec": stored(kind, document)["spec"]}), ())
    source = load(kind, _without_status(document))
    pods = source_pods(new_job(source.job), target.writer.notation)
    plain = templates(pods)
    choices = len(list(target.writer.write(source.job, plain)))
    found = [_attempt(_Attempt(source, target, document, number), pods, plain) for number in range(choices)]
    best = min(found, key=lambda one: (one[0].errors != (), sum(difference.lost for difference in one[2])))
    loaded, result, differences = best
    problems = [_located(kind, source, document, one) for one in differences]
    losses = tuple(problem for problem, one in zip(problems, differences, strict=True) if one.lost)
    notes = tuple(problem for problem, one in zip(problems, differences, strict=True) if not one.lost)
    return Conversion(None if loaded.errors else result, losses, notes)


class _Attempt(Struct, frozen=True):
    """A conversion with one of the manifests that the writer of the new kind offers."""

    source: Loaded
    target: Kind
    document: Body
    number: int

    def written(self, given: Templates) -> tuple[Body, Loaded]:
        """The manifest with these templates, and what `load` says about it."""
        offered = list(self.target.writer.write(self.source.job, given))
        whole = _with_head(self.target, self.document, offered[self.number])
        return whole, load(self.target, whole)


def _attempt(attempt: _Attempt, pods: SourcePods, plain: Templates) -> tuple[Loaded, Body, list[Difference]]:
    """Write the job twice: first without variables, to see which of them the new kind sets itself."""
    _, first = attempt.written(plain)
    added = WithVariables(plain)
    if not first.errors:
        missing = missing_variables(new_job(attempt.source.job), new_job(first.job))
        added = with_variables(pods, plain, missing)
    result, loaded = attempt.written(added.templates)
    return loaded, result, list(_differences(attempt.source, loaded, attempt.target, added.fixed))


def _differences(source: Loaded, result: Loaded, target: Kind, fixed: frozenset[str]) -> Iterator[Difference]:
    if result.errors:
        yield from (
            Difference("spec", f"the result would be no valid {target.name}: {problem}") for problem in result.errors
        )
        return
    yield from compare(source.job, result.job)
    yield from compare_pods(new_job(source.job), new_job(result.job))
    if fixed:
        yield Difference("spec", _FIXED.format(", ".join(sorted(fixed))), lost=False)


# -- the document ----------------------------------------------------------------------------------------------------


def _without_status(document: Body) -> Body:
    return {key: part for key, part in document.items() if key != "status"}


def _with_head(target: Kind, document: Body, written: Body) -> Body:
    """The whole manifest: version, kind, the user's metadata, and what the writer wrote."""
    given = document.get("metadata") or {}
    metadata: dict[str, Any] = {key: given[key] for key in _METADATA if given.get(key)}
    annotations = {key: text for key, text in (metadata.get("annotations") or {}).items() if key not in _ANNOTATIONS}
    annotations |= (written.get("metadata") or {}).get("annotations") or {}
    metadata = {key: part for key, part in metadata.items() if key != "annotations"}
    metadata |= {"annotations": annotations} if annotations else {}
    return {"apiVersion": target.api_version, "kind": target.name, "metadata": metadata, "spec": written["spec"]}


# -- paths -----------------------------------------------------------------------------------------------------------


def _located(kind: Kind, source: Loaded, document: Body, found: Difference) -> Problem:
    """The difference with its path in the source: the first path at which the manifest has a value."""
    position = next((at for at, role in enumerate(source.job.roles) if role.name == found.role), 0)
    known = kind.writer.paths.get(found.setting) or ("spec",)
    paths = [_spelt(document, one.format(role=found.role, index=position)) for one in known]
    path = next((one for one in paths if _has(document, one)), paths[0])
    return Problem(path, found.message, warning=True)


def _spelt(document: Body, path: str) -> str:
    """The path with the keys as the manifest spells them: some kinds accept upper and lower case."""
    part: Any = document
    for step in parts(path):
        if isinstance(part, dict) and isinstance(step, str) and step not in part:
            key = next((key for key in part if isinstance(key, str) and key.lower() == step.lower()), step)
            path = path.replace(f".{step}", f".{key}", 1) if key != step else path
            step = key  # noqa: PLW2901 - go on at the key that exists
        part = part.get(step) if isinstance(part, dict) else None if not isinstance(part, list) else _at(part, step)
    return path


def _has(document: Body, path: str) -> bool:
    part: Any = document
    for step in parts(path):
        part = part.get(step) if isinstance(part, dict) else _at(part, step) if isinstance(part, list) else None
    return part is not None


def _at(part: list[Any], step: str | int) -> Any:
    return part[step] if isinstance(step, int) and step < len(part) else None
