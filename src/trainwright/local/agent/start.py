# SPDX-License-Identifier: Apache-2.0
"""Starting things: a pod's surroundings (`enter`), then its containers (`start`). `worker` calls both.

What cannot be configured waits and is tried again; a program that cannot be run has ended, with the code a shell has
for that.
"""

import asyncio
import contextlib
import os
from functools import partial

from trainwright.errors import ApiError, EngineError, UnavailableError
from trainwright.local.agent import environment, messages, sources, volumes
from trainwright.local.agent.charge import Charge
from trainwright.local.agent.container import Container
from trainwright.local.agent.link import End, Lost, Refused
from trainwright.local.agent.refusals import CONFIG, CREATE, Unconfigured
from trainwright.local.supervisor.protocol import Limits, Mount, OpenPod, StartContainer, Started
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, Key
from trainwright.model.units import quantity

_IMAGE = "image is not used by the {} runtime: commands run with this machine's programs"
_SIDECAR = "Always is not supported: an init container must end before the next one begins"
_CANNOT_RUN = (126, 127)
#: A token that could not be renewed is tried again in such a part of the time.
_SOONER = 10
#: What a pod may expect to have an effect, and has none.
_UNHEEDED = ("hostAliases", "securityContext", "dnsConfig")


class _Occupied(Exception):  # noqa: N818 - a state, not a defect of ours
    """Another pod of this node still has the devices."""


async def enter(charge: Charge) -> None:
    """Have the supervisor make what the pod's containers share: its folder, too, where it has one."""
    means, spec = charge.means, charge.pod["spec"]
    ignored = [f"spec.{word}" for word in _UNHEEDED if spec.get(word)]
    if ignored:
        means.notices.once(f"{', '.join(ignored)}: not heeded on this node", f"fields of {charge.job}")
    if means.devices.all:
        held = means.devices.take(charge.uid, charge.pod)
        if held is None:
            raise _Occupied(f"the devices that it asks for ({means.devices.missing(spec)}) are not free on this node")
        charge.held = held
    request = await _surroundings(charge)
    charge.opened = True  # from now on it is to be closed, also if nobody waits for the answer any more
    try:
        await means.link.open(request)
    except Refused:
        charge.opened = False
        raise


async def _surroundings(charge: Charge) -> OpenPod:
    settings, meta = charge.means.settings, charge.pod["metadata"]
    if charge.means.pool is not None and charge.networked and not charge.given:
        charge.given = charge.means.pool.take()
    if not settings.sandboxed:
        return {"pod": charge.uid, "host": charge.host, "address": charge.address, "network": "host"}
    if charge.networked and charge.means.pool is None and ADDRESS not in (meta.get("annotations") or {}):
        raise Unconfigured(f'metadata.annotations["{ADDRESS}"]', "missing; no address was reserved for this pod")
    hosts = charge.means.hosts
    charge.housed = True
    return {
        "pod": charge.uid,
        "host": charge.host,
        "address": charge.address,
        "network": "own" if charge.networked else "host",
        "hosts": await hosts.settled(charge.pod, charge.given) if hosts is not None else None,
        "tmp": f"{charge.folder}/tmp",  # noqa: S108 - the pod's own
        "shm": volumes.shared(charge.pod),
        "keep": [settings.cwd, *settings.visible],
    }


async def start(charge: Charge, container: Container) -> None:
    """Have it started, however long it takes until it can be: the container's `begun` and `over` tell the rest."""
    while True:
        try:
            if not charge.opened:
                await enter(charge)
            request = await _request(charge, container)
            if request["leases"]:
                await charge.means.link.leased({"devices": request["leases"]})
            break
        except Lost:
            raise
        except _Occupied as problem:
            if container.wait(CONFIG, f"spec.containers: {problem}"):
                charge.mark()
            await charge.means.devices.change(charge.means.settings.pace.retry)
        except Unconfigured as problem:
            await _wait(charge, container, CONFIG, problem)
        except (EngineError, OSError, ApiError) as problem:
            await _wait(charge, container, CREATE, problem)
    _launch(charge, container, request)


async def _wait(charge: Charge, container: Container, reason: str, problem: Exception) -> None:
    if isinstance(problem, Unconfigured) and problem.kind and not charge.means.settings.kubelet:
        with contextlib.suppress(ApiError):
            await sources.advise(charge.means.cluster, charge.key.namespace, problem)
    if container.wait(reason, str(problem)):
        charge.mark()
    known = _versions(charge, container) if reason == CONFIG else {}
    await charge.means.awaited.change(known, charge.means.settings.pace.retry)


def _versions(charge: Charge, container: Container) -> dict[Key, int]:
    """The ConfigMaps that it needs, and what it has found of each."""
    wanted = sources.named(charge.pod, container.body, mounts=charge.means.settings.sandboxed)
    found = {name: charge.sources.get((kind, name)) for kind, name in wanted if kind == sources.CONFIG_MAP}
    return {
        Key(charge.key.namespace, name): int(body["metadata"].get("resourceVersion") or 0) if body else 0
        for name, body in found.items()
    }


async def _request(charge: Charge, container: Container) -> StartContainer:
    """What the supervisor is told about a container."""
    body, settings = container.body, charge.means.settings
    if container.init and body.get("restartPolicy") == "Always":
        raise Unconfigured(f"{container.path}.restartPolicy", _SIDECAR)
    found = await _sources(charge, container)
    subject = environment.Subject(charge.pod, body, container.path, charge.facts, found, settings.env)
    variables = environment.variables(subject)
    argv = environment.command(subject, variables)
    env = {**settings.passed, "HOSTNAME": charge.host}
    if charge.means.devices.all:
        spec, held = charge.pod["spec"], charge.held
        env |= charge.means.devices.variables(spec, container.index, held, init=container.init)
    if body.get("image"):
        charge.means.notices.once(_IMAGE.format(settings.runtime))
    return {
        "pod": charge.uid,
        "container": f"{charge.uid}-{container.seen.name}-{container.seen.restarts}",
        "argv": argv,
        "env": env | variables,
        "cwd": body.get("workingDir") or settings.cwd,
        "log": _log(charge, container),
        "mounts": await _mounts(charge, container, found, variables),
        "limits": _limits(body),
        "leases": charge.means.devices.leases(charge.pod, charge.held),
    }


async def _sources(charge: Charge, container: Container) -> sources.Sources:
    wanted = sources.named(charge.pod, container.body, mounts=charge.means.settings.sandboxed)
    lives = [sources.lasts(one) for one in wanted if one[0] == sources.TOKEN]
    if lives and charge.refreshing is None:
        charge.refreshing = asyncio.get_running_loop().create_task(_refresh(charge, min(lives)))
    try:
        return await _fetch(charge, wanted) if wanted else {}
    except UnavailableError:
        if wanted <= charge.sources.keys():
            return charge.sources  # a container that is restarted meanwhile has what it had
        raise


async def _fetch(charge: Charge, wanted: set[sources.Source]) -> sources.Sources:
    found = await sources.fetch(charge.means, charge.pod, wanted)
    charge.sources.update(found)
    return found


async def _refresh(charge: Charge, seconds: float) -> None:
    """Tokens run out: the files that they are in are written anew, as a kubelet does."""
    wait = pause = seconds * charge.means.settings.pace.refresh
    while True:
        await asyncio.sleep(wait)
        wait = pause / _SOONER
        with contextlib.suppress(Unconfigured, OSError, ApiError):  # the old one is good for a while
            found = await _fetch(charge, sources.renewable(charge.pod))
            await asyncio.to_thread(volumes.renew, _room(charge, found))
            wait = pause


def _log(charge: Charge, container: Container) -> str:
    """Where its log goes; the supervisor makes the folder."""
    container.log = charge.log_of(container, container.seen.restarts)
    return container.log


async def _mounts(
    charge: Charge, container: Container, found: sources.Sources, variables: dict[str, str]
) -> list[Mount]:
    made: list[Mount] = []
    if container.body.get("volumeMounts"):
        made = await _mounted(charge, container, found, variables)
    if charge.means.settings.sandboxed:
        target = str(container.body.get("terminationMessagePath") or messages.DEFAULT_PATH)
        container.message = f"{charge.folder}/message-{container.seen.name}-{container.seen.restarts}"
        os.close(os.open(container.message, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        made.append({"source": container.message, "target": target})
    return made


async def _mounted(
    charge: Charge, container: Container, found: sources.Sources, variables: dict[str, str]
) -> list[Mount]:
    return await asyncio.to_thread(volumes.mounts, _room(charge, found), container.body, container.path, variables)


def _room(charge: Charge, found: sources.Sources) -> volumes.Room:
    settings = charge.means.settings
    claims = f"{settings.volumes}/{charge.key.namespace}"
    return volumes.Room(charge.pod, charge.folder, claims, settings.sandboxed, found, charge.facts)


def _limits(body: Body) -> Limits:
    limits = (body.get("resources") or {}).get("limits")
    if not limits:
        return {}
    memory, cpu = quantity(limits.get("memory")), quantity(limits.get("cpu"))
    found: Limits = {}
    if memory:
        found["memory"] = int(memory)
    if cpu:
        found["cpu"] = float(cpu)
    return found


def _launch(charge: Charge, container: Container, request: StartContainer) -> None:
    """Nobody waits for the answer here: it is the container's, also when its worker has been told to end meanwhile."""
    link = charge.means.link
    container.launch(request["container"], charge.means.clock.now())
    link.follow(container.id, partial(charge.finished, container))
    answer = link.start(request)
    answer.add_done_callback(partial(_answered, charge, container))


def _answered(charge: Charge, container: Container, answer: asyncio.Future[Started]) -> None:
    refusal = answer.exception()
    if isinstance(refusal, Lost):
        return  # the agent tells all its workers
    if isinstance(refusal, Refused):
        charge.means.link.unfollow(container.id)
        code = refusal.code or 128
        reason = "ContainerCannotRun" if code in _CANNOT_RUN else "StartError"
        container.end(End(code=code, at=charge.means.clock.now().timestamp()), reason, str(refusal))
    container.begin()
    charge.mark()
