# SPDX-License-Identifier: Apache-2.0
"""Reads manifest files as kubectl does, safely for any input.

`builder` parses the text with limits, and `documents` returns its objects with the line of every field. For text
that is not a manifest, `read` raises a `MalformedError`. Its message is one line: the position and the reason.
"""

from trainwright.manifest.builder import LARGEST, MalformedError
from trainwright.manifest.documents import Document, errors_of, examine, read

__all__ = ["LARGEST", "Document", "MalformedError", "errors_of", "examine", "read"]
