# SPDX-License-Identifier: Apache-2.0
"""Files named on the command line to documents; `-` is standard input. Called by every command that takes manifests."""

import sys
from pathlib import Path

import click

from trainwright.manifest import LARGEST, Document, MalformedError, read


def documents(file: str) -> tuple[Document, ...]:
    """All documents of one file. Raises MalformedError for whatever cannot be read as manifests."""
    name = "stdin" if file == "-" else click.format_filename(file)
    try:
        return read(name, _bytes(file))
    except OSError as error:
        raise MalformedError(name, _reason(error)) from None


def _bytes(file: str) -> bytes:
    """The content, or one byte more than may be: enough to see that it is too large."""
    if file == "-":
        return sys.stdin.buffer.read(LARGEST + 1)
    with Path(file).open("rb") as stream:
        return stream.read(LARGEST + 1)


def _reason(error: OSError) -> str:
    match error:
        case FileNotFoundError():
            return "no such file"
        case IsADirectoryError():
            return "this is a directory; name the files in it"
        case PermissionError():
            return "not allowed to read it"
        case _:
            return f"cannot be read: {error.strerror or error}"
