# SPDX-License-Identifier: Apache-2.0
"""Which containers of a pod count, and which of their ports: by the prefix `aitj-`. For policies, dialect and checks.

Where no container carries the prefix the first one counts, with all of its ports: that is what its author meant.
"""

from trainwright.model.job import Body

PREFIX = "aitj-"


def counting(template: Body) -> tuple[Body, ...]:
    """The containers that count."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return tuple(one for one in containers if str(one.get("name", "")).startswith(PREFIX)) or tuple(containers[:1])


def prefixed(container: Body) -> bool:
    """It carries the prefix."""
    return str(container.get("name", "")).startswith(PREFIX)


def ports_of(container: Body) -> tuple[int, ...]:
    """The ports of a container that counts at which it is reached, in template order, each once."""
    ports = container.get("ports") or ()
    told = [port for port in ports if str(port.get("name", "")).startswith(PREFIX)] if prefixed(container) else ports
    return tuple(dict.fromkeys(int(port["containerPort"]) for port in told))


def ports(template: Body) -> tuple[int, ...]:
    """The ports at which a replica is reached."""
    return tuple(dict.fromkeys(port for one in counting(template) for port in ports_of(one)))
