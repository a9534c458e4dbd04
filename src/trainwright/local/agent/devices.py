# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node: which pod has which. A worker takes what its pod asks for and gives it back at its end."""

from trainwright.model.job import Body
from trainwright.model.units import quantity

GPU = "nvidia.com/gpu"
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def asked(container: Body) -> int:
    """How many GPUs a container is limited to; that is also its request."""
    resources = container.get("resources")
    if not resources:
        return 0
    limit = (resources.get("limits") or {}).get(GPU) or (resources.get("requests") or {}).get(GPU)
    return int(quantity(limit) or 0) if limit else 0


def needed(spec: Body) -> int:
    """How many a pod needs at once: its init containers run before the others and use theirs."""
    inits = max((asked(container) for container in spec.get("initContainers") or ()), default=0)
    return max(inits, sum(asked(container) for container in spec["containers"]))


def variables(spec: Body, index: int, held: tuple[str, ...], *, init: bool) -> dict[str, str]:
    """What tells a container its GPUs; one that has none is told so, lest it takes them all."""
    containers = spec["initContainers"] if init else spec["containers"]
    before = 0 if init else sum(asked(container) for container in containers[:index])
    mine = ",".join(held[before : before + asked(containers[index])])
    return dict.fromkeys(_VARIABLES, mine)


class Devices:
    """What is free and what is taken, by pod."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.all = devices
        self._free = list(devices)
        self._held: dict[str, tuple[str, ...]] = {}

    def take(self, pod: str, count: int) -> tuple[str, ...] | None:
        """So many for a pod, the same ones if it has them already; None if there are not enough."""
        if pod in self._held or not count:
            return self._held.get(pod, ())
        if count > len(self._free):
            return None
        self._held[pod] = tuple(self._free[:count])
        del self._free[:count]
        return self._held[pod]

    def free(self, pod: str) -> None:
        """Give back what a pod has, if it has any."""
        back = self._held.pop(pod, ())
        if back:
            self._free = [one for one in self.all if one in back or one in self._free]
