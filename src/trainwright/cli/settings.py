# SPDX-License-Identifier: Apache-2.0
"""The options of a command from a file: YAML, one key per option, `lease-duration` or `leaseDuration`.

An option's callback: what it finds becomes the command's defaults, so the environment and the command line come first.
"""

import re
from pathlib import Path
from typing import Any

import click

from trainwright.errors import UsageError
from trainwright.manifest import Document, read
from trainwright.model.problem import nearest, shown

_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")


def from_file(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Read the file, if one is named; UsageError or ManifestError, with its line."""
    if name:
        ctx.default_map = _defaults(ctx, param, _read(name))
    return name


def _read(name: str) -> Document:
    try:
        text = Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"--config: {name}: {error.strerror or error}") from None
    documents = read(name, text)
    if len(documents) > 1:
        raise UsageError(f"--config: {name}: has {len(documents)} documents; expected one, a mapping of options")
    return documents[0]


def _defaults(ctx: click.Context, itself: click.Parameter, document: Document) -> dict[str, Any]:
    known = {
        option.removeprefix("--"): param
        for param in ctx.command.params
        for option in param.opts
        if option.startswith("--") and param is not itself
    }
    found: dict[str, Any] = {}
    for key, value in document.body.items():
        where = f"{document.file}:{document.line(key)}: {key}"
        option = _HUMP.sub(lambda match: f"-{match[0].lower()}", key)
        if option not in known:
            hint = nearest(option, known)
            raise UsageError(f"{where}: there is no such option" + (f"; did you mean `{hint}`?" if hint else ""))
        if value is not None:
            found[known[option].name or ""] = _value(ctx, known[option], value, where)
    return found


def _value(ctx: click.Context, param: click.Parameter, value: Any, where: str) -> Any:
    """As the command line would have it."""
    if isinstance(value, list):
        value = [str(word) for word in value] if param.multiple else ",".join(str(word) for word in value)
    elif isinstance(value, dict):
        raise UsageError(f"{where}: expected one value, found {shown(value)}")
    elif param.multiple:
        value = [value]
    try:
        # Twice is as good as once: what comes out is what goes in again.
        return param.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None
