# SPDX-License-Identifier: Apache-2.0
"""`trainwright crds`: what to install on a cluster before the operator. Loaded by `cli.main` when it is asked for."""

from collections.abc import Iterable
from typing import Literal

import click
import msgspec

from trainwright.crd.manifests import crds
from trainwright.errors import UsageError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body
from trainwright.model.problem import nearest

#: What everybody should read who applies what follows.
FIRST = "# Run `trainwright preflight` first: it shows what this would replace on your cluster.\n"
OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["yaml", "json"]),
    default="yaml",
    show_default=True,
    help="YAML documents, or one JSON List.",
)


@click.command("crds")
@click.argument("kind", nargs=-1)
@OUTPUT
def command(kind: tuple[str, ...], output: Literal["yaml", "json"]) -> None:
    """Print the CustomResourceDefinitions of all kinds, or of each KIND (GenericJob, genericjobs, gj).

    `trainwright preflight` shows what they would replace on a cluster.

    \b
    Example:
      trainwright crds | kubectl apply --server-side -f -
    """
    bodies = crds(named(kind))
    click.echo(as_json(bodies) if output == "json" else FIRST + as_yaml(bodies), nl=False)


def named(words: Iterable[str]) -> tuple[Kind, ...]:
    """The kinds that these words mean, in the order of the registry; all of them, if there are no words."""
    names = [_name(word) for word in words]
    return tuple(each for each in KINDS if not names or each.name in names)


def _name(word: str) -> str:
    """The kind that a word means, whichever way kubectl would let people write it."""
    known = {spelling.lower(): each.name for each in KINDS for spelling in _spellings(each)}
    name = known.get(word.lower())
    if name is None:
        meant = known.get(nearest(word, known))
        hint = f"did you mean `{meant}`?" if meant else f"known are {', '.join(dict.fromkeys(known.values()))}"
        raise UsageError(f"there is no kind `{word}`; {hint}")
    return name


def _spellings(kind: Kind) -> tuple[str, ...]:
    return kind.name, kind.plural, f"{kind.plural}.{kind.group}", *kind.short_names


def as_json(bodies: tuple[Body, ...]) -> str:
    """One List."""
    whole = {"apiVersion": "v1", "kind": "List", "items": bodies}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def as_yaml(bodies: tuple[Body, ...]) -> str:
    """Documents, each written out: what they share is no alias."""
    import yaml  # noqa: PLC0415 - a third of a command's start-up time

    class Plain(yaml.SafeDumper):
        """kubectl would take aliases, people would not."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - of anything
            return True

    return yaml.dump_all(bodies, Dumper=Plain, sort_keys=False, allow_unicode=True, width=120)
