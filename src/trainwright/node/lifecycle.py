# SPDX-License-Identifier: Apache-2.0
"""Starting things: a pod's surroundings (`enter`), then its containers (`start`). `worker` calls both.

What cannot be configured waits and is tried again; a program that cannot be run has ended, with the code a shell has
for that.

Ending things: hooks, SIGTERM, the grace period, SIGKILL (`halt` one container, `stop` all), then what is left.

`worker` calls it when its pod is deleted or overdue, `probes` when a container does not live up to its probe.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from functools import partial
from pathlib import Path

from trainwright.errors import ApiError, ConflictError, EngineError, ForbiddenError, NotFoundError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, Key
from trainwright.model.units import quantity
from trainwright.node import environment, logs, pod, sources, volumes
from trainwright.node.context import PASSING
from trainwright.node.link import ContainerEnd, SupervisorLost, SupervisorRefused
from trainwright.node.pod import ContainerRecord, PodState, loop_time
from trainwright.node.sources import CONFIG, CREATE, Unconfigured
from trainwright.node.supervisor.protocol import Limits, Mount, OpenPod, StartContainer, Started
from trainwright.runtime.ports import PODS

_IMAGE = "image is not used by the {} runtime: commands run with this machine's programs"
_SIDECAR = "Always is not supported: an init container must end before the next one begins"
_CANNOT_RUN = (126, 127)
#: A token that could not be renewed is tried again in such a part of the time.
_SOONER = 10
#: What a pod may expect to have an effect, and has none.
_UNHEEDED = ("hostAliases", "securityContext", "dnsConfig")


class _Occupied(Exception):  # noqa: N818 - a state, not a defect of ours
    """Another pod of this node still has the devices."""


async def enter(charge: PodState) -> None:
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
    except SupervisorRefused:
        charge.opened = False
        raise


async def _surroundings(charge: PodState) -> OpenPod:
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


async def start(charge: PodState, container: ContainerRecord) -> None:
    """Have it started, however long it takes until it can be: the container's `begun` and `over` tell the rest."""
    while True:
        try:
            if not charge.opened:
                await enter(charge)
            request = await _request(charge, container)
            if request["leases"]:
                await charge.means.link.leased({"devices": request["leases"]})
            break
        except SupervisorLost:
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


async def _wait(charge: PodState, container: ContainerRecord, reason: str, problem: Exception) -> None:
    if isinstance(problem, Unconfigured) and problem.kind and not charge.means.settings.kubelet:
        with contextlib.suppress(ApiError):
            await sources.advise(charge.means.cluster, charge.key.namespace, problem)
    if container.wait(reason, str(problem)):
        charge.mark()
    known = _versions(charge, container) if reason == CONFIG else {}
    await charge.means.awaited.change(known, charge.means.settings.pace.retry)


def _versions(charge: PodState, container: ContainerRecord) -> dict[Key, int]:
    """The ConfigMaps that it needs, and what it has found of each."""
    wanted = sources.named(charge.pod, container.body, mounts=charge.means.settings.sandboxed)
    found = {name: charge.sources.get((kind, name)) for kind, name in wanted if kind == sources.CONFIG_MAP}
    return {
        Key(charge.key.namespace, name): int(body["metadata"].get("resourceVersion") or 0) if body else 0
        for name, body in found.items()
    }


async def _request(charge: PodState, container: ContainerRecord) -> StartContainer:
    """What the supervisor is told about a container."""
    body, settings = container.body, charge.means.settings
    if container.init and body.get("restartPolicy") == "Always":
        raise Unconfigured(f"{container.path}.restartPolicy", _SIDECAR)
    found = await _sources(charge, container)
    subject = environment.EnvironmentInput(charge.pod, body, container.path, charge.facts, found, settings.env)
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


async def _sources(charge: PodState, container: ContainerRecord) -> sources.Sources:
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


async def _fetch(charge: PodState, wanted: set[sources.Source]) -> sources.Sources:
    found = await sources.fetch(charge.means, charge.pod, wanted)
    charge.sources.update(found)
    return found


async def _refresh(charge: PodState, seconds: float) -> None:
    """Tokens run out: the files that they are in are written anew, as a kubelet does."""
    wait = pause = seconds * charge.means.settings.pace.refresh
    while True:
        await asyncio.sleep(wait)
        wait = pause / _SOONER
        with contextlib.suppress(Unconfigured, OSError, ApiError):  # the old one is good for a while
            found = await _fetch(charge, sources.renewable(charge.pod))
            await asyncio.to_thread(volumes.renew, _room(charge, found))
            wait = pause


def _log(charge: PodState, container: ContainerRecord) -> str:
    """Where its log goes; the supervisor makes the folder."""
    container.log = charge.log_of(container, container.seen.restarts)
    return container.log


async def _mounts(
    charge: PodState, container: ContainerRecord, found: sources.Sources, variables: dict[str, str]
) -> list[Mount]:
    made: list[Mount] = []
    if container.body.get("volumeMounts"):
        made = await _mounted(charge, container, found, variables)
    if charge.means.settings.sandboxed:
        target = str(container.body.get("terminationMessagePath") or pod.DEFAULT_MESSAGE_PATH)
        container.message = f"{charge.folder}/message-{container.seen.name}-{container.seen.restarts}"
        os.close(os.open(container.message, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        made.append({"source": container.message, "target": target})
    return made


async def _mounted(
    charge: PodState, container: ContainerRecord, found: sources.Sources, variables: dict[str, str]
) -> list[Mount]:
    return await asyncio.to_thread(volumes.mounts, _room(charge, found), container.body, container.path, variables)


def _room(charge: PodState, found: sources.Sources) -> volumes.VolumeInput:
    settings = charge.means.settings
    claims = f"{settings.volumes}/{charge.key.namespace}"
    return volumes.VolumeInput(charge.pod, charge.folder, claims, settings.sandboxed, found, charge.facts)


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


def _launch(charge: PodState, container: ContainerRecord, request: StartContainer) -> None:
    """Nobody waits for the answer here: it is the container's, also when its worker has been told to end meanwhile."""
    link = charge.means.link
    container.launch(request["container"], charge.means.clock.now())
    link.follow(container.id, partial(charge.finished, container))
    answer = link.start(request)
    answer.add_done_callback(partial(_answered, charge, container))


def _answered(charge: PodState, container: ContainerRecord, answer: asyncio.Future[Started]) -> None:
    refusal = answer.exception()
    if isinstance(refusal, SupervisorLost):
        return  # the agent tells all its workers
    if isinstance(refusal, SupervisorRefused):
        charge.means.link.unfollow(container.id)
        code = refusal.code or 128
        reason = "ContainerCannotRun" if code in _CANNOT_RUN else "StartError"
        container.end(ContainerEnd(code=code, at=charge.means.clock.now().timestamp()), reason, str(refusal))
    container.begin()
    charge.mark()


_HOOK_UNHEEDED = "{}: only exec and sleep hooks are run on this node"


async def stop(charge: PodState) -> None:
    """Stop all containers; `charge.due` is when those that still live are killed."""
    due = charge.due if charge.due is not None else loop_time()
    await asyncio.gather(*(halt(charge, one, due) for one in charge.containers if one.live))


async def halt(charge: PodState, container: ContainerRecord, due: float) -> None:
    """Ask a container to end, and see to it that it has ended then."""
    link, pace = charge.means.link, charge.means.settings.pace
    hook = (container.body.get("lifecycle") or {}).get("preStop")
    if hook and loop_time() < due:
        container.kill_at(due + pace.least_grace, link)
        await run_hook(charge, container, hook, f"{container.path}.lifecycle.preStop", due - loop_time())
        due = max(due, loop_time() + pace.least_grace)
    if not container.live:
        return
    if charge.due is not None:
        due = min(due, max(charge.due, loop_time() + (pace.least_grace if hook else 0)))
    container.kill_at(due, link)
    if loop_time() < due:
        link.signal({"container": container.id, "signal": _signal(container.body)})
    await container.over()


async def run_hook(charge: PodState, container: ContainerRecord, hook: Body, path: str, patience: float) -> str:
    """Run a hook for so long at most; what went wrong, if anything."""
    match hook:
        case {"exec": {"command": [*argv]}}:
            call = charge.means.link.exec({"container": container.id, "argv": argv, "timeout": patience})
            try:
                answer = await call
            except SupervisorRefused as refusal:
                return str(refusal)
            if answer["timeout"]:
                return f"it did not end within {patience:.0f} s"
            return f"it exited with {answer['code']}: {answer['output']}" if answer["code"] else ""
        case {"sleep": {"seconds": seconds}}:
            await asyncio.sleep(min(float(seconds), patience))
        case _:
            charge.means.notices.once(_HOOK_UNHEEDED.format(path), f"hooks of {charge.job}")
    return ""


def _signal(body: Body) -> int:
    """SIGTERM, or what the container asks for instead."""
    name = (body.get("lifecycle") or {}).get("stopSignal")
    return int(signal.Signals.__members__.get(str(name), signal.SIGTERM))


def close(charge: PodState) -> None:
    """Give back what the pod held, once none of its containers runs. Requests are met in order: nobody need wait."""
    link = charge.means.link
    if charge.opened:
        charge.opened = False
        link.close_pod({"pod": charge.uid})
    if charge.held:
        charge.means.devices.free(charge.uid)
    if charge.given and charge.means.pool is not None:
        charge.means.pool.put(charge.given)
        if charge.means.hosts is not None:
            charge.means.hosts.left(charge.uid)
    if charge.refreshing is not None:
        charge.refreshing.cancel()


def forget(charge: PodState, *containers: ContainerRecord) -> None:
    """Their ends are known: the supervisor need not remember them."""
    for container in containers:
        if container.id:
            charge.means.link.forget({"container": container.id})


async def remove(charge: PodState) -> None:
    """Tell the API that the pod may go: nothing of it runs any more."""
    settings, reports = charge.means.settings, charge.means.reports
    pace = settings.pace
    wait = pace.unavailable
    if reports.closing and not settings.kubelet:
        return  # the engine goes, and all objects with it
    while not charge.report.gone:
        try:
            await charge.means.cluster.delete(PODS.whole(), charge.key, uid=charge.uid, grace=0)
        except (NotFoundError, ConflictError):
            return
        except PASSING as error:
            if isinstance(error, ForbiddenError):
                charge.means.notices.once(f"pod {charge.key}: it may not be removed, and is tried again: {error}")
            if reports.closing:
                return
            await asyncio.sleep(error.retry_after or wait)
            wait = min(2 * wait, pace.patience)
        except ApiError as error:
            charge.means.notices.once(f"pod {charge.key}: it cannot be removed: {error}")
            return
        else:
            return


async def clear(charge: PodState) -> None:
    """Remove the pod's files, where they are not to be kept."""
    settings = charge.means.settings
    if charge.housed and not settings.keep:
        await asyncio.to_thread(shutil.rmtree, charge.folder, ignore_errors=True)
    if settings.kubelet and not settings.keep:  # nobody can ask for its logs any more
        await asyncio.to_thread(logs.remove_logs, Path(settings.folder), charge.key.name, charge.uid)
