# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with the template of a role, beyond what holds for every pod. Called by `checks`.

A template may be of any shape still; what its fields must be has been said.
"""

from collections.abc import Iterator
from typing import Any

from trainwright.kinds.paddlejob.roles import CONTAINER, main_of
from trainwright.kinds.paths import item
from trainwright.model.job import Body
from trainwright.model.problem import Problem, nearest

#: Written on each pod, after whatever the user says.
WRITTEN = (
    "POD_IP",
    "PADDLE_TRAINER_ID",
    "TRAINING_ROLE",
    "PADDLE_TRAINING_ROLE",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_ELASTIC_JOB_ID",
    "PADDLE_ELASTIC_NP",
)
#: In the ConfigMap, which a pod's own variables go before.
SHARED = (
    "PADDLE_PORT",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINERS",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_HETER_ENDPOINTS",
    "PADDLE_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
    "PADDLE_WITH_GLOO",
    "PADDLE_GLOO_RENDEZVOUS",
    "PADDLE_GLOO_HTTP_ENDPOINT",
    "TRAINER_PORTS_NUM",
)


def template(body: Body, path: str, *, hosted: bool) -> Iterator[Problem]:
    """Everything of this sort in one template."""
    found = body.get("spec")
    spec = found if isinstance(found, dict) else {}
    listed = spec.get("containers")
    containers = [one if isinstance(one, dict) else {} for one in listed] if isinstance(listed, list) else []
    yield from _containers(containers, f"{path}.spec.containers")
    if spec.get("restartPolicy") == "Always":
        message = "Always starts containers again also after success, so the job never succeeds by itself"
        yield Problem(f"{path}.spec.restartPolicy", message, "OnFailure", warning=True)
    if spec.get("hostNetwork") and not hosted:
        message = "pods of one node share their ports then; `intranet: Host` gives each its own"
        yield Problem(f"{path}.spec.hostNetwork", message, warning=True)


def _containers(containers: list[Body], path: str) -> Iterator[Problem]:
    names = [str(one.get("name")) for one in containers]
    if len(containers) > 1 and CONTAINER not in names:
        message = f"no container is called {CONTAINER!r}, so the first of them, {names[0]!r}, is told of its peers"
        yield Problem(path, message, CONTAINER if nearest(CONTAINER, names) else "", warning=True)
    for place, one in enumerate(containers):
        if not one.get("image"):
            yield Problem(f"{item(path, place)}.image", "missing; expected the name of an image")
    if containers:
        main = main_of(containers)
        yield from _environment(containers[main].get("env"), f"{item(path, main)}.env")


def _environment(env: Any, path: str) -> Iterator[Problem]:
    for place, entry in enumerate(env if isinstance(env, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if name in WRITTEN:
            message = f"{name} is written by the controller, whose value comes after this one and wins"
            yield Problem(item(path, place), message, warning=True)
        elif name in SHARED:
            message = f"{name} is in the job's ConfigMap, before which this one goes: peers are told something else"
            yield Problem(item(path, place), message, warning=True)
