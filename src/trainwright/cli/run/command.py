# SPDX-License-Identifier: Apache-2.0
"""The options of `trainwright run`, and the order of things: judge everything, claim the names, then `drive`."""

import os
import shutil
import time
from typing import Any

import click

from trainwright.cli.devices import declared, device_options
from trainwright.cli.documents import check_namespace
from trainwright.cli.flags import Duration, Servers
from trainwright.cli.record import RUN, RunInfo, RunRecord, as_yaml
from trainwright.cli.run import environment, from_command
from trainwright.cli.run.changes import FieldEdit, parse
from trainwright.cli.run.from_command import CommandOrFiles, CommandShape
from trainwright.cli.run.intake import RunInput, judge, take
from trainwright.cli.state import NameInUseError, NameLocks, home
from trainwright.errors import TrainwrightError, UsageError
from trainwright.manifest import Document
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import WallClock


@click.command("run", cls=CommandOrFiles, options_metavar="[OPTIONS]")
@click.argument("files", nargs=-1, metavar="FILE... | -- COMMAND...")
@from_command.options
@click.option(
    "--runtime",
    type=click.Choice(["auto", "sandbox", "process"]),
    default="auto",
    show_default=True,
    help="How replicas are run: each with a network, processes and mounts of its own (sandbox, Linux), or as plain "
    "processes; auto takes the first that works here.",
)
@click.option("-n", "--namespace", metavar="NS", default="", help="For objects that name none.  [default: default]")
@click.option(
    "--set", "changes", metavar="PATH=VALUE", multiple=True, help="Change a field of the jobs; may be given again."
)
@click.option(
    "--env",
    "variables",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="Give every container a variable, which replaces the manifest's; NAME alone: with the value that it has here. "
    "May be given again.",
)
@click.option(
    "--env-file",
    "env_files",
    metavar="FILE",
    multiple=True,
    help="Give every container the variables of a file of lines NAME=VALUE or NAME; # begins a comment.",
)
@click.option("--timeout", type=Duration(), metavar="TIME", help="End the run after this long: 30, 30s, 5m, 1h.")
@click.option(
    "--grace",
    type=Duration(),
    metavar="TIME",
    help="How long replicas may take to end when the run is ended.  [default: what they ask for]",
)
@click.option("--keep", is_flag=True, help="Leave the replicas' files (volumes, /tmp) where they are.")
@click.option("--nodes", type=click.IntRange(1, 64), default=1, show_default=True, help="Share the machine out.")
@click.option(
    "--node-grace",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Kill a node agent with its pods when it has been stopped (SIGSTOP) for TIME, or has not answered for six "
    "times TIME although it had CPU time; its replicas are then restarted elsewhere.",
)
@click.option("--revive", type=Duration(), metavar="TIME", help="Start a node again so long after it died.")
@device_options
@click.option(
    "--resync-period",
    "resync",
    type=Duration(),
    default="15s",
    show_default=True,
    metavar="TIME",
    help="Look at an unfinished job again after this long although nothing happened; doubles up to 5m.",
)
@click.option(
    "--etcd-server",
    type=Servers(),
    metavar="HOST:PORT,…",
    default="",
    help="Where replicas of elastic PaddleJobs meet.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["auto", "live", "lines", "json"]),
    default="auto",
    show_default=True,
    help="A table that lives, plain lines, or JSON; auto is live on a terminal and lines elsewhere.",
)
@click.option("--logs/--no-logs", default=True, show_default=True, help="Show what replicas print.")
def command(
    files: tuple[str, ...],
    namespace: str,
    changes: tuple[str, ...],
    variables: tuple[str, ...],
    env_files: tuple[str, ...],
    words: tuple[str, ...] | None,
    **given: Any,
) -> int:
    """Run the jobs in each FILE, or a COMMAND, on this machine, follow them, and exit with their outcome.

    "-" reads standard input. Secrets, ConfigMaps and PersistentVolumeClaims in the same files are created first; other
    Kubernetes objects are skipped. No image is used: commands must be installed on this machine, and run in the
    current folder unless the manifest says otherwise. Several jobs run side by side.

    A COMMAND after "--" is run as a job of --replicas replicas, each with RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT in its environment. They start together or not at all, and
    the job succeeds when all have succeeded. With --torchrun it is a script, and torchrun sets these variables.

    Ctrl-C ends the jobs as they wish to be ended, a second one at once. Logs and the final status are kept; where is
    said at the end. While it runs, `trainwright get|logs|exec|scale|suspend|resume|annotate|delete JOB` reach it.

    \b
    Examples:
      trainwright run job.yaml
      trainwright run --replicas 4 --gpus-per-replica 1 -- python train.py --epochs 3
      trainwright run --replicas 2 --gpus-per-replica 4 --torchrun -- train.py
      trainwright run --replicas 4 --image example/train --print -- python train.py > job.yaml
      trainwright run --set 'spec.replicaSpecs[worker].replicas=8' --timeout 1h job.yaml
      trainwright run --runtime process --gpus 4 --nodes 2 job.yaml
      trainwright run --device huawei.com/Ascend910=8 job.yaml
      trainwright run -o json job.yaml | jq -r 'select(.type == "log") | .text'

    \b
    With -o json every line is an object with "at", "type" and, by type:
      job      namespace, job, kind, phase, replicas, counts, restarts
      replica  namespace, job, replica, phase, pod, attempt, node, restarts, reason
      log      namespace, job, replica, container, text
      event    namespace, job, about, reason, message, warning
      notice   text
      end      namespace, name, outcome, exitCode, duration, restarts, because, rule, replica, pod, container,
               code, signal, cause, lastLines, hint, unsettled, terminated, folder

    \b
    Exit codes:
      0  every job succeeded       3  the engine broke          130  interrupted (143: SIGTERM)
      1  a job failed              124  --timeout passed
      2  wrong usage, invalid manifest, name in use
    """
    check_namespace(namespace)
    given["devices"] = declared(given.pop("gpus"), given.pop("device"), given.pop("device_config"))
    shape = CommandShape(**{name: given.pop(name) for name in CommandShape.__struct_fields__})
    edits = [parse(text) for text in changes]
    if words is None:
        _check_files(files, shape)
        env = environment.given(variables, env_files, os.environ)
        intake = take(files, namespace, edits)
    elif files:
        raise UsageError(f"give files or a command after `--`, not both: found {' '.join(files)} before it")
    elif shape.print:
        return _print(from_command.document(words, shape), shape, namespace, edits, env=bool(variables or env_files))
    else:
        env = environment.given(variables, env_files, os.environ)
        from_command.check_variables(env, shape)
        intake = judge([from_command.document(words, shape, _free_port())], namespace, edits)
        _check_torchrun(shape, env)
    environment.check(env, intake.tasks)
    try:
        return _run(intake, given | {"env": env})
    except NameInUseError as error:
        raise error if words is None else UsageError(f"{error}; or give this one another --name") from None


def _check_files(files: tuple[str, ...], shape: CommandShape) -> None:
    if not files:
        raise UsageError("there is nothing to run; give a FILE, or a command: trainwright run -- python3 train.py")
    if shape.given:
        raise UsageError(
            f"{shape.given[0]} is for a command after `--`; --set PATH=VALUE changes a field of a manifest"
        )


def _print(document: Document, shape: CommandShape, namespace: str, edits: list[FieldEdit], *, env: bool) -> int:
    (task,) = judge([document], namespace, edits).tasks
    meta = {key: value for key, value in task.body["metadata"].items() if key != "namespace" or namespace}
    click.echo(as_yaml([task.body | {"metadata": meta}]), nl=False)
    if not shape.image:
        click.echo("trainwright: the manifest has no image; a cluster needs one: --image", err=True)
    if env:
        text = "--env is not in the manifest, since it may be secret; give it again when you run the file"
        click.echo(f"trainwright: {text}", err=True)
    return 0


def _check_torchrun(shape: CommandShape, env: dict[str, str]) -> None:
    if shape.torchrun and shutil.which("torchrun", path=env.get("PATH")) is None:
        way = "activate the environment that has PyTorch, or install it there with `pip install torch`"
        raise UsageError(f"--torchrun: there is no torchrun on your PATH; {way}")


def _free_port() -> int:
    """Where rank 0 listens. Plain processes share this machine's ports, and PyTorch listens at all addresses."""
    from trainwright.node.network.pools import LOOPBACK, PortPool, ranges  # noqa: PLC0415 - only a command needs it

    return PortPool(ranges(), start=os.getpid()).take(LOOPBACK)


def _run(intake: RunInput, given: dict[str, Any]) -> int:
    from trainwright.cli.run.drive import RunOptions, RunStart, drive  # noqa: PLC0415 - the engine, now that it is needed

    began, clock = time.monotonic(), WallClock()
    now = clock.now()
    with NameLocks(home(), [task.key for task in intake.tasks], now) as claim:
        facts = RunInfo(tuple(str(key) for key in claim.keys), os.getpid(), rfc3339(now))
        record = RunRecord(claim.folder)
        try:
            return drive(intake, record, RunOptions(**given), RunStart(began, clock, facts))
        except TrainwrightError:
            if not (claim.folder / RUN).exists():  # nothing was started, so nothing is worth keeping
                claim.discard()
            raise
