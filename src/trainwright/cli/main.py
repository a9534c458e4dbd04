# SPDX-License-Identifier: Apache-2.0
"""The console script: finds the command, runs it, and turns whatever happens into an exit code and at most one line.

Nothing heavy is imported here, and no command before it is asked for: `trainwright --help` has to feel instant.
"""

import os
import sys
from importlib import import_module
from io import TextIOWrapper

import click

from trainwright import __version__
from trainwright.errors import TrainwrightError
from trainwright.runtime import purity

#: The commands, and what `--help` says of each without loading its module.
COMMANDS = {
    "run": "Run jobs on this machine, follow them, and exit with their outcome.",
    "init": "Write a short manifest with comments, to begin from.",
    "get": "List the jobs that run here, or show one with its replicas.",
    "logs": "Print what replicas printed, also after the run.",
    "exec": "Run a command inside a replica of a live run.",
    "scale": "Change the number of replicas of a running job.",
    "suspend": "Pause a running job.",
    "resume": "Let a paused job go on.",
    "annotate": "Set or remove annotations of a running job.",
    "delete": "End a running job.",
    "validate": "Check manifests: every mistake, with its line and the nearest valid spelling.",
    "plan": "Show what a manifest would create, without a cluster.",
    "preflight": "Show what an install on a Kubernetes cluster would meet: definitions, operators, jobs.",
    "operator": "Look after jobs on a Kubernetes cluster.",
    "node": "Run pods of a Kubernetes cluster on this machine.",
    "crds": "Print the CustomResourceDefinitions to install on a cluster.",
    "manifests": "Print everything to install on a cluster: CRDs, RBAC rules, the operator.",
}
#: Commands that share a module: the module in `trainwright.cli`, and the name in it. Any other command is `command` in
#: the module of its own name.
_ELSEWHERE = {
    **{name: ("edits", f"{name}_command") for name in ("scale", "suspend", "resume", "annotate", "delete")},
    **{name: ("install", f"{name}_command") for name in ("crds", "manifests")},
}
#: 128 + SIGPIPE, what a shell reports of any program whose reader went away.
_READER_GONE = 141


class LazyGroup(click.Group):
    """A group that loads its commands one at a time."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """In the order of the table, which is the order of use."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load the command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = _ELSEWHERE.get(cmd_name, (cmd_name, "command"))
        command: click.Command = getattr(import_module(f"trainwright.cli.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the table's names to suggest from."""
        if args[0] not in COMMANDS and args[0][:1].isalnum() and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Run distributed training jobs: the same manifest on one machine or on Kubernetes.

    \b
    Examples:
      trainwright run -- python train.py
      trainwright run job.yaml
      trainwright logs -f demo worker-0
      trainwright validate job.yaml
      trainwright plan job.yaml
      trainwright crds | kubectl apply --server-side -f -

    \b
    Exit codes:
      0  done                      2  wrong usage, invalid manifest      124  --timeout passed
      1  the job failed            3  something broke                    130  interrupted
    """


def main() -> None:
    """Run the command line and exit."""
    purity.enforce()
    _complete()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # What a terminal cannot show is shown as an escape; it is no reason to fail.
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # The reader is gone or the disk is full, and `run` has told so. Without this the interpreter would flush once
        # more at its exit, print a traceback, and exit with code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _complete() -> None:
    """Standard files that the caller has closed lead nowhere; else the next file opened would take their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open


def run(args: list[str]) -> int:
    """Run one command line; the exit code."""
    try:
        code = cli.main(args, prog_name="trainwright", standalone_mode=False)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()  # not `print`: to write nothing fails as well on a full disk
    except click.ClickException as error:
        _with_numbers(error).show()
        return error.exit_code
    except TrainwrightError as error:
        return _say(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, SystemExit):  # click itself exits when the reader is gone, and only then
        return _READER_GONE
    except OSError as error:  # a full disk, for one
        return _say(str(error), 3)
    except Exception as error:  # the last line of defence
        return _broken(error)
    return code if isinstance(code, int) else 0


def _with_numbers(error: click.ClickException) -> click.ClickException:
    """Say which numbers an option takes, in place of click's `not a valid integer range` and `1<=x<=9`."""
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    if not isinstance(error, click.BadParameter) or not isinstance(kind, click.IntRange | click.FloatRange):
        return error
    word = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    if kind.min is not None and kind.max is not None:
        limits = f" from {kind.min} to {kind.max}"
    else:
        limits = f" {'above' if kind.min_open else 'of at least'} {kind.min}" if kind.min is not None else ""
    message = f"expected {word}{limits}, found {error.message.partition(' is not ')[0]}"
    return click.BadParameter(message, error.ctx, error.param, error.param_hint)


def _broken(error: Exception) -> int:
    if os.environ.get("TRAINWRIGHT_DEBUG"):
        import traceback  # noqa: PLC0415 - half as long to import as all the rest, and hardly ever needed

        traceback.print_exc()
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _say(f"internal error: {text[:500]}; run with TRAINWRIGHT_DEBUG=1 for the traceback", 3)


def _say(text: str, code: int) -> int:
    click.echo(f"trainwright: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
