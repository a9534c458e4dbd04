# SPDX-License-Identifier: Apache-2.0
"""`trainwright kubeconfig`: print the kubeconfig of the background engine, or add it to the user's own."""

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from trainwright.cli.background.place import engine_folder
from trainwright.cli.flags import choice_option
from trainwright.errors import EngineError, UsageError
from trainwright.model.job import Body

if TYPE_CHECKING:
    from trainwright.api.access import AccessRole


@click.command("kubeconfig")
@choice_option("--role", choices=("admin", "user", "viewer"), help="Print the kubeconfig with the token of this role.")
@click.option("--merge", is_flag=True, help="Add the context `trainwright` to your own kubeconfig and use it.")
@click.option("--remove", is_flag=True, help="Remove the context `trainwright` from your own kubeconfig.")
@click.option("--keep-context", is_flag=True, help="With --merge: do not change the current context.")
@click.option("--file", "path", metavar="FILE", help="With --merge and --remove: use FILE, not $KUBECONFIG.")
def command(role: str, merge: bool, remove: bool, keep_context: bool, path: str | None) -> None:
    """Print the kubeconfig with which kubectl and other programs reach the background engine.

    `trainwright up` writes the same content for the role admin into a private file; `trainwright status` shows its
    path. Your own kubeconfig is changed only with --merge and --remove.

    \b
    Examples:
      trainwright kubeconfig > engine.yaml && kubectl --kubeconfig engine.yaml get genericjobs
      trainwright kubeconfig --merge && kubectl get pods
      trainwright kubeconfig --role viewer > read-only.yaml
      trainwright kubeconfig --remove

    \b
    Exit codes:
      0  done          2  wrong usage, or a kubeconfig that cannot be changed          3  there was no engine yet
    """
    from trainwright.api.access import AccessRole  # noqa: PLC0415 - imports the kinds, which is slow
    from trainwright.cli.background import kubeconfig  # noqa: PLC0415

    if merge and remove:
        raise UsageError("--merge and --remove: give one of them")
    if path is not None and not (merge or remove):
        raise UsageError("--file: give --merge or --remove with it")
    target = Path(path) if path is not None else kubeconfig.default_path()
    if remove:
        changed = kubeconfig.remove_from_kubeconfig(target)
        click.echo(f"{target}: the context trainwright is removed" if changed else f"{target}: nothing to remove")
        return
    content = _content(AccessRole(role))
    if not merge:
        _make_private()
        click.echo(msgspec.json.format(msgspec.json.encode(content)).decode())
        return
    kubeconfig.merge_kubeconfig(target, content, use=not keep_context)
    current = "has the context trainwright now" if keep_context else "uses the context trainwright now"
    click.echo(f"{target} {current}; `trainwright kubeconfig --remove` undoes it")


def _make_private() -> None:
    """If our output goes to a file, let only its owner read it: it contains a token."""
    with suppress(OSError):  # no file, or the file of another user
        output = sys.stdout.fileno()
        if stat.S_ISREG(os.fstat(output).st_mode):
            os.fchmod(output, 0o600)


def _content(role: "AccessRole") -> Body:
    """The kubeconfig for a role. Raises EngineError if no engine has ever served the API."""
    from trainwright.api.credentials import ApiCredentials  # noqa: PLC0415
    from trainwright.cli.background.api import last_url  # noqa: PLC0415
    from trainwright.runtime.ports import WallClock  # noqa: PLC0415

    folder = engine_folder()
    url = last_url(folder)
    if not url:
        raise EngineError("no engine has served its API yet; start one with `trainwright up`")
    credentials = ApiCredentials(folder, WallClock())
    credentials.prepare()
    return credentials.kubeconfig_for(role, url)
