# SPDX-License-Identifier: Apache-2.0
"""Create the view, the engine and the session of a run, and run the session.

After the engine has started, and before the first object is created, a last check refuses jobs that this machine cannot
run.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable

import click

from trainwright.cli.asynchronous import run_coroutine
from trainwright.cli.devices import missing_variable_notices
from trainwright.cli.policy_text import ETCD_OPTION, needs_etcd
from trainwright.cli.record import RunRecord
from trainwright.cli.registry import registry
from trainwright.cli.run import environment
from trainwright.cli.run.intake import InputRefused, RunInput, print_problems
from trainwright.cli.run.session import RunConfig, RunOptions, RunSession, RunStart
from trainwright.cli.show.choose import STDOUT, ViewInput, choose_view
from trainwright.cli.show.writer import BackgroundWriter
from trainwright.cli.state import VOLUMES, home
from trainwright.local.checks.preflight import check
from trainwright.local.engine import Engine, EngineSettings
from trainwright.node.environment import passed
from trainwright.runtime.ports import NODES

_ENGINE_LOG = "engine.log"


def drive(intake: RunInput, record: RunRecord, options: RunOptions, start: RunStart) -> int:
    """Run the jobs and return the exit code."""
    logging.raiseExceptions = False  # otherwise `logging` would print a traceback for each message on a full disk
    logging.basicConfig(handlers=[logging.FileHandler(record.folder / _ENGINE_LOG, delay=True)], level=logging.WARNING)
    return run_coroutine(_drive, intake, record, options, start)


async def _drive(intake: RunInput, record: RunRecord, options: RunOptions, start: RunStart) -> int:
    notices = _Notices()
    engine = Engine(
        EngineSettings(
            folder=record.folder,
            volumes=home() / VOLUMES,
            working=environment.current_folder(),
            runtime=options.runtime,
            nodes=options.nodes,
            silence_grace=options.node_grace,
            revive=options.revive,
            devices=options.devices,
            env=options.env,
            keep=options.keep,
            resync=options.resync,
            elastic_server=options.etcd_server,
            registry=registry(options.etcd_server),
            notify=notices.add,
        )
    )
    sys.stdout.flush()
    writer = BackgroundWriter(STDOUT, sys.stdout.encoding or "utf-8")
    view = choose_view(
        writer, options.form, ViewInput(start.clock.now, start.began, lambda: engine.runtime, options.logs)
    )

    async def ready() -> None:
        await _check(engine, intake, options.env)
        first = [f"runtime {engine.runtime}: {engine.choice}", *_skipped(intake)]
        first += environment.not_passed([*passed(os.environ), *options.env], intake.tasks, os.environ)
        first += _unreachable_servers(engine.runtime, options.etcd_server)
        first += _missing_etcd(intake, options)
        notices.show(view.notice, *first, *missing_variable_notices(options.devices))

    config = RunConfig(intake, record, view, start, options)
    code = await RunSession(engine, config).run(ready)
    if writer.error is not None and not view.gone:
        click.echo(f"trainwright: the output could not be written: {writer.error.strerror}", err=True)
    return code


class _Notices:
    """Shows each notice of the engine once. Keeps notices until there is a view that can show them."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._show: Callable[[str], None] | None = None

    def add(self, text: str) -> None:
        if text not in self._texts:
            self._texts[text] = None
            if self._show is not None:
                self._show(text)

    def show(self, view: Callable[[str], None], *first: str) -> None:
        for text in (*first, *self._texts):
            view(text)
        self._show = view


def _skipped(intake: RunInput) -> list[str]:
    return [f"skipped, because a local run does not use it: {', '.join(intake.skipped)}"] if intake.skipped else []


def _unreachable_servers(runtime: str, servers: str) -> list[str]:
    """A notice about servers on a loopback address: a pod with its own network cannot reach our loopback address."""
    hosts = [server.rpartition(":")[0] for server in servers.split(",")]
    loopback = [host for host in hosts if host in ("localhost", "[::1]") or host.startswith("127.")]
    if runtime != "sandbox" or not loopback:
        return []
    advice = "give another address of this machine, or --runtime process"
    return [f"pods cannot reach {loopback[0]} of this machine: {advice}"]


def _missing_etcd(intake: RunInput, options: RunOptions) -> list[str]:
    """A notice about jobs that need an etcd server but have none: their replicas would wait for each other for ever."""
    names = [task.key.name for task in intake.tasks if needs_etcd(task.loaded.job, options.env)]
    if options.etcd_server or not names:
        return []
    return [f"replicas of {', '.join(names)} find each other through an etcd server; give one with {ETCD_OPTION}"]


async def _check(engine: Engine, intake: RunInput, variables: Iterable[str]) -> None:
    """Print all reasons why this machine cannot run the jobs. Raises InputRefused if there are such reasons."""
    nodes = (await engine.cluster.list(NODES.whole())).items
    bad = 0
    for task in intake.tasks:
        problems = check(task.body, intake.beside, nodes, engine.runtime, variables)
        bad += print_problems(task.document, f"{task.kind.name} {task.key}", problems)
    if bad:
        raise InputRefused(f"nothing was started: this machine cannot run the jobs ({bad} problem{'s' * (bad != 1)})")
