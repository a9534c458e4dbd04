# SPDX-License-Identifier: Apache-2.0
"""Puts a run together: the view that was asked for, an engine with its settings, the last checks, a session.

Called by `command` once the names are claimed. What the machine cannot do for a job is refused here, before the first
object is created.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from trainwright.cli.devices import nameless
from trainwright.cli.policy_text import OPTION, needs_etcd
from trainwright.cli.record import RunInfo, RunRecord
from trainwright.cli.run import environment
from trainwright.cli.run.intake import InputRefused, RunInput, tell
from trainwright.cli.run.session import RunConfig, RunSession
from trainwright.cli.show.news import RunView
from trainwright.cli.show.streams import JsonView, LinesView
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.cli.state import VOLUMES, home
from trainwright.errors import UsageError
from trainwright.local.checks.preflight import check
from trainwright.local.engine import Engine, EngineSettings
from trainwright.node.devices.inventory import DeviceSet
from trainwright.node.environment import passed
from trainwright.runtime.ports import NODES, Registry, WallClock

_STDOUT = 1
_LOG = "engine.log"


class RunOptions(Struct, frozen=True, kw_only=True):
    """What was asked for, besides the manifests."""

    runtime: str = "auto"
    timeout: float | None = None
    grace: float | None = None
    keep: bool = False
    nodes: int = 1
    node_grace: float = 10.0
    revive: float | None = None
    devices: dict[str, DeviceSet] = {}
    env: dict[str, str] = {}
    resync: float = 15.0
    etcd_server: str = ""
    output: Literal["auto", "live", "lines", "json"] = "auto"
    logs: bool = True


class RunStart(Struct, frozen=True):
    """When a run began, by `time.monotonic` and by the clock, and what it is about."""

    began: float
    clock: WallClock
    facts: RunInfo


def drive(intake: RunInput, record: RunRecord, options: RunOptions, start: RunStart) -> int:
    """Run it; the exit code."""
    logging.raiseExceptions = False  # a full disk is no reason to fill the screen
    logging.basicConfig(handlers=[logging.FileHandler(record.folder / _LOG, delay=True)], level=logging.WARNING)
    return asyncio.run(_drive(intake, record, options, start))


async def _drive(intake: RunInput, record: RunRecord, options: RunOptions, start: RunStart) -> int:
    notices = _Notices()
    engine = Engine(
        EngineSettings(
            folder=record.folder,
            volumes=home() / VOLUMES,
            working=_here(),
            runtime=options.runtime,
            nodes=options.nodes,
            node_grace=options.node_grace,
            revive=options.revive,
            devices=options.devices,
            env=options.env,
            keep=options.keep,
            resync=options.resync,
            elastic_server=options.etcd_server,
            registry=_registry(options.etcd_server),
            notify=notices.tell,
        )
    )
    sys.stdout.flush()
    pen = BackgroundWriter(_STDOUT, sys.stdout.encoding or "utf-8")
    view = _view(pen, options, start, lambda: engine.runtime)

    async def ready() -> None:
        await _check(engine, intake, options.env)
        first = [f"runtime {engine.runtime}: {engine.choice}", *_left_out(intake)]
        first += environment.left_out([*passed(os.environ), *options.env], intake.tasks, os.environ)
        first += _apart(engine.runtime, options.etcd_server)
        first += _unmet(intake, options)
        notices.show(view.notice, *first, *nameless(options.devices))

    order = RunConfig(
        intake=intake,
        record=record,
        view=view,
        clock=start.clock,
        facts=start.facts,
        began=start.began,
        timeout=options.timeout,
        grace=options.grace,
        keep=options.keep,
    )
    code = await RunSession(engine, order).run(ready)
    if pen.error is not None and not view.gone:
        click.echo(f"trainwright: the output could not be written: {pen.error.strerror}", err=True)
    return code


def _registry(servers: str) -> Registry | None:
    if not servers:
        return None
    from trainwright.kube.etcd import Etcd  # noqa: PLC0415 - aiohttp, which hardly any run needs

    return Etcd(servers)


def _here() -> Path:
    """Where commands run that name no folder of their own."""
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the folder you are in is gone; change to one where the commands can run") from None


class _Notices:
    """What the engine tells, each once; kept until there is a view to show it."""

    def __init__(self) -> None:
        self._told: dict[str, None] = {}
        self._show: Callable[[str], None] | None = None

    def tell(self, text: str) -> None:
        if text not in self._told:
            self._told[text] = None
            if self._show is not None:
                self._show(text)

    def show(self, view: Callable[[str], None], *first: str) -> None:
        for text in (*first, *self._told):
            view(text)
        self._show = view


def _left_out(intake: RunInput) -> list[str]:
    return [f"skipped, since it has no meaning here: {', '.join(intake.skipped)}"] if intake.skipped else []


def _apart(runtime: str, servers: str) -> list[str]:
    """A server on this machine's own loopback is not on that of a pod which has a network of its own."""
    hosts = [server.rpartition(":")[0] for server in servers.split(",")]
    near = [host for host in hosts if host in ("localhost", "[::1]") or host.startswith("127.")]
    if runtime != "sandbox" or not near:
        return []
    return [f"pods do not reach {near[0]} of this machine: name another address of it, or take --runtime process"]


def _unmet(intake: RunInput, options: RunOptions) -> list[str]:
    """Jobs whose replicas wait for each other for ever, since they know of no place to meet."""
    names = [task.key.name for task in intake.tasks if needs_etcd(task.loaded.job, options.env)]
    if options.etcd_server or not names:
        return []
    return [f"replicas of {', '.join(names)} find each other through an etcd, and none is given: {OPTION}"]


def _view(pen: BackgroundWriter, options: RunOptions, start: RunStart, runtime: Callable[[], str]) -> RunView:
    if options.output == "json":
        return JsonView(pen, start.clock.now, with_logs=options.logs)
    terminal = os.isatty(_STDOUT) and os.environ.get("TERM") != "dumb"
    if options.output == "live" or (options.output == "auto" and terminal):
        from trainwright.cli.show.live import LiveView, TableInput  # noqa: PLC0415 - rich, which only this view needs

        def moment() -> TableInput:
            return TableInput(start.clock.now(), time.monotonic() - start.began, runtime())

        return LiveView(pen, _STDOUT, moment, with_logs=options.logs)
    return LinesView(pen, lambda: time.monotonic() - start.began, with_logs=options.logs)


async def _check(engine: Engine, intake: RunInput, variables: Iterable[str]) -> None:
    """What this machine cannot do for a job. Raises Refused once all of it is told."""
    nodes = (await engine.cluster.list(NODES.whole())).items
    bad = 0
    for task in intake.tasks:
        problems = check(task.body, intake.beside, nodes, engine.runtime, variables)
        bad += tell(task.document, f"{task.kind.name} {task.key}", problems)
    if bad:
        raise InputRefused(f"nothing was started: {bad} thing{'s' * (bad != 1)} cannot be had here")
