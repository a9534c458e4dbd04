# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a pod and its containers. The functions are in the order in which the life of a pod needs them.

A container that cannot be configured waits, and the agent tries again to start it. A container whose program cannot run
counts as ended, with the exit code of a shell (126 or 127). The steps of a stop are: preStop hook, SIGTERM, grace
period, SIGKILL.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Literal

from trainwright.errors import ApiError, ConflictError, EngineError, NotFoundError, UnavailableError
from trainwright.model.job import Body
from trainwright.model.meta import ADDRESS, Key
from trainwright.model.units import quantity
from trainwright.node import environment, logs, sources, volumes
from trainwright.node.found import ContainerEnd
from trainwright.node.link import SupervisorLost, SupervisorRefused
from trainwright.node.pod import DEFAULT_MESSAGE_PATH, ContainerRecord, PodState, loop_time
from trainwright.node.sources import CONFIG_ERROR, CREATE_ERROR, ContainerConfigError
from trainwright.node.supervisor.protocol import Limits, Mount, OpenPod, StartContainer, Started
from trainwright.runtime.ports import PODS

_IMAGE_NOT_USED = "image is not used by the {} runtime: commands run with this machine's programs"
#: The size of the empty folder that hides the folder of the engine: one page.
_HIDDEN_BYTES = 4096
_SIDECAR = "Always is not supported: an init container must end before the next one begins"
_HOOK_NOT_SUPPORTED = "{}: only exec and sleep hooks are run on this node"
#: Fields of a pod that have no effect on this node.
_IGNORED_FIELDS = ("hostAliases", "securityContext", "dnsConfig")
#: Exit codes, as in a shell, if a program cannot be executed (126) or is not found (127).
_CANNOT_RUN_CODES = (126, 127)
#: The exit code, as in a container runtime, if a container cannot be started for another reason.
_START_ERROR_CODE = 128
#: After a failed renewal of tokens, the agent waits for the usual interval divided by this number.
_RETRY_DIVISOR = 10


class _DevicesBusyError(Exception):
    """Another pod of this node still has the devices."""


async def start_container(pod: PodState, container: ContainerRecord) -> None:
    """Ask the supervisor to start a container, as soon as the container can be configured.

    Returns when the request is sent. The events `start_answered` and `ended` of the container tell what happens next.
    """
    context = pod.context
    while True:
        try:
            if not pod.opened:
                await _open_pod(pod)
            request = await _start_request(pod, container)
            if request["leases"]:
                await context.link.leased({"devices": request["leases"]})
            break
        except SupervisorLost:
            raise
        except _DevicesBusyError as problem:
            if container.set_waiting(CONFIG_ERROR, f"spec.containers: {problem}"):
                pod.mark_changed()
            await context.devices.wait_freed(context.settings.delays.config_retry)
        except ContainerConfigError as problem:
            await _wait_before_retry(pod, container, CONFIG_ERROR, problem)
        except (EngineError, OSError, ApiError) as problem:
            await _wait_before_retry(pod, container, CREATE_ERROR, problem)
    # Do not wait for the answer here. A callback handles the answer, even if the worker is cancelled meanwhile.
    container.set_starting(request["container"], context.clock.now())
    context.link.on_ended[container.id] = partial(pod.container_ended, container)
    context.link.start(request).add_done_callback(partial(_start_answered, pod, container))


async def _open_pod(pod: PodState) -> None:
    """Take the pod's devices, and let the supervisor create what the containers share: network, folder, /tmp."""
    context, spec = pod.context, pod.body["spec"]
    ignored = [f"spec.{field}" for field in _IGNORED_FIELDS if spec.get(field)]
    if ignored:
        context.notices.send_once(f"{', '.join(ignored)}: ignored on this node", f"fields of {pod.job}")
    if context.devices.by_resource:
        devices = context.devices.take(pod.uid, pod.body)
        if devices is None:
            wanted = context.devices.describe_request(spec)
            raise _DevicesBusyError(f"the requested devices ({wanted}) are not free on this node")
        pod.devices = devices
    request = await _open_request(pod)
    pod.opened = True  # set before the request, so that a worker that is cancelled during the request closes the pod
    try:
        await context.link.open(request)
    except SupervisorRefused:
        pod.opened = False
        raise


async def _open_request(pod: PodState) -> OpenPod:
    context, settings = pod.context, pod.context.settings
    if context.addresses is not None and pod.has_own_network and not pod.assigned_address:
        pod.assigned_address = context.addresses.take()
    network: Literal["own", "host"] = "own" if pod.has_own_network else "host"
    request: OpenPod = {"pod": pod.uid, "host": pod.hostname, "address": pod.address, "network": network}
    if not settings.sandboxed:
        return request
    annotations = pod.body["metadata"].get("annotations") or {}
    if pod.has_own_network and context.addresses is None and ADDRESS not in annotations:
        raise ContainerConfigError(
            f'metadata.annotations["{ADDRESS}"]', "missing; no address was reserved for this pod"
        )
    pod.has_folder = True
    given = pod.submission()
    return {
        **request,
        "hosts": await context.hosts.file_for(pod.body, pod.assigned_address) if context.hosts is not None else None,
        "tmp": f"{pod.folder}/tmp",  # noqa: S108 - the pod's own
        "shm": volumes.shared_memory_size(pod.body),
        "keep": [given.cwd, *given.visible],
    }


async def _wait_before_retry(pod: PodState, container: ContainerRecord, reason: str, problem: Exception) -> None:
    """Show the problem in the status, then wait until a ConfigMap changes or the retry delay has passed."""
    context = pod.context
    if isinstance(problem, ContainerConfigError) and problem.kind and not context.settings.kubelet:
        with contextlib.suppress(ApiError):
            await sources.add_suggestion(context.cluster, pod.key.namespace, problem)
    if container.set_waiting(reason, str(problem)):
        pod.mark_changed()
    known = _config_map_versions(pod, container) if reason == CONFIG_ERROR else {}
    await context.config_maps.wait_changed(known, context.settings.delays.config_retry)


def _config_map_versions(pod: PodState, container: ContainerRecord) -> dict[Key, int]:
    """The versions of the ConfigMaps that the container refers to; 0 for a ConfigMap that does not exist."""
    wanted = sources.referenced_by(pod.body, container.body, mounts=pod.context.settings.sandboxed)
    found = {name: pod.sources.get((kind, name)) for kind, name in wanted if kind == sources.CONFIG_MAP}
    return {
        Key(pod.key.namespace, name): int(body["metadata"].get("resourceVersion") or 0) if body else 0
        for name, body in found.items()
    }


async def _start_request(pod: PodState, container: ContainerRecord) -> StartContainer:
    body, context, settings = container.body, pod.context, pod.context.settings
    if container.init and body.get("restartPolicy") == "Always":
        raise ContainerConfigError(f"{container.path}.restartPolicy", _SIDECAR)
    found = await _fetch_sources(pod, container)
    given = pod.submission()
    subject = environment.EnvironmentInput(pod.body, body, container.path, pod.facts, found, given.env)
    variables = environment.variables(subject)
    argv = environment.command(subject, variables)
    env = {**given.passed, "HOSTNAME": pod.hostname}
    if context.devices.by_resource:
        env |= context.devices.variables(pod.body["spec"], container.index, pod.devices, init=container.init)
    if body.get("image"):
        context.notices.send_once(_IMAGE_NOT_USED.format(settings.runtime))
    container.log = pod.log_path(container, container.view.restarts)
    mounts = await _mounts(pod, container, found, variables)
    request: StartContainer = {
        "pod": pod.uid,
        "container": f"{pod.uid}-{container.view.name}-{container.view.restarts}",
        "argv": argv,
        "env": env | variables,
        "cwd": body.get("workingDir") or given.cwd,
        "log": container.log,
        "mounts": mounts,
        "limits": _limits(body),
        "leases": context.devices.leases(pod.body, pod.devices),
    }
    if settings.orphans == "keep":  # for the next agent, see `restored`
        request["name"], request["restart"] = container.view.name, container.view.restarts
        request["message"] = container.message_file
    return request


async def _fetch_sources(pod: PodState, container: ContainerRecord) -> sources.Sources:
    """Get the objects and tokens that the container refers to, and begin to renew its tokens."""
    wanted = sources.referenced_by(pod.body, container.body, mounts=pod.context.settings.sandboxed)
    lifetimes = [sources.token_seconds(one) for one in wanted if one[0] == sources.TOKEN]
    if lifetimes and pod.token_refresh is None:
        pod.token_refresh = asyncio.get_running_loop().create_task(_refresh_tokens(pod, min(lifetimes)))
    try:
        return await _fetch(pod, wanted) if wanted else {}
    except UnavailableError:
        if wanted <= pod.sources.keys():
            return pod.sources  # a container that restarts during an outage of the API uses its old objects
        raise


async def _fetch(pod: PodState, wanted: set[sources.Source]) -> sources.Sources:
    found = await sources.fetch(pod.context, pod.body, wanted)
    pod.sources.update(found)
    return found


async def _refresh_tokens(pod: PodState, lifetime: float) -> None:
    """Renew the token files of a pod before the tokens expire, as a kubelet does. `lifetime` is in seconds."""
    wait = interval = lifetime * pod.context.settings.delays.token_refresh_share
    while True:
        await asyncio.sleep(wait)
        wait = interval / _RETRY_DIVISOR
        with contextlib.suppress(ContainerConfigError, OSError, ApiError):  # retry later: the old token is still valid
            found = await _fetch(pod, sources.in_projected_volumes(pod.body))
            await asyncio.to_thread(volumes.rewrite_projected, _volume_input(pod, found))
            wait = interval


async def _mounts(
    pod: PodState, container: ContainerRecord, found: sources.Sources, variables: dict[str, str]
) -> list[Mount]:
    mounts: list[Mount] = []
    if container.body.get("volumeMounts"):
        subject = _volume_input(pod, found)
        mounts = await asyncio.to_thread(volumes.mounts, subject, container.body, container.path, variables)
    if pod.context.settings.sandboxed:
        target = str(container.body.get("terminationMessagePath") or DEFAULT_MESSAGE_PATH)
        container.message_file = f"{pod.folder}/message-{container.view.name}-{container.view.restarts}"
        os.close(os.open(container.message_file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        mounts.append({"source": container.message_file, "target": target})
    if pod.context.settings.sandboxed and pod.context.settings.orphans == "keep":
        # The folder of a background engine has the tokens of its API and all Secrets: pods see an empty folder.
        hidden: Mount = {
            "target": pod.context.settings.folder,
            "source": None,
            "tmpfs": _HIDDEN_BYTES,
            "readonly": True,
        }
        mounts.append(hidden)
    return mounts


def _volume_input(pod: PodState, found: sources.Sources) -> volumes.VolumeInput:
    settings = pod.context.settings
    claims = f"{settings.volumes}/{pod.key.namespace}"
    return volumes.VolumeInput(pod.body, pod.folder, claims, settings.sandboxed, found, pod.facts)


def _limits(body: Body) -> Limits:
    limits = (body.get("resources") or {}).get("limits") or {}
    found: Limits = {}
    if memory := quantity(limits.get("memory")):
        found["memory"] = int(memory)
    if cpu := quantity(limits.get("cpu")):
        found["cpu"] = float(cpu)
    return found


def _start_answered(pod: PodState, container: ContainerRecord, answer: asyncio.Future[Started]) -> None:
    refusal = answer.exception()
    if isinstance(refusal, SupervisorLost):
        return  # `Agent._supervisor_lost` tells all workers about the loss
    if isinstance(refusal, SupervisorRefused):
        pod.context.link.on_ended.pop(container.id, None)
        code = refusal.code or _START_ERROR_CODE
        reason = "ContainerCannotRun" if code in _CANNOT_RUN_CODES else "StartError"
        end = ContainerEnd(code=code, at=pod.context.clock.now().timestamp())
        container.set_terminated(end, reason, str(refusal))
    container.set_start_answered()
    pod.mark_changed()


async def stop_container(pod: PodState, container: ContainerRecord, deadline: float) -> None:
    """Run the preStop hook, send SIGTERM, and kill the container at the deadline. Returns after its end."""
    link, min_grace, notes = pod.context.link, pod.context.settings.delays.min_grace, container.notes
    if "stop_by" in notes:  # an earlier agent has sent the signal
        container.kill_at(deadline, link)
        await container.ended.wait()
        return
    hook = None if notes.get("pre_stop") else (container.body.get("lifecycle") or {}).get("preStop")
    if hook and loop_time() < deadline:
        container.kill_at(deadline + min_grace, link)
        pod.note(container, {"pre_stop": True})
        await run_hook(pod, container, hook, f"{container.path}.lifecycle.preStop", deadline - loop_time())
        deadline = max(deadline, loop_time() + min_grace)
    if not container.live:
        return
    if pod.kill_time is not None:  # `kill_time` may have become earlier while the hook ran
        deadline = min(deadline, max(pod.kill_time, loop_time() + (min_grace if hook else 0)))
    container.kill_at(deadline, link)
    if loop_time() < deadline:
        name = str((container.body.get("lifecycle") or {}).get("stopSignal"))
        number = signal.Signals.__members__.get(name, signal.SIGTERM)
        stop_by = pod.context.clock.now().timestamp() + deadline - loop_time()
        pod.note(container, {"stop_by": stop_by, "stop_message": container.stop_message})
        link.signal({"container": container.id, "signal": int(number)})
    await container.ended.wait()


async def run_hook(pod: PodState, container: ContainerRecord, hook: Body, path: str, timeout: float) -> str:
    """Run a hook for at most `timeout` seconds. Returns the error as a text; empty: no error."""
    match hook:
        case {"exec": {"command": [*argv]}}:
            try:
                answer = await pod.context.link.exec({"container": container.id, "argv": argv, "timeout": timeout})
            except SupervisorRefused as refusal:
                return str(refusal)
            if answer["timeout"]:
                return f"it did not end within {timeout:.0f} s"
            return f"it exited with {answer['code']}: {answer['output']}" if answer["code"] else ""
        case {"sleep": {"seconds": seconds}}:
            await asyncio.sleep(min(float(seconds), timeout))
        case _:
            pod.context.notices.send_once(_HOOK_NOT_SUPPORTED.format(path), f"hooks of {pod.job}")
    return ""


def release_resources(pod: PodState) -> None:
    """Close the pod in the supervisor and return its devices and its address. All its containers must have ended.

    This function need not wait for the supervisor, because the supervisor handles requests in the order of arrival.
    """
    context = pod.context
    if pod.opened:
        pod.opened = False
        context.link.close_pod({"pod": pod.uid})
    if pod.devices:
        context.devices.free(pod.uid)
    if pod.assigned_address and context.addresses is not None:
        context.addresses.put(pod.assigned_address)
        if context.hosts is not None:
            context.hosts.assigned.pop(pod.uid, None)
    if pod.token_refresh is not None:
        pod.token_refresh.cancel()


def forget_ends(pod: PodState, *containers: ContainerRecord) -> None:
    """Allow the supervisor to forget how these containers ended, because the agent no longer needs this information."""
    for container in containers:
        if container.id:
            pod.context.link.forget({"container": container.id})


def forget_restarted(pod: PodState, container: ContainerRecord) -> None:
    """Like `forget_ends`, for a container that is about to restart.

    If the supervisor outlives the agent, the end must be stored first: only the supervisor could tell the next agent.
    """
    if pod.context.settings.orphans != "keep":
        forget_ends(pod, container)
    elif container.id:
        pod.report.on_stored.append(partial(pod.context.link.forget, {"container": container.id}))


async def delete_object(pod: PodState) -> None:
    """Delete the pod object without a grace period, since none of its containers runs any more."""
    context = pod.context
    if context.reports.closing and not context.settings.kubelet:
        return  # no need to delete: all objects end with the embedded engine

    async def delete() -> None:
        with contextlib.suppress(NotFoundError, ConflictError):
            await context.cluster.delete(PODS.whole(), pod.key, uid=pod.uid, grace=0)

    try:
        if not pod.report.gone:
            await context.reports.retry(delete, f"pod {pod.key}: the API server forbids its deletion")
    except ApiError as error:
        context.notices.send_once(f"pod {pod.key}: it cannot be deleted: {error}")


async def remove_files(pod: PodState) -> None:
    """Remove the files of a pod whose object is gone, unless the settings say to keep them."""
    settings = pod.context.settings
    if pod.has_folder and not settings.keep:
        await asyncio.to_thread(shutil.rmtree, pod.folder, ignore_errors=True)
    if settings.kubelet and not settings.keep:  # without the object, `kubectl logs` cannot show the logs
        await asyncio.to_thread(logs.remove_logs, Path(settings.folder), pod.key.name, pod.uid)
