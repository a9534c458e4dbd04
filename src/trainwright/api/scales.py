# SPDX-License-Identifier: Apache-2.0
"""The scale subresource of a job: the number of replicas of its workers as an object of the kind Scale."""

from collections.abc import Callable
from typing import Any

from trainwright.api import bodies
from trainwright.errors import ApiError, BadRequestError, ErrorCause, FieldError
from trainwright.kinds.base import ScalePaths
from trainwright.model.job import Body

_API, _KIND = "autoscaling/v1", "Scale"
_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(paths: ScalePaths, body: Body) -> Body:
    """The scale of a job. Raises ApiError, as an API server does, if the job has no such replicas."""
    if not _has_replicas(paths, body):
        raise ApiError(f'Internal error occurred: the spec replicas field "{paths.spec}" does not exist')
    replicas, selector = _at(body, paths.spec), _at(body, paths.selector)
    status: Body = {"replicas": _at(body, paths.status) or 0}
    return {
        "kind": _KIND,
        "apiVersion": _API,
        "metadata": {name: body["metadata"][name] for name in _SHOWN if name in body["metadata"]},
        # A cluster writes the default into the job, this engine does not.
        "spec": {"replicas": 1 if replicas is None else replicas},
        "status": status | ({"selector": selector} if selector else {}),
    }


def rescaled(paths: ScalePaths, before: Body, change: Callable[[Body], Body]) -> Body:
    """The job with the number of replicas that its changed scale has. The store checks it. Raises ApiError."""
    if not _has_replicas(paths, before):
        raise FieldError([ErrorCause("FieldValueRequired", "Required value: the job has none", paths.spec[1:])])
    given = change(scale_of(paths, before))
    if (given.get("apiVersion"), given.get("kind")) != (_API, _KIND):
        raise BadRequestError(f"expected a {_KIND} of {_API}, found {given.get('kind')} of {given.get('apiVersion')}")
    wanted, metadata = given.get("metadata") or {}, before["metadata"]
    bodies.check_name(wanted, metadata["name"])
    if wanted.get("resourceVersion"):
        metadata = {**metadata, "resourceVersion": wanted["resourceVersion"]}
    return {**_with(before, paths.spec.split(".")[1:], _replicas(given)), "metadata": metadata}


def _has_replicas(paths: ScalePaths, body: Body) -> bool:
    """Whether the job has the part in which the number is."""
    return isinstance(_at(body, paths.spec.rpartition(".")[0]), dict)


def _replicas(scale: Body) -> int:
    """The wanted number; as in every Scale, no number means 0."""
    spec = scale.get("spec")
    found = (spec if isinstance(spec, dict) else {}).get("replicas") or 0
    if not isinstance(found, int) or isinstance(found, bool):
        raise BadRequestError(f"spec.replicas: expected a whole number, found {str(found)[:60]!r}")
    return found


def _at(part: Any, path: str) -> Any:
    """The value at a path such as `.spec.replicas`; None if there is none."""
    for step in path.split(".")[1:]:
        part = part.get(step) if isinstance(part, dict) else None
    return part


def _with(part: Body, steps: list[str], value: int) -> Body:
    """The object with this value at the path `steps`, whose last part need not exist."""
    step, *rest = steps
    return {**part, step: _with(part[step], rest, value) if rest else value}
