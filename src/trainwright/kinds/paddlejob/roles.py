# SPDX-License-Identifier: Apache-2.0
"""The words of a PaddleJob: its roles, its modes, how pods find each other. Used wherever `spec` is read."""

from msgspec import UNSET

from trainwright.kinds.paddlejob.wire import PaddleJobSpec, ResourceSpec
from trainwright.model.job import Body

PS, WORKER, HETER = "ps", "worker", "heter"
#: In the order in which they are made, and in which everything is walked.
ROLES = (PS, WORKER, HETER)
#: What Paddle calls them.
TRAINING = {PS: "PSERVER", WORKER: "TRAINER", HETER: "HETER_TRAINER"}
POD_IP, SERVICE, HOST = "PodIP", "Service", "Host"
INTRANETS = (POD_IP, SERVICE, HOST)
CLEAN = ("Always", "Never", "OnFailure", "OnCompletion")
#: The container that trains, where one is called so; else it is the first.
CONTAINER = "paddle"
_BY_LOWER = {word.lower(): word for word in INTRANETS} | {"hostnetwork": HOST}


def roles(spec: PaddleJobSpec) -> dict[str, ResourceSpec]:
    """Those that the job has, in order."""
    found = {PS: spec.ps, WORKER: spec.worker, HETER: spec.heter}
    return {name: one for name, one in found.items() if one is not None}


def intranet(spec: PaddleJobSpec) -> str:
    """How pods find each other; the design's `HostNetwork` is `Host`, and what means nothing is `PodIP`."""
    return _BY_LOWER.get(spec.intranet.lower(), POD_IP)


def elastic(spec: PaddleJobSpec) -> bool:
    """Workers may come and go. Only among themselves: parameter servers need to know everybody."""
    return spec.elastic is not UNSET and spec.ps is None


def mode(spec: PaddleJobSpec) -> str:
    """`PS`, `Collective` or `Single`."""
    if spec.ps is not None:
        return "PS"
    return "Collective" if spec.worker is not None and spec.worker.replicas > 1 else "Single"


def gloo(spec: PaddleJobSpec) -> int:
    """Who meets by Gloo: with servers the workers do, unless it is said otherwise; without servers nobody can."""
    if spec.ps is None or not spec.ps.replicas:
        return 0
    return 1 if spec.with_gloo is UNSET else spec.with_gloo


def main_of(containers: list[Body]) -> int:
    """Which container trains."""
    return next((place for place, one in enumerate(containers) if one.get("name") == CONTAINER), 0)
