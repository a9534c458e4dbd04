# SPDX-License-Identifier: Apache-2.0
"""`trainwright init`: a short manifest with comments, to begin from. `starters` has one for each kind."""

from importlib.resources import files
from pathlib import Path

import click

from trainwright.cli.install import kinds_named
from trainwright.errors import UsageError

_DEFAULT = "GenericJob"
_STDOUT = "-"


@click.command("init")
@click.argument("kind", default=_DEFAULT)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="job.yaml",
    show_default=True,
    help='Write to FILE; "-" is standard output.',
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def command(kind: str, output: str, force: bool) -> None:
    """Write a short manifest with comments, of the KIND (GenericJob, tfjob, ...); GenericJob unless told otherwise.

    It runs as it is, on this machine and on a cluster; put your own command in.

    \b
    Examples:
      trainwright init && trainwright run job.yaml
      trainwright init tfjob -o -
    """
    text = starter(kind)
    if output == _STDOUT:
        click.echo(text, nl=False)
        return
    shown = click.format_filename(output)
    try:
        # Exclusive, so that nothing is lost that came to be meanwhile.
        with Path(output).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text.replace(" FILE ", f" {shown} ").replace(" FILE\n", f" {shown}\n"))
    except FileExistsError:
        raise UsageError(f"{shown} is there already; --force replaces it, -o names another file") from None
    except OSError as error:
        raise UsageError(f"{shown} cannot be written: {error.strerror or error}") from None
    click.echo(f"wrote {shown}; run it with: trainwright run {shown}")


def starter(word: str) -> str:
    """The manifest of the kind that a word means. Raises UsageError with the nearest kind."""
    (kind,) = kinds_named([word])
    return files("trainwright.cli").joinpath("starters", f"{kind.singular}.yaml").read_text(encoding="utf-8")
