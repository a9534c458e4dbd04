# SPDX-License-Identifier: Apache-2.0
"""`trainwright up`: start the engine in the background, or run it in the foreground for a service manager."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import replace

import trainwright
from trainwright.cli.asynchronous import run_coroutine
from trainwright.cli.background.options import EngineOptions, changed, load_options, store_options
from trainwright.cli.background.place import (
    LOG,
    already_runs,
    connect,
    engine_folder,
    lock_engine,
    make_private,
    replicas_may_run,
    running_engine,
)
from trainwright.cli.background.size import Size
from trainwright.cli.devices import declared, device_options
from trainwright.cli.flags import Servers, choice_option, duration_option, output_option, text_option
from trainwright.cli.output import as_json
from trainwright.cli.state import home
from trainwright.errors import EngineError, TrainwrightError, UsageError

#: The engine writes one line to this descriptor when it is ready or has failed: see `EngineStart`.
_READY_FD = "TRAINWRIGHT_READY_FD"
#: The options for an engine in the background, as JSON.
_OPTIONS_VARIABLE = "TRAINWRIGHT_UP_OPTIONS"
#: The options that decide where pods run. They cannot change while jobs are unfinished.
_FIXED = ("runtime", "nodes")
_PLAIN = re.compile(r"[-_./:=,@+A-Za-z0-9]+")
_UNIT = """\
[Unit]
Description=Trainwright engine

[Service]
Type=exec
ExecStart={command}
{environment}Restart=on-failure
RestartSec=1
# The supervisors of running jobs outlive the engine, so only the engine itself gets the signal.
KillMode=process
# Memory and CPU limits of pods need cgroups of their own.
Delegate=yes

[Install]
WantedBy=default.target
"""


class EngineStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the start of the engine ended: an empty error means that the engine accepts jobs."""

    error: str = ""
    code: int = 3


@click.command("up")
@choice_option(
    "--runtime",
    choices=("auto", "sandbox", "process"),
    help="Run each replica with its own network, processes and mounts (sandbox, Linux only), or as a plain process.",
)
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
    help="Kill a node agent and its pods when it has been stopped (SIGSTOP) for TIME, or when it does not answer for "
    "six times TIME.",
)
@device_options
@duration_option("--resync-period", "resync", default="15s", help="Check an unfinished job again after TIME.")
@text_option(
    "--etcd-server",
    type=Servers(),
    metavar="HOST:PORT,…",
    help="The etcd servers through which replicas of elastic PaddleJobs find each other.",
)
@duration_option("--keep-time", default="168h", help="Remove a finished job and its logs after TIME.")
@click.option(
    "--keep-jobs",
    type=click.IntRange(0, 1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Keep at most N finished jobs; the oldest are removed first.",
)
@click.option(
    "--job-logs", type=Size(), default="1GiB", show_default=True, help="Keep at most SIZE of logs of one job."
)
@click.option(
    "--all-logs",
    type=Size(),
    default="10GiB",
    show_default=True,
    help="Remove the oldest finished jobs when the logs of all jobs need more than SIZE.",
)
@click.option("--api/--no-api", default=True, help="Serve the Kubernetes API, for kubectl and other programs.")
@click.option(
    "--api-port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Serve the API at this port. Default: the port of the last engine, or any free one.",
)
@click.option("--foreground", is_flag=True, help="Run the engine in this process until it gets SIGTERM or Ctrl-C.")
@click.option(
    "--print-unit", is_flag=True, help="Print a systemd user unit that starts the engine, and do nothing else."
)
@output_option(choices=("text", "json"), help="Print a sentence or JSON.")
def command(foreground: bool, print_unit: bool, form: str, **given: Any) -> None:
    """Start an engine in the background that keeps jobs until they finish, also after you log out.

    `trainwright submit FILE` hands a job to the engine; get, logs, exec, describe, explain, wait, top, scale, suspend,
    resume, annotate, delete and attach work from any shell. The engine is yours alone; other users have their own.

    If the engine is killed, jobs continue, and the next `trainwright up` continues with them. An option that you do not
    give keeps the value of the last engine.

    \b
    Examples:
      trainwright up
      trainwright up --runtime process --gpus 4 --keep-time 72h
      trainwright up --print-unit > ~/.config/systemd/user/trainwright.service

    \b
    Exit codes:
      0  the engine is up          2  wrong usage          3  the engine did not start
    """
    ctx = click.get_current_context()
    handed = os.environ.pop(_OPTIONS_VARIABLE, "")
    options = msgspec.json.decode(handed, type=EngineOptions) if handed else _options(ctx, given)
    if print_unit:
        click.echo(_unit(ctx), nl=False)
    elif foreground:
        _run_here(options)
    else:
        _start(options, form)


def _options(ctx: click.Context, values: dict[str, Any]) -> EngineOptions:
    """The options of the last engine, with the values that the user has given now."""
    typed = {name for name in values if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)}
    has_devices = bool(typed & {"gpus", "device", "device_config"})
    devices = declared(values.pop("gpus"), values.pop("device"), values.pop("device_config"))
    fresh = EngineOptions(**values, devices=devices)
    before = load_options(engine_folder())
    if before is None:
        return fresh
    names = (typed & set(EngineOptions.__struct_fields__)) | ({"devices"} if has_devices else set())
    return replace(before, **{name: getattr(fresh, name) for name in names})


def _check_fixed(folder: Path, options: EngineOptions) -> None:
    """Refuse to change nodes or runtime while pods of the last engine may run."""
    before = load_options(folder)
    if before is None or not replicas_may_run(folder):
        return
    fixed = changed(before, {name: getattr(options, name) for name in _FIXED})
    if fixed:
        name = fixed[0]
        old, new = getattr(before, name), getattr(options, name)
        advice = f"give --{name} {old}, or end the jobs first with `trainwright up` and `trainwright down --end`"
        raise UsageError(f"--{name} {new}: pods of the last engine still run with --{name} {old}; {advice}")


def _run_here(options: EngineOptions) -> None:
    folder = engine_folder()
    report = _Ready()
    try:
        lock = lock_engine(folder)
        _check_fixed(folder, options)
        from trainwright.cli.background.daemon import serve  # noqa: PLC0415 - imports the engine, which is slow

        def ready() -> None:
            store_options(folder, options)  # the options of an engine that does not start are not kept
            report.ready()

        run_coroutine(serve, folder, lock, options, ready)
    except TrainwrightError as error:
        report.failed(str(error), error.exit_code)
        raise
    except OSError as error:
        report.failed(str(error), 3)
        raise


class _Ready:
    """Tells the process that started the engine in the background that it is ready or has failed."""

    def __init__(self) -> None:
        number = os.environ.pop(_READY_FD, "")
        self._pipe = int(number) if number.isdecimal() else None

    def ready(self) -> None:
        """The engine accepts jobs."""
        if self._pipe is None:
            click.echo(f"the engine is up (process {os.getpid()}); Ctrl-C ends it, jobs continue")
        self._send(EngineStart())

    def failed(self, text: str, code: int) -> None:
        """The engine did not start."""
        self._send(EngineStart(text, code))

    def _send(self, start: EngineStart) -> None:
        if self._pipe is not None:
            os.write(self._pipe, msgspec.json.encode(start))
            os.close(self._pipe)
            self._pipe = None


def _start(options: EngineOptions, form: str) -> None:
    folder = engine_folder()
    running = running_engine(folder)
    if running is not None:
        raise UsageError(already_runs(running))
    try:
        make_private(folder)
        _check_fixed(folder, options)
        start = _spawn(folder, options)
    except OSError as error:
        advice = "set TRAINWRIGHT_STATE to a folder in which you can write"
        raise EngineError(f"the folder of the engine, {folder}, cannot be used: {error.strerror}; {advice}") from None
    if start is None:
        raise EngineError(f"the engine ended before it was ready; its log is {folder / LOG}{_last_line(folder / LOG)}")
    if start.error:
        failure = UsageError if start.code == 2 else EngineError
        raise failure(start.error)
    with connect() as client:
        status = client.call("status", {})
    if form == "json":
        click.echo(as_json(status), nl=False)
        return
    click.echo(f"the engine is up (process {status['pid']}), runtime {status['runtime']}: {status['choice']}")
    jobs = sum(number for phase, number in status["jobs"].items() if phase not in ("Succeeded", "Failed"))
    if jobs:
        click.echo(f"it continues with {jobs} unfinished job{'s' * (jobs != 1)}; `trainwright get` lists them")
    else:
        click.echo("submit jobs with `trainwright submit FILE`; `trainwright down` ends the engine")


def _spawn(folder: Path, options: EngineOptions) -> EngineStart | None:
    """Start the engine as a process of its own. Returns None if it ends before it is ready."""
    ours, theirs = os.pipe()
    argv = [sys.executable, "-m", "trainwright", "up", "--foreground"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(trainwright.__file__).parents[1]),
        _READY_FD: str(theirs),
        _OPTIONS_VARIABLE: msgspec.json.encode(options).decode(),
    }
    with (folder / LOG).open("ab") as log:
        subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(theirs,),
            env=environment,
            start_new_session=True,
            cwd=os.sep,
        )
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        text = pipe.read()
    try:
        return msgspec.json.decode(text, type=EngineStart)
    except msgspec.MsgspecError:
        return None


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").rstrip().splitlines()
    except OSError:
        return ""
    return f"; its last line: {lines[-1]}" if lines else ""


def _unit(ctx: click.Context) -> str:
    """A systemd user unit that runs this installation with the options of this command."""
    words = [sys.executable, "-m", "trainwright", "up", "--foreground"]
    for param in ctx.command.params:
        name = param.name or ""
        typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and name not in ("print_unit", "foreground", "form"):
            words += _words(param, ctx.params[name])
    package = Path(trainwright.__file__).parents[1]
    variables = [f"TRAINWRIGHT_STATE={home()}"] + [f"PYTHONPATH={package}"] * (package.name != "site-packages")
    environment = "".join(f"Environment={_quoted(one)}\n" for one in variables)
    return _UNIT.format(command=" ".join(map(_quoted, words)), environment=environment)


def _words(param: click.Parameter, value: Any) -> list[str]:
    """An option with its value, or with its values, as the command line accepts them."""
    if isinstance(param, click.Option) and param.is_flag:
        return [param.opts[-1] if value else param.secondary_opts[-1]]
    values = value if param.multiple else [value]
    return [word for one in values for word in (param.opts[-1], _spelled(param.name or "", one))]


def _spelled(name: str, value: Any) -> str:
    """The value of an option as the command line accepts it. The unit runs in another folder, so paths are absolute."""
    if name == "device_config":
        return str(Path(value).absolute())
    return repr(value) if isinstance(value, float) else str(value)


def _quoted(word: str) -> str:
    """A word of a systemd unit, in quotes if it needs them."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if _PLAIN.fullmatch(word) else f'"{text}"'
