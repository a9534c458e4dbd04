# SPDX-License-Identifier: Apache-2.0
"""Sizes of files on the command line and in texts, such as `500MB` or `10GiB`."""

import re
from typing import Any

import click

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


class Size(click.ParamType[int]):
    """An option that takes a size in bytes. A number without a unit means bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip())
        unit = _UNITS.get(found[2].upper()) if found is not None else None
        if found is None or unit is None:
            self.fail(f"{value!r} is not a size; write 500MB, 1GiB or a number of bytes", param, ctx)
        return int(float(found[1]) * unit)


def spell_size(number: float) -> str:
    """A size for people, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
