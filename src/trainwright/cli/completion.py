# SPDX-License-Identifier: Apache-2.0
"""`trainwright completion`, and the names of jobs and replicas that the shell offers after Tab.

The names come from the state folder and from no engine, so that Tab is fast and works if an engine hangs.
"""

from collections.abc import Iterator
from typing import Literal

import click
from click.shell_completion import CompletionItem, get_completion_class

from trainwright.cli.record import read_pods
from trainwright.cli.runs import Run, find, jobs, latest
from trainwright.cli.state import home
from trainwright.errors import TrainwrightError

VARIABLE = "_TRAINWRIGHT_COMPLETE"
_HOW = {
    "bash": "trainwright completion bash > ~/.local/share/bash-completion/completions/trainwright",
    "zsh": "trainwright completion zsh > ~/.zfunc/_trainwright",
    "fish": "trainwright completion fish > ~/.config/fish/completions/trainwright.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(_HOW)))
def command(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script that completes commands, options, jobs and replicas after Tab.

    \b
    Examples:
      source <(trainwright completion bash)
      trainwright completion bash > ~/.local/share/bash-completion/completions/trainwright
      trainwright completion zsh > ~/.zfunc/_trainwright
      trainwright completion fish > ~/.config/fish/completions/trainwright.fish
    """
    from trainwright.cli.main import cli  # noqa: PLC0415 - `main` imports this module

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(_source(found(cli, {}, "trainwright", VARIABLE)))


def _source(completion: click.shell_completion.ShellComplete) -> str:
    """The script. click's version for bash asks the installed bash for its number, which is not needed here."""
    return completion.source_template % completion.source_vars()


def complete_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of jobs that begin with the text: with their namespace if it is not `default`."""
    if _is_on_cluster(ctx):
        return []
    given = ctx.params.get("namespace") or ""
    typed = {*(ctx.params.get("names") or ())}
    found = [_word(run, given) for run in _runs() if given in ("", run.key.namespace)]
    return [CompletionItem(word) for word in found if word.startswith(incomplete) and word not in typed]


def complete_replicas(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The replicas of the job that the command line names."""
    if _is_on_cluster(ctx):
        return []
    try:
        run = find(str(ctx.params.get("job") or ""), str(ctx.params.get("namespace") or ""))
    except TrainwrightError:
        return []
    names = dict.fromkeys(pod.replica for pod in read_pods(run.folder) if pod.job == str(run.key))
    return [CompletionItem(name) for name in names if name.lower().startswith(incomplete.lower())]


def _is_on_cluster(ctx: click.Context) -> bool:
    """Whether the command line chooses a cluster, whose jobs are not in the state folder."""
    return bool(ctx.params.get("context") or ctx.params.get("kubeconfig"))


def _runs() -> Iterator[Run]:
    state = home()
    return (run for key in jobs(state) if (run := latest(state, key)) is not None)


def _word(run: Run, namespace: str) -> str:
    return run.key.name if namespace else run.word
