# SPDX-License-Identifier: Apache-2.0
"""`trainwright convert`: write a job of one kind as a manifest of another kind, and report what would be lost."""

from trainwright.kinds.conversion.convert import Conversion, convert
from trainwright.kinds.conversion.difference import Difference

__all__ = ["Conversion", "Difference", "convert"]
