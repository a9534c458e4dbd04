# SPDX-License-Identifier: Apache-2.0
"""The console script: it finds and runs a command, and converts the result to an exit code and an error message.

This module imports little, and imports a command only when the user runs it, so that `trainwright --help` is fast.
"""

import gc
import os
import sys
from importlib import import_module
from io import TextIOWrapper

import click
from click.shell_completion import CompletionItem, shell_complete

from trainwright import __version__
from trainwright.errors import TrainwrightError
from trainwright.runtime import purity

#: Each command and its line in `trainwright --help`, which is shown without an import of the command's module.
COMMANDS = {
    "run": "Run jobs on this machine, follow them, and exit with their outcome.",
    "up": "Start an engine in the background that keeps jobs until they finish.",
    "down": "End the background engine, and keep or end its jobs.",
    "status": "Show the background engine: process, nodes, devices, jobs by phase.",
    "kubeconfig": "Print the kubeconfig of the background engine, or add it to your own.",
    "submit": "Hand jobs over to the background engine or to a cluster.",
    "attach": "Follow a job of the background engine like `run`.",
    "wait": "Wait until a job has ended or runs.",
    "top": "Show the CPU time and memory of the replicas that run now.",
    "init": "Write a short manifest with comments as a starting point.",
    "get": "List the jobs that run on this machine or on a cluster, or show one job with its replicas.",
    "logs": "Print the logs of replicas, also after the run has ended.",
    "explain": "Say in a few sentences why a job failed, waits, restarts or runs, and what to do.",
    "describe": "Show everything about a job on one page: replicas, budgets, verdict, history, events.",
    "events": "Print the events about a job and its pods.",
    "history": "Print the attempts of a job, and where its time went.",
    "exec": "Run a command inside a replica of a running job.",
    "scale": "Change the number of replicas of a running job.",
    "suspend": "Pause a running job by ending its replicas.",
    "resume": "Continue a suspended job.",
    "annotate": "Set or remove annotations of a running job.",
    "delete": "End a running job.",
    "completion": "Print a script that completes commands, jobs and replicas in your shell.",
    "images": "List, pull, load, remove and prune container images.",
    "validate": "Check manifests and list every mistake with its line and the nearest valid spelling.",
    "plan": "Show what a manifest would create, without a cluster.",
    "convert": "Write the jobs of a file as another kind, and report what would be lost.",
    "simulate": "Drive a manifest through faults without running it, and show what happens.",
    "preflight": "Show which definitions, operators and jobs a Kubernetes cluster has before you install.",
    "operator": "Run the operator, which controls jobs on a Kubernetes cluster.",
    "node": "Run pods of a Kubernetes cluster on this machine.",
    "crds": "Print the CustomResourceDefinitions to install on a cluster.",
    "manifests": "Print everything to install on a cluster: CRDs, RBAC rules, the operator.",
}
#: Commands that share a module: the module in `trainwright.cli` and the name of the function. Any other command is the
#: function `command` in the module that has the name of the command.
_IN_SHARED_MODULE = {
    **{name: ("edits", f"{name}_command") for name in ("scale", "suspend", "resume", "annotate", "delete")},
    **{name: (f"inspect.{name}", "command") for name in ("explain", "describe", "events", "history")},
    **{name: (f"background.{name}", "command") for name in ("up", "down", "status", "submit", "attach")},
    "kubeconfig": ("background.access", "command"),
    **{name: ("install", f"{name}_command") for name in ("crds", "manifests", "preflight")},
}
#: 128 + SIGPIPE: the exit code that a shell reports for a program whose output pipe was closed.
_BROKEN_PIPE_CODE = 141


#: The variable in which the script of `trainwright completion` asks for names.
_COMPLETE = "_TRAINWRIGHT_COMPLETE"


class LazyGroup(click.Group):
    """A group that imports a command only when it is needed."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names in the order of `COMMANDS`, which begins with the most used commands."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command with this name."""
        if cmd_name not in COMMANDS:
            return None
        module, name = _IN_SHARED_MODULE.get(cmd_name, (cmd_name, "command"))
        gc.disable()  # Garbage collection takes 5 % of a command's time, and an import makes no garbage.
        command: click.Command = getattr(import_module(f"trainwright.cli.{module}"), name)
        gc.freeze()
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command like click, but suggest names from `COMMANDS`, so that no command is imported."""
        if args[0] not in COMMANDS and args[0][:1].isalnum() and not ctx.resilient_parsing:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin with the text. click would import every command for its help text."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with the texts of `COMMANDS`."""
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
      trainwright explain demo
      trainwright validate job.yaml
      trainwright plan job.yaml
      trainwright convert job.yaml --to genericjob
      trainwright simulate job.yaml --fail worker-1=137@30s
      trainwright crds | kubectl apply --server-side -f -

    \b
    Exit codes:
      0  done                      2  wrong usage, invalid manifest      124  --timeout passed
      1  the job failed            3  something broke                    130  interrupted
    """


def main() -> None:
    """Run the command line and exit."""
    purity.enforce()
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # If the terminal's encoding does not have a character, print an escape sequence instead of failing.
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        # The pipe is closed or the disk is full, and `run` has reported this already. Without the next line, Python
        # would flush again at exit, print a traceback, and exit with code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed.

    Otherwise the next file that this process opens would get the descriptor number of the closed stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - the stream stays open


def run(args: list[str]) -> int:
    """Run one command line and return the exit code."""
    complete = os.environ.pop(_COMPLETE, "")
    if complete:
        return shell_complete(cli, {}, "trainwright", _COMPLETE, complete)
    try:
        code = cli.main(args, prog_name="trainwright", standalone_mode=False)
        if sys.stdout is not None:  # it is None if the caller has closed standard output
            sys.stdout.flush()  # `print(end="", flush=True)` fails on a full disk even without output
    except click.ClickException as error:
        _with_numbers(error).show()
        return error.exit_code
    except TrainwrightError as error:
        return _report(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (BrokenPipeError, SystemExit):  # click raises SystemExit only if the output pipe is closed
        return _BROKEN_PIPE_CODE
    except OSError as error:  # for example a full disk
        return _report(str(error), 3)
    except Exception as error:  # a defect in Trainwright
        return _report_defect(error)
    return code if isinstance(code, int) else 0


def _with_numbers(error: click.ClickException) -> click.ClickException:
    """Replace click's texts `not a valid integer range` and `1<=x<=9` by a text that says which numbers are valid."""
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param is not None else None
    if not isinstance(error, click.BadParameter) or not isinstance(kind, click.IntRange | click.FloatRange):
        return error
    number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    if kind.min is not None and kind.max is not None:
        limits = f" from {kind.min} to {kind.max}"
    else:
        limits = f" {'above' if kind.min_open else 'of at least'} {kind.min}" if kind.min is not None else ""
    message = f"expected {number}{limits}, found {error.message.partition(' is not ')[0]}"
    return click.BadParameter(message, error.ctx, error.param, error.param_hint)


def _report_defect(error: Exception) -> int:
    if os.environ.get("TRAINWRIGHT_DEBUG"):
        import traceback  # noqa: PLC0415 - its import is slow, and it is rarely needed

        traceback.print_exc()
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _report(f"internal error: {text[:500]}; run with TRAINWRIGHT_DEBUG=1 for the traceback", 3)


def _report(text: str, code: int) -> int:
    click.echo(f"trainwright: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
