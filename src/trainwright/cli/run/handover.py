# SPDX-License-Identifier: Apache-2.0
"""Hands jobs over to the background engine, for `trainwright submit` and `trainwright run --detach`."""

import os
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from trainwright.cli.background.place import connect
from trainwright.cli.output import as_json
from trainwright.cli.policy_text import needs_etcd
from trainwright.cli.run import environment
from trainwright.cli.run.intake import InputRefused, JobToRun, RunInput, print_problems
from trainwright.cli.runs import latest
from trainwright.cli.state import NameInUseError, home
from trainwright.errors import AlreadyExistsError, InvalidError, UsageError
from trainwright.local.checks.preflight import check
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.model.meta import Key
from trainwright.node.environment import passed
from trainwright.node.submission import Submission, visible_folders


def submit(intake: RunInput, env: Mapping[str, str], form: str = "text") -> None:
    """Hand jobs over to the engine and print what was submitted. Raises UsageError, EngineError."""
    with connect() as client:
        status = client.call("status", {})
        _check(client, intake, env, status["runtime"])
        for task in intake.tasks:
            _check_name(task)
        given = _submission(env)
        notices = environment.not_passed([*given.passed, *env], intake.tasks, os.environ)
        notices += [f"skipped, because the engine does not use it: {', '.join(intake.skipped)}"] * bool(intake.skipped)
        for text in notices:
            click.echo(f"notice: {text}", err=form != "text")
        stored = []
        for task in intake.tasks:
            stored.append(_submit_one(client, task, intake, given))
            if form != "json":
                click.echo(_told(task.key, form))
    if form == "json":
        click.echo(as_json(stored[0] if len(stored) == 1 else stored), nl=False)


def _told(key: Key, form: str) -> str:
    word = key.name if key.namespace == "default" else str(key)
    return word if form == "name" else f"{key} submitted; follow it with `trainwright attach {word}`"


def _submission(env: Mapping[str, str]) -> Submission:
    """What this shell adds to the job: its folder, its variables, and the folders with its programs."""
    cwd = environment.current_folder()
    return Submission(str(cwd), passed(os.environ), dict(env), visible_folders(cwd))


def _check(client: BlockingClient, intake: RunInput, env: Mapping[str, str], runtime: str) -> None:
    """Print all reasons why the engine cannot run the jobs. Raises InputRefused if there are such reasons."""
    nodes, _ = client.list("nodes")
    bad = 0
    for task in intake.tasks:
        problems = check(task.body, intake.beside, nodes, runtime, env)
        bad += print_problems(task.document, f"{task.kind.name} {task.key}", problems)
        if needs_etcd(task.loaded.job, dict(env)):
            text = "its replicas find each other through an etcd server; give one with `trainwright up --etcd-server`"
            click.echo(f"notice: {task.key}: {text}", err=True)
    if bad:
        raise InputRefused(f"nothing was submitted: this machine cannot run the jobs ({bad} problem{'s' * (bad != 1)})")


def _check_name(task: JobToRun) -> None:
    """Refuse a name that a live private run uses. The engine itself refuses the name of its own unfinished job.

    The record of a job of the engine is no proof: the engine completes it a moment after the job is gone.
    """
    run = latest(home(), task.key)
    if run is not None and run.live and not run.background:
        where = f"a run in process {run.pid}"
        raise NameInUseError(f"{task.key} already runs ({where}); `trainwright delete {run.word}` ends it")


def _submit_one(client: BlockingClient, task: JobToRun, intake: RunInput, given: Submission) -> Any:
    request = {"job": task.body, "beside": [*intake.beside], "submission": msgspec.to_builtins(given)}
    try:
        return client.call_slow("submit", request)["job"]
    except (InvalidError, AlreadyExistsError) as error:
        raise UsageError(str(error)) from None
