# SPDX-License-Identifier: Apache-2.0
"""`trainwright images`: list, pull, load, remove and prune the container images of this machine."""

import time
from collections.abc import Iterator, Sequence
from typing import Literal

import click
from msgspec import Struct

from trainwright.cli.background.size import Size, spell_size
from trainwright.cli.flags import age, duration_option, output_option
from trainwright.cli.images_progress import shown_progress
from trainwright.cli.output import as_json, columns
from trainwright.images.reference import parse_reference
from trainwright.images.store import ImageStore, StoredImage, default_root

_ID_DIGITS = 12
_NO_NAME = "<none>"
_MAX_SIZE = "20GiB"


class ListedImage(Struct, frozen=True, rename="camel"):
    """One image, for programs. `size` is the sum of its layers, which it may share with other images."""

    id: str
    names: tuple[str, ...]
    digest: str
    platform: str
    form: str
    layers: int
    size: int
    last_used: float


@click.group("images")
def command() -> None:
    """List, pull, load, remove and prune container images. They need neither docker nor podman.

    The images of a user are in $TRAINWRIGHT_IMAGES, otherwise in $XDG_CACHE_HOME/trainwright/images, otherwise in
    ~/.cache/trainwright/images. A job does not run in them yet: its commands must be installed on this machine.

    \b
    Examples:
      trainwright images pull pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime
      docker save my/train:1 | trainwright images load -
      trainwright images list
      trainwright images prune --older-than 30d
    """


@command.command("list")
@output_option(choices=("table", "json", "name"), help="Print a table, JSON, or only the names.")
def list_command(form: Literal["table", "json", "name"]) -> None:
    """List the images in the store."""
    listed = list(_listed(ImageStore(default_root())))
    if form == "json":
        click.echo(as_json(listed), nl=False)
    elif form == "name":
        for image in listed:
            for name in image.names:
                click.echo(parse_reference(name).familiar())
    elif not listed:
        click.echo(f"no images in {default_root()}; `trainwright images pull NAME` gets one")
    else:
        now = time.time()
        rows = [("IMAGE", "ID", "LAYERS", "SIZE", "USED")]
        for image in listed:
            for name in image.names or (_NO_NAME,):
                shown = parse_reference(name).familiar() if name != _NO_NAME else name
                row = (_short(image.id), str(image.layers), spell_size(image.size), f"{age(now - image.last_used)} ago")
                rows.append((shown, *row))
        for line in columns(rows):
            click.echo(line)


def _listed(store: ImageStore) -> Iterator[ListedImage]:
    from trainwright.images.removal import image_layers, layers_size  # noqa: PLC0415 - completion does not need it

    for image in store.images():
        record = image.record
        yield ListedImage(
            record.id,
            tuple(name.reference for name in image.names),
            next((name.digest for name in image.names if name.digest), ""),
            record.platform,
            record.form,
            len(record.chains),
            layers_size(store, image_layers(image)),
            store.last_used(record),
        )


def _short(image: str) -> str:
    return image.partition(":")[2][:_ID_DIGITS]


@command.command("pull")
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True)
def pull_command(names: tuple[str, ...]) -> None:
    """Pull each IMAGE from its registry, or only what is missing of it.

    Names are read as docker reads them: `busybox` is docker.io/library/busybox:latest. Credentials are those of
    `docker login` and `podman login`, also by their credential helpers. A pull that was interrupted goes on where it
    stopped.
    """
    from trainwright.images.pull import pull  # noqa: PLC0415 - ssl and http.client are slow to import

    references = [parse_reference(name) for name in names]
    store = ImageStore(default_root())
    with shown_progress() as progress:
        for reference in references:
            done = pull(store, reference, progress)
            what = "pulled" if done.new else "up to date:"
            click.echo(f"{what} {reference.familiar()} ({done.digest})")


@command.command("load")
@click.argument("file")
@click.option("--name", metavar="IMAGE", help="Give the image this name. FILE must have only one image.")
def load_command(file: str, name: str | None) -> None:
    """Load the images of FILE; "-" is standard input.

    FILE is an archive of `docker save` or `podman save`, or an OCI layout: a folder or an archive. It may be compressed
    with gzip, zstd, bzip2 or xz.
    """
    from trainwright.images.archives import load  # noqa: PLC0415 - tarfile is slow to import

    reference = parse_reference(name) if name is not None else None
    with shown_progress() as progress:
        for one in load(ImageStore(default_root()), file, reference, progress):
            click.echo(f"loaded {', '.join(found.familiar() for found in one.names)} ({one.record.id})")


def complete_images(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names in the store that begin with the text."""
    known = [parse_reference(name.reference) for image in ImageStore(default_root()).images() for name in image.names]
    return [name for one in known for name in {one.familiar(), str(one)} if name.startswith(incomplete)]


@command.command("rm")
@click.argument("names", metavar="IMAGE...", nargs=-1, required=True, shell_complete=complete_images)
def rm_command(names: tuple[str, ...]) -> None:
    """Remove each IMAGE, given by its name or the first six or more digits of its id.

    An image with several names only loses the given name. An image that a job uses stays, and the command fails.
    """
    from trainwright.images.removal import remove  # noqa: PLC0415 - as above

    store = ImageStore(default_root())
    store.prepare()
    done = remove(store, names)
    _report(done.images, done.size, swept=done.swept)


@command.command("prune")
@click.option(
    "--max-size",
    type=Size(),
    metavar="SIZE",
    default=_MAX_SIZE,
    show_default=True,
    help="Remove the images that were not used for the longest time, until the others need at most SIZE.",
)
@duration_option("--older-than", default=None, help="Also remove images that were not used for TIME, such as 30d.")
@click.option("--dry-run", is_flag=True, help="Only print which images would be removed.")
def prune_command(max_size: int, older_than: float | None, dry_run: bool) -> None:
    """Remove images by size and age, images without a name, and everything that no image needs.

    An image that a job uses is never removed.
    """
    from trainwright.images.removal import PruneLimits, choose, prune  # noqa: PLC0415 - as above

    store, limits = ImageStore(default_root()), PruneLimits(max_size, older_than)
    if dry_run:
        chosen = choose(store, limits)
        for image in chosen:
            click.echo(f"would remove {_title(image)}")
        if not chosen:
            click.echo("nothing to remove")
        return
    store.prepare()
    done = prune(store, limits)
    for image in done.skipped:
        click.echo(f"kept {_title(image)}: a job uses it")
    _report(done.images, done.size, swept=done.swept)


def _report(images: Sequence[StoredImage], size: int, *, swept: bool) -> None:
    for image in images:
        click.echo(f"removed {_title(image)}")
    if swept:
        click.echo(f"freed {spell_size(size)}")
    else:
        click.echo(
            "the layers stay for now, since another process adds an image; `trainwright images prune` removes them"
        )


def _title(image: StoredImage) -> str:
    names = [parse_reference(name.reference).familiar() for name in image.names]
    return ", ".join(names) or f"{_short(image.record.id)} (no name)"
