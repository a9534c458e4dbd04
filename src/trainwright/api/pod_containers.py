# SPDX-License-Identifier: Apache-2.0
"""Which container of a pod a request for logs, exec or attach means. The errors have the texts of the real server."""

from trainwright.errors import BadRequestError
from trainwright.model.job import Body


def container_name(pod: Body, given: str) -> str:
    """The name of the container; `given` may be empty if the pod has only one. Raises BadRequestError."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    found = [str(one["name"]) for group in ("initContainers", "containers") for one in spec.get(group) or ()]
    if not given and len(found) == 1:
        return found[0]
    if not given:
        choice = f"choose one of: [{' '.join(found)}]"
        raise BadRequestError(f"a container name must be specified for pod {name}, {choice}")
    if given not in found:
        raise BadRequestError(f"container {given} is not valid for pod {name}")
    return given


def container_status(pod: Body, name: str) -> Body:
    """The status of a container; empty if the node has not reported it yet."""
    status = pod.get("status") or {}
    statuses = (one for group in ("initContainerStatuses", "containerStatuses") for one in status.get(group) or ())
    return next((one for one in statuses if one["name"] == name), {})


def is_running(status: Body) -> bool:
    """Whether the container with this status runs."""
    return "running" in (status.get("state") or {})
