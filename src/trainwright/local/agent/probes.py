# SPDX-License-Identifier: Apache-2.0
"""Looking after a running container: its postStart hook, then its startup, readiness and liveness probes.

`worker` runs `attend` beside a container that has any, until it ends. Only exec probes are run; others count as passed,
and one notice per job says so.
"""

import asyncio

from trainwright.local.agent import stop
from trainwright.local.agent.charge import Charge, loop_time
from trainwright.local.agent.container import Container
from trainwright.local.agent.link import Refused
from trainwright.model.job import Body

_UNHEEDED = "{}: only exec probes are run on this node; others count as passed"
_SECONDS = {"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1}


async def attend(charge: Charge, container: Container) -> None:
    """From the moment it runs: hook, startup, then readiness and liveness side by side."""
    if container.begun is not None:
        await container.begun
    if not container.live:
        return
    hook = (container.body.get("lifecycle") or {}).get("postStart")
    if hook:
        wrong = await stop.run_hook(charge, container, hook, f"{container.path}.lifecycle.postStart", charge.grace)
        if wrong:
            await _kill(charge, container, f"its postStart hook failed: {wrong}", charge.grace)
            return
    if not await _startup(charge, container):
        return
    container.seen.started = True
    container.seen.ready = _probe(charge, container, "readinessProbe") is None
    charge.mark()
    await asyncio.gather(_readiness(charge, container), _liveness(charge, container))


def _probe(charge: Charge, container: Container, word: str) -> Body | None:
    """The probe, if it is one that can be run."""
    probe: Body | None = container.body.get(word)
    if probe and not probe.get("exec"):
        charge.means.notices.once(_UNHEEDED.format(f"{container.path}.{word}"), f"probes of {charge.job}")
        return None
    return probe or None


async def _startup(charge: Charge, container: Container) -> bool:
    """Whether it has come up."""
    probe = _probe(charge, container, "startupProbe")
    if probe is None:
        return True
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    failures = 0
    while wrong := await _try(charge, container, probe):
        failures += 1
        if failures >= (probe.get("failureThreshold") or 3):
            await _kill(charge, container, f"its startup probe failed: {wrong}", _grace(charge, probe))
            return False
        await asyncio.sleep(_seconds(probe, "periodSeconds"))
    return True


async def _readiness(charge: Charge, container: Container) -> None:
    """Follow the readiness probe up and down."""
    probe = _probe(charge, container, "readinessProbe")
    if probe is None:
        return
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    least = {True: probe.get("successThreshold") or 1, False: probe.get("failureThreshold") or 3}
    told, times = container.seen.ready, 0
    while container.live:
        passed = not await _try(charge, container, probe)
        times = times + 1 if passed == told else 1
        told = passed
        if times >= least[passed] and container.live and container.seen.ready != passed:
            container.seen.ready = passed
            charge.mark()
        await asyncio.sleep(_seconds(probe, "periodSeconds"))


async def _liveness(charge: Charge, container: Container) -> None:
    """End the container once its liveness probe has failed often enough."""
    probe = _probe(charge, container, "livenessProbe")
    if probe is None:
        return
    await asyncio.sleep(_seconds(probe, "initialDelaySeconds"))
    failures = 0
    while container.live:
        wrong = await _try(charge, container, probe)
        failures = failures + 1 if wrong else 0
        if failures >= (probe.get("failureThreshold") or 3):
            await _kill(charge, container, f"its liveness probe failed: {wrong}", _grace(charge, probe))
            return
        await asyncio.sleep(_seconds(probe, "periodSeconds"))


async def _try(charge: Charge, container: Container, probe: Body) -> str:
    """Run the probe's command once; what went wrong, or nothing."""
    argv, timeout = probe["exec"].get("command") or [], _seconds(probe, "timeoutSeconds")
    try:
        answer = await charge.means.link.exec({"container": container.id, "argv": argv, "timeout": timeout})
    except Refused as refusal:
        return str(refusal)
    if answer["timeout"]:
        return f"no answer within {timeout:g} s"
    return f"exit code {answer['code']}: {answer['output'].strip()}" if answer["code"] else ""


async def _kill(charge: Charge, container: Container, why: str, grace: float) -> None:
    container.why = why
    await stop.halt(charge, container, loop_time() + grace)


def _grace(charge: Charge, probe: Body) -> float:
    own = probe.get("terminationGracePeriodSeconds")
    return charge.grace if own is None else float(own)


def _seconds(probe: Body, word: str) -> float:
    return float(probe.get(word) or _SECONDS[word])
