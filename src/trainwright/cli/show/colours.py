# SPDX-License-Identifier: Apache-2.0
"""The names before log lines, each replica in a colour that stays its own. Used by `live` and by `logs`."""

import re
from functools import lru_cache
from zlib import crc32

_INDEX = re.compile(r"-(\d{1,9})(?=/|$)")
#: Codes of the sixteen that every terminal has; none that means something, as red does.
_PALETTE = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


@lru_cache(maxsize=4096)
def prefix(label: str, *, colour: bool) -> str:
    """`worker-0 |`; neighbours differ in colour."""
    if not colour:
        return f"{label} |"
    found = _INDEX.search(label)
    number = crc32(label[: found.start()].encode()) + int(found[1]) if found else 0
    return f"\x1b[{_PALETTE[number % len(_PALETTE)]}m{label} |\x1b[0m"
