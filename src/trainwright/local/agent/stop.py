# SPDX-License-Identifier: Apache-2.0
"""Ending things: hooks, SIGTERM, the grace period, SIGKILL (`halt` one container, `stop` all), then what is left.

`worker` calls it when its pod is deleted or overdue, `probes` when a container does not live up to its probe.
"""

import asyncio
import shutil
import signal
from pathlib import Path

from trainwright.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from trainwright.local.agent import tidy
from trainwright.local.agent.charge import Charge, loop_time
from trainwright.local.agent.container import Container
from trainwright.local.agent.link import Refused
from trainwright.local.agent.report import PASSING
from trainwright.model.job import Body
from trainwright.runtime.resources import PODS

_UNHEEDED = "{}: only exec and sleep hooks are run on this node"


async def stop(charge: Charge) -> None:
    """Stop all containers; `charge.due` is when those that still live are killed."""
    due = charge.due if charge.due is not None else loop_time()
    await asyncio.gather(*(halt(charge, one, due) for one in charge.containers if one.live))


async def halt(charge: Charge, container: Container, due: float) -> None:
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


async def run_hook(charge: Charge, container: Container, hook: Body, path: str, patience: float) -> str:
    """Run a hook for so long at most; what went wrong, if anything."""
    match hook:
        case {"exec": {"command": [*argv]}}:
            call = charge.means.link.exec({"container": container.id, "argv": argv, "timeout": patience})
            try:
                answer = await call
            except Refused as refusal:
                return str(refusal)
            if answer["timeout"]:
                return f"it did not end within {patience:.0f} s"
            return f"it exited with {answer['code']}: {answer['output']}" if answer["code"] else ""
        case {"sleep": {"seconds": seconds}}:
            await asyncio.sleep(min(float(seconds), patience))
        case _:
            charge.means.notices.once(_UNHEEDED.format(path), f"hooks of {charge.job}")
    return ""


def _signal(body: Body) -> int:
    """SIGTERM, or what the container asks for instead."""
    name = (body.get("lifecycle") or {}).get("stopSignal")
    return int(signal.Signals.__members__.get(str(name), signal.SIGTERM))


def close(charge: Charge) -> None:
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


def forget(charge: Charge, *containers: Container) -> None:
    """Their ends are known: the supervisor need not remember them."""
    for container in containers:
        if container.id:
            charge.means.link.forget({"container": container.id})


async def remove(charge: Charge) -> None:
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


async def clear(charge: Charge) -> None:
    """Remove the pod's files, where they are not to be kept."""
    settings = charge.means.settings
    if charge.housed and not settings.keep:
        await asyncio.to_thread(shutil.rmtree, charge.folder, ignore_errors=True)
    if settings.kubelet and not settings.keep:  # nobody can ask for its logs any more
        await asyncio.to_thread(tidy.forget, Path(settings.folder), charge.key.name, charge.uid)
