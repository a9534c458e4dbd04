# SPDX-License-Identifier: Apache-2.0
"""The children that our operator creates for a job, for the floor: rendered once for each spec, then copied as text.

So the floor sends the bytes that our operator sends, and spends almost no time on them. Only a hash of the UID in a
variable of PaddleJobs differs.
"""

from typing import Any

import msgspec
from shapes import Shape

from trainwright.core.reconcile import reconcile
from trainwright.kinds.base import load
from trainwright.kinds.registry import KINDS
from trainwright.kube.codec import Request, create_path
from trainwright.model.child import Observed
from trainwright.model.site import Site
from trainwright.model.units import EARLIEST_TIME
from trainwright.runtime.ports import PODS, SERVICES

Body = dict[str, Any]
#: Name, namespace and UID of the job that is rendered. They stand for those of the real job.
_NAME, _NAMESPACE, _UID = "name-of-the-job", "namespace-of-the-job", "00000000-0000-4000-8000-000000000000"
_RESOURCES = {"Pod": PODS, "Service": SERVICES}


class ChildRequests:
    """Builds the requests that create the pods and services of jobs."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        #: For each spec, as JSON: kind and JSON of each child.
        self._templates: dict[bytes, list[tuple[str, str]]] = {}

    def of(self, document: Body) -> list[Request]:
        """Return the requests for one job."""
        spec, meta = msgspec.json.encode(document["spec"]), document["metadata"]
        templates = self._templates.get(spec)
        if templates is None:
            templates = self._templates[spec] = self._rendered(document)
        name, namespace, uid = meta["name"], meta["namespace"], meta["uid"]
        return [
            Request(
                "create",
                _RESOURCES[kind].id,
                create_path(_RESOURCES[kind], namespace),
                text.replace(_NAME, name).replace(_NAMESPACE, namespace).replace(_UID, uid).encode(),
            )
            for kind, text in templates
        ]

    def _rendered(self, document: Body) -> list[tuple[str, str]]:
        kind = next(one for one in KINDS if one.singular == self._shape.kind)
        sample = {**document, "metadata": {"name": _NAME, "namespace": _NAMESPACE, "uid": _UID}}
        job = load(kind, {name: value for name, value in sample.items() if name != "status"}).job
        plan = reconcile(job, Observed(), Site(), EARLIEST_TIME)
        bodies = [create.body for create in plan.creates if create.body["kind"] in _RESOURCES]
        return [(body["kind"], msgspec.json.encode(body).decode()) for body in bodies]
