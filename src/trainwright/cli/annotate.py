# SPDX-License-Identifier: Apache-2.0
"""`trainwright annotate`: set and remove annotations of a running job, as `kubectl annotate` does."""

import click

from trainwright.cli.reach import namespaced, reach
from trainwright.errors import InvalidError, UsageError


@click.command("annotate")
@click.argument("job", metavar="JOB")
@click.argument("pairs", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@namespaced
@click.option("--overwrite", is_flag=True, help="Replace annotations that have another value.")
def command(job: str, pairs: tuple[str, ...], namespace: str, overwrite: bool) -> None:
    """Set annotations of JOB, or remove those that are written with a dash at the end.

    \b
    Examples:
      trainwright annotate demo owner=lena
      trainwright annotate --overwrite lab/demo owner=tom note-
    """
    wanted = dict(_pair(text) for text in pairs)
    reached = reach(job, namespace)
    present = reached.body["metadata"].get("annotations") or {}
    taken = [key for key, value in wanted.items() if value is not None and present.get(key, value) != value]
    if taken and not overwrite:
        listed = ", ".join(f"{key}={present[key]}" for key in taken)
        raise UsageError(f"{reached.run.key} has {listed} already; --overwrite replaces it")
    try:
        reached.patch({"metadata": {"annotations": wanted}})
    except InvalidError as error:
        raise UsageError(str(error)) from None
    click.echo(f"{reached.run.key} annotated")


def _pair(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals and key:
        return key, value
    if not equals and len(text) > 1 and text.endswith("-"):
        return text[:-1], None
    raise UsageError(f"expected KEY=VALUE to set an annotation, or KEY- to remove it; found {text!r}")
