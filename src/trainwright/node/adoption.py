# SPDX-License-Identifier: Apache-2.0
"""How an agent gets its supervisor if supervisors outlive their agents: it attaches to a living one, or starts one.

Only the agent that holds the lock of the folder does either. A supervisor that does not answer is fenced. If there is
no living supervisor, the processes that the last one left are killed, and its journal is kept as `journal.old` until
the statuses of all pods are stored: the new supervisor begins an empty journal, and the agent may be killed meanwhile.

A supervisor of another version may speak another protocol. It cannot be commanded, so it is drained: its containers run
to their end, which its journal tells; then a new supervisor takes its place.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from trainwright.errors import EngineError
from trainwright.jsonlines import SUPERVISOR_PROTOCOL, encode
from trainwright.node.found import FoundContainer, LossCause
from trainwright.node.link import SupervisorLink
from trainwright.node.node_object import AgentNode
from trainwright.node.supervisor import identity, journal, tree
from trainwright.node.supervisor.protocol import Config, Identity, JournalEntry
from trainwright.node.supervisor_process import SupervisorProcess
from trainwright.node.watchdog import OnStuck, fence, kill_containers, unkillable

#: Seconds until an agent gives up to get the lock, or to reach a supervisor that lives: both may just be starting.
_PATIENCE_SECONDS = 15.0
_RETRY_SECONDS = 0.02
#: Seconds between two looks at the journal of a supervisor that is drained.
_DRAIN_POLL_SECONDS = 0.5
#: A supervisor that was stopped (SIGSTOP) cannot answer; after this many seconds it is not waited for any longer.
_STOPPED, _STOPPED_SECONDS = "T", 3.0
_JOURNAL, _OLD_JOURNAL = "journal", "journal.old"
_REBOOTED = LossCause("NodeLost", "the machine was restarted, and the processes of this pod ended")
_DIED = LossCause("SupervisorLost", "the supervisor of this pod ended while no node agent was there; its pods are gone")

#: Gets a link to the supervisor of a configuration.
Connect = Callable[[Config], Coroutine[Any, Any, SupervisorLink]]


class OtherProtocolError(EngineError):
    """A supervisor with another protocol lives in the folder, so this version cannot command it."""


def folder_of(config: Config) -> Path:
    """The folder of a supervisor."""
    return Path(config["folder"])


async def connect(config: Config, on_stuck: OnStuck = lambda _: None) -> SupervisorLink:
    """Attach to the supervisor of the folder or, if none lives there, start one. Raises EngineError.

    `on_stuck` is called with the IDs of processes that cannot be killed.
    """
    folder = Path(config["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    lock = await _lock(folder)
    try:
        link = await _attach(folder, lock, config, on_stuck) if identity.lives(str(folder)) else None
        link = link or await _start(folder, config, on_stuck)
    except BaseException:
        os.close(lock)
        raise
    link.lock = lock
    return link


async def _lock(folder: Path) -> int:
    """Lock the folder. An agent that was killed a moment ago may still have the lock."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while (lock := identity.lock_for_agent(str(folder))) is None:
        if loop.time() > deadline:
            raise EngineError(f"another node agent works in {folder}")
        await asyncio.sleep(_RETRY_SECONDS)
    return lock


async def _attach(folder: Path, lock: int, config: Config, on_stuck: OnStuck) -> SupervisorLink | None:
    """Attach to a living supervisor. Fence a supervisor that does not answer; None if it is gone."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    stopped_until = loop.time() + _STOPPED_SECONDS
    while identity.lives(str(folder)):
        known = identity.read(str(folder))
        if known is not None and known["protocol"] != SUPERVISOR_PROTOCOL:
            raise OtherProtocolError(_other_protocol(known))
        if known is not None and known["runtime"] != config["runtime"]:
            raise EngineError(f"pods still run here with the {known['runtime']} runtime; end them first")
        is_stopped = known is not None and tree.activity(known["pid"])[0] == _STOPPED
        if loop.time() > (stopped_until if is_stopped else deadline):
            await _fence(folder, known, on_stuck)
            return None
        link = await _try_attach(folder, lock, config.get("leases")) if not is_stopped else None
        if link is not None:
            return link
        await asyncio.sleep(_RETRY_SECONDS)
    return None


async def _try_attach(folder: Path, lock: int, leases: int | None) -> SupervisorLink | None:
    """One attempt. It can fail because the supervisor has begun to start or to end a moment ago."""
    try:
        link = await SupervisorLink.attach(folder, lock, leases)
    except (OSError, EngineError):
        return None
    link.loss_cause = _DIED
    link.keep_found(_gone(journal.read(str(folder / _OLD_JOURNAL))))
    return link


def _other_protocol(known: Identity) -> str:
    return (
        f"the supervisor (process {known['pid']}) is of version {known['version']} and speaks protocol"
        f" {known['protocol']}, this version speaks protocol {SUPERVISOR_PROTOCOL}"
    )


async def _fence(folder: Path, known: Identity | None, on_stuck: OnStuck) -> None:
    process = SupervisorProcess.find(known["pid"], known["start"]) if known is not None else None
    if process is None:
        raise EngineError(f"a supervisor lives in {folder}, but its process cannot be found")
    try:
        await fence(process.handle, folder, on_stuck)
    finally:
        process.close()


async def _start(folder: Path, config: Config, on_stuck: OnStuck) -> SupervisorLink:
    """Start a supervisor, after the processes of an earlier one have ended."""
    known = identity.read(str(folder))
    rebooted = known is not None and known["boot"] != identity.boot_id()
    before = _keep_journal(folder)
    running = {name for name, entry in before.items() if not entry["ended"]}
    if running and not rebooted:
        await kill_containers(running, on_stuck)
    link = await SupervisorLink.begin(config)
    link.loss_cause = _REBOOTED if rebooted else _DIED
    link.keep_found(_gone(before))
    return link


def _gone(entries: dict[str, JournalEntry]) -> list[FoundContainer]:
    """The containers of a supervisor that is dead. An entry without a name is of a version that did not keep pods."""
    found = msgspec.convert([*entries.values()], list[FoundContainer])
    for one in found:
        one.gone = True
    return [one for one in found if one.name]


def _keep_journal(folder: Path) -> dict[str, JournalEntry]:
    """Add the journal to the old journal, and return the entries of both."""
    entries = journal.read(str(folder / _OLD_JOURNAL)) | journal.read(str(folder / _JOURNAL))
    if entries:
        draft = folder / f"{_OLD_JOURNAL}.new"
        draft.write_bytes(b"".join(map(encode, entries.values())))
        draft.rename(folder / _OLD_JOURNAL)
    return entries


def has_old_journal(folder: Path) -> bool:
    """Whether statuses that come from the journal of an earlier supervisor may not be stored yet."""
    return (folder / _OLD_JOURNAL).exists()


def drop_old_journal(folder: Path) -> None:
    """Remove the old journal, since the statuses of all pods are stored."""
    (folder / _OLD_JOURNAL).unlink(missing_ok=True)


async def drain(folder: Path, on_stuck: OnStuck = lambda _: None) -> None:
    """Wait until all containers of a supervisor with another protocol have ended, then end that supervisor."""
    while identity.lives(str(folder)) and running_containers(folder):
        await asyncio.sleep(_DRAIN_POLL_SECONDS)
    await end_supervisor(folder, on_stuck)


def running_containers(folder: Path) -> list[str]:
    """The IDs of the containers that have not ended, according to the journal."""
    return [name for name, entry in journal.read(str(folder / _JOURNAL)).items() if not entry["ended"]]


async def end_supervisor(folder: Path, on_stuck: OnStuck = lambda _: None, patience: float = 10.0) -> bool:
    """End the supervisor of a folder, of whatever version, and everything that it runs. False: none lives there.

    This needs no lock and no common protocol: SIGTERM makes every supervisor kill its containers and end.
    """
    known = identity.read(str(folder))
    if known is None or not identity.lives(str(folder)):
        return False
    process = SupervisorProcess.find(known["pid"], known["start"])
    if process is None:
        return False
    try:
        process.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience):
                await process.wait()
        except TimeoutError:
            await fence(process.handle, folder, on_stuck)
    finally:
        process.close()
    return True


async def connect_or_drain(config: Config, node: AgentNode, notify: Callable[[str], None]) -> SupervisorLink:
    """Like `connect`; drains a supervisor of another protocol first. Raises EngineError and ApiError."""
    folder = Path(config["folder"])

    def stuck(left: list[int]) -> None:
        notify(unkillable(folder.name, left))

    while True:
        try:
            return await connect(config, stuck)
        except OtherProtocolError as error:
            left = len(running_containers(folder))
            text = f"{error}; its {left} running container{'s' * (left != 1)} must end before the node takes new pods"
            notify(f"{folder.name}: {text}")
            await node.drain(text)
            await drain(folder, stuck)
