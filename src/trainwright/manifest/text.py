# SPDX-License-Identifier: Apache-2.0
"""Bytes to text that the YAML parser can be trusted with, and the error that everything in this package raises.

Called by `documents.read` before anything is parsed: size, encoding, control characters, and what makes libyaml slow.
"""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE

from trainwright.errors import ManifestError

#: Twice what an API server stores; a job is a few kilobytes.
LARGEST = 3 * 1024 * 1024
#: libyaml compares each %TAG line with all before it.
_MOST_DIRECTIVES = 16
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class MalformedError(ManifestError):
    """Text that is not a manifest: `where` is FILE[:LINE[:COLUMN]], `what` the reason.

    `document` counts from 1, as in `Document`; 0: the reason is not in one of the documents.
    """

    def __init__(
        self, file: str, what: str, line: int | None = None, column: int | None = None, *, document: int = 0
    ) -> None:
        self.file = file
        self.document = document
        self.line = line
        self.where = ":".join(str(part) for part in (file, line, column) if part is not None)
        self.what = what
        super().__init__(f"{self.where}: {f'document {document}: ' if document else ''}{what}")


def decoded(file: str, data: bytes) -> str:
    """The text, if it is one."""
    if len(data) > LARGEST:
        raise MalformedError(file, f"larger than {LARGEST // 1024**2} MiB, which no manifest is")
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise MalformedError(file, "this is UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MalformedError(
            file, f"not UTF-8 text (byte 0x{data[error.start]:02x}); is this a manifest?", line
        ) from None
    return _clean(file, text)


def _clean(file: str, text: str) -> str:
    if (found := _UNPRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        what = f"control character U+{ord(found.group()):04X}, which YAML does not allow; is this a manifest?"
        raise MalformedError(file, what, line, column)
    if text.count("\n%") > _MOST_DIRECTIVES:
        raise MalformedError(file, f"more than {_MOST_DIRECTIVES} lines begin with `%`; is this a manifest?")
    return text
