# SPDX-License-Identifier: Apache-2.0
"""`trainwright run`: defines the options, checks the input, locks the names of the jobs, and starts the run."""

import os
import shutil
import time
from typing import Any

import click
from click.core import ParameterSource

from trainwright.cli.devices import declared, device_options
from trainwright.cli.flags import (
    Servers,
    check_namespace,
    choice_option,
    duration_option,
    output_option,
    repeated_option,
    text_option,
)
from trainwright.cli.output import as_yaml
from trainwright.cli.record import RUN, RunInfo, RunRecord
from trainwright.cli.run import environment, from_command
from trainwright.cli.run.changes import FieldEdit, parse
from trainwright.cli.run.from_command import CommandOrFiles, CommandShape
from trainwright.cli.run.intake import RunInput, judge, take
from trainwright.cli.runs import check_not_in_engine
from trainwright.cli.state import NameInUseError, NameLocks, home
from trainwright.errors import TrainwrightError, UsageError
from trainwright.manifest import Document
from trainwright.model.units import rfc3339
from trainwright.runtime.ports import WallClock

#: Options of the engine; and all options that a private run has and a job of the background engine does not have.
_ENGINE_OPTIONS = ("runtime", "nodes", "node_grace", "gpus", "device", "device_config", "resync", "etcd_server")
_PRIVATE_OPTIONS = (*_ENGINE_OPTIONS, "revive", "timeout", "grace", "keep", "form", "logs")


@click.command("run", cls=CommandOrFiles, options_metavar="[OPTIONS]")
@click.argument("files", nargs=-1, metavar="FILE... | -- COMMAND...")
@from_command.options
@choice_option(
    "--runtime",
    choices=("auto", "sandbox", "process"),
    help="Run each replica with its own network, processes and mounts (sandbox, Linux only), or as a plain process. "
    "auto takes the sandbox if it works on this machine.",
)
@text_option(
    "-n", "--namespace", metavar="NS", help="The namespace for objects without a namespace.  [default: default]"
)
@repeated_option(
    "--set", "changes", metavar="PATH=VALUE", help="Change a field of all jobs. You can repeat this option."
)
@repeated_option(
    "--env",
    "variables",
    metavar="NAME[=VALUE]",
    help="Set an environment variable in every container, also if the manifest has another value. NAME alone passes "
    "the value that the variable has in your environment. You can repeat this option.",
)
@repeated_option(
    "--env-file",
    "env_files",
    metavar="FILE",
    help="Set the variables of FILE in every container. Each line is NAME=VALUE, NAME, or a comment after #.",
)
@duration_option("--timeout", help="End the run after TIME, such as 30, 30s, 5m or 1h.")
@duration_option(
    "--grace",
    help="Kill replicas that have not ended TIME after the run asked them to end.  [default: the grace period of the "
    "pods]",
)
@click.option("--keep", is_flag=True, help="Keep the files of replicas (volumes, /tmp) after the run.")
@click.option(
    "--nodes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Divide the resources of this machine among so many simulated nodes.",
)
@duration_option(
    "--node-grace",
    default="10s",
    help="Kill a node agent and its pods when it has been stopped (SIGSTOP) for TIME, or when it has CPU time but does "
    "not answer for six times TIME. Its replicas then restart on other nodes.",
)
@duration_option("--revive", help="Start a node again TIME after it died.")
@device_options
@duration_option(
    "--resync-period",
    "resync",
    default="15s",
    help="Check an unfinished job again after TIME even if nothing has changed. The time doubles up to 5m.",
)
@text_option(
    "--etcd-server",
    type=Servers(),
    metavar="HOST:PORT,…",
    help="The etcd servers through which replicas of elastic PaddleJobs find each other.",
)
@output_option(
    choices=("auto", "live", "lines", "json"),
    help="Show a live table, plain lines, or JSON. auto is live on a terminal, otherwise lines.",
)
@click.option("--logs/--no-logs", default=True, show_default=True, help="Show the output of replicas.")
@click.option("-d", "--detach", is_flag=True, help="Hand the jobs over to the background engine, and return.")
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
    Kubernetes objects are skipped. Container images are not used: the programs must be installed on this machine. They
    run in the current folder unless the manifest has a workingDir. Several jobs run at the same time.

    A COMMAND after "--" becomes a job with --replicas replicas. Each replica has RANK, WORLD_SIZE, LOCAL_RANK,
    LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT in its environment. All replicas start together or none
    does, and the job succeeds when all have succeeded. With --torchrun, COMMAND is a script, and torchrun sets these
    variables.

    Ctrl-C ends the jobs and gives each replica its grace period; a second Ctrl-C kills them at once. Logs and the final
    status are kept; the last line shows where. During the run, use
    `trainwright get|logs|exec|scale|suspend|resume|annotate|delete JOB` in another terminal.

    \b
    Examples:
      trainwright run job.yaml
      trainwright run --replicas 4 --gpus-per-replica 1 -- python train.py --epochs 3
      trainwright run --replicas 2 --gpus-per-replica 4 --torchrun -- train.py
      trainwright run --replicas 4 --image example/train --print -- python train.py > job.yaml
      trainwright run --set 'spec.replicaSpecs[worker].replicas=8' --timeout 1h job.yaml
      trainwright run --runtime process --gpus 4 --nodes 2 job.yaml
      trainwright run --device huawei.com/Ascend910=8 job.yaml
      trainwright run --detach --replicas 4 -- python train.py
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
      0  every job succeeded       3  the engine failed         130  interrupted (143: SIGTERM)
      1  a job failed              124  --timeout passed
      2  wrong usage, invalid manifest, name in use
    """
    check_namespace(namespace)
    detach = given.pop("detach")
    if detach:
        _check_detached(click.get_current_context())
    given["devices"] = declared(given.pop("gpus"), given.pop("device"), given.pop("device_config"))
    shape = CommandShape(**{name: given.pop(name) for name in CommandShape.__struct_fields__})
    edits = [parse(text) for text in changes]
    if words is None:
        _check_files(files, shape)
        env = environment.given(variables, env_files, os.environ)
        intake = take(files, namespace, edits)
    elif files:
        raise UsageError(f"give either files or a command after `--`, not both; found {' '.join(files)} before `--`")
    elif shape.print:
        return _print(from_command.document(words, shape), shape, namespace, edits, env=bool(variables or env_files))
    else:
        env = environment.given(variables, env_files, os.environ)
        from_command.check_variables(env, shape)
        intake = judge([from_command.document(words, shape, _free_port())], namespace, edits)
        _check_torchrun(shape, env)
    environment.check(env, intake.tasks)
    if detach:
        return _submit(intake, env)
    try:
        return _run(intake, given | {"env": env})
    except NameInUseError as error:
        raise error if words is None else UsageError(f"{error}; or give this job another name with --name") from None


def _check_detached(ctx: click.Context) -> None:
    """Refuse options that have no effect on a job of the background engine."""
    for param in ctx.command.params:
        typed = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if typed and param.name in _PRIVATE_OPTIONS:
            engine = "; give it to `trainwright up`" if param.name in _ENGINE_OPTIONS else ""
            raise UsageError(f"{param.opts[-1]} has no effect with --detach{engine}")


def _submit(intake: RunInput, env: dict[str, str]) -> int:
    from trainwright.cli.run.handover import submit  # noqa: PLC0415 - most runs do not need it

    submit(intake, env)
    return 0


def _check_files(files: tuple[str, ...], shape: CommandShape) -> None:
    if not files:
        raise UsageError("give a FILE or a command to run, such as: trainwright run -- python3 train.py")
    if shape.given:
        advice = "to change a field of a manifest, give --set PATH=VALUE"
        raise UsageError(f"{shape.given[0]} works only with a command after `--`; {advice}")


def _print(document: Document, shape: CommandShape, namespace: str, edits: list[FieldEdit], *, env: bool) -> int:
    (task,) = judge([document], namespace, edits).tasks
    meta = {key: value for key, value in task.body["metadata"].items() if key != "namespace" or namespace}
    click.echo(as_yaml([task.body | {"metadata": meta}]), nl=False)
    if not shape.image:
        click.echo("trainwright: the manifest has no image; for a cluster, give one with --image", err=True)
    if env:
        text = "the manifest does not contain --env, because it may be secret; give --env again when you run the file"
        click.echo(f"trainwright: {text}", err=True)
    return 0


def _check_torchrun(shape: CommandShape, env: dict[str, str]) -> None:
    if shape.torchrun and shutil.which("torchrun", path=env.get("PATH")) is None:
        advice = "activate the environment that has PyTorch, or install it with `pip install torch`"
        raise UsageError(f"--torchrun: there is no torchrun on your PATH; {advice}")


def _free_port() -> int:
    """A port for rank 0. It must be free on all addresses of this machine, because PyTorch listens on all addresses."""
    from trainwright.node.network.pools import LOOPBACK, PortPool, ranges  # noqa: PLC0415 - only a run of a command needs it

    return PortPool(ranges(), start=os.getpid()).take(LOOPBACK)


def _run(intake: RunInput, given: dict[str, Any]) -> int:
    from trainwright.cli.run.drive import drive  # noqa: PLC0415 - imports the engine, which is slow
    from trainwright.cli.run.session import RunOptions, RunStart  # noqa: PLC0415 - likewise

    began, clock = time.monotonic(), WallClock()
    now = clock.now()
    for task in intake.tasks:
        check_not_in_engine(task.key)
    with NameLocks(home(), [task.key for task in intake.tasks], now) as locks:
        info = RunInfo(tuple(str(key) for key in locks.keys), os.getpid(), rfc3339(now))
        record = RunRecord(locks.folder)
        try:
            return drive(intake, record, RunOptions(**given), RunStart(began, clock, info))
        except TrainwrightError:
            if not (locks.folder / RUN).exists():  # nothing was started, so there is nothing to keep
                locks.discard()
            raise
