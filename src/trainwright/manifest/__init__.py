# SPDX-License-Identifier: Apache-2.0
"""YAML text to documents, as kubectl reads it, with nothing in it that could hurt. Called by the command line.

`text` guards the bytes, `values` reads single words, `builder` makes plain objects out of the parser's events (`syntax`
words its complaints) and `documents` keeps them with their lines. What is no manifest raises `ManifestError`, whose one
line says where and why.
"""

from trainwright.manifest.builder import LARGEST, MalformedError
from trainwright.manifest.documents import Document, errors_of, examine, read

__all__ = ["LARGEST", "Document", "MalformedError", "errors_of", "examine", "read"]
