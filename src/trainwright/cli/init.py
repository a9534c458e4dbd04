# SPDX-License-Identifier: Apache-2.0
"""`trainwright init`: write a short manifest with comments as a starting point. The manifests are in `starters/`."""

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
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(kind: str, output: str, force: bool) -> None:
    """Write a short manifest with comments for KIND: GenericJob (the default), TFJob, PaddleJob, AITrainingJob,
    PyTorchJob, XGBoostJob, JAXJob or PaddleJob.kubeflow.org.

    The manifest runs without changes, on this machine and on a cluster. Replace its command with your own.

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
        # Mode "x" fails if the file exists, so that the command does not overwrite a file of the user.
        with Path(output).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text.replace(" FILE ", f" {shown} ").replace(" FILE\n", f" {shown}\n"))
    except FileExistsError:
        raise UsageError(
            f"{shown} already exists; to replace it, give --force; to write another file, give -o FILE"
        ) from None
    except OSError as error:
        raise UsageError(f"{shown} cannot be written: {error.strerror or error}") from None
    click.echo(f"wrote {shown}; run it with: trainwright run {shown}")


def starter(word: str) -> str:
    """The manifest for the kind `word`. If there is no such kind, raises UsageError with the nearest kind."""
    (kind,) = kinds_named([word])
    return files("trainwright.cli").joinpath("starters", f"{kind.id}.yaml").read_text(encoding="utf-8")
