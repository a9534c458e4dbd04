# SPDX-License-Identifier: Apache-2.0
"""Several CEL rules as one rule, which costs an API server less memory.

An API server evaluates all rules at every write, also when only the status changes. Each `self.field` in a rule costs
several KiB: the server copies the schemas of all fields of the object (`Structural.Properties` in
apiextensions-apiserver). Therefore a shortcut should read each field once: `[self.field].all(it, …)` gives the value of
a field a name.
"""

from dataclasses import dataclass

#: A CEL expression, and the message if it is false.
CelRule = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CombinedRule:
    """Rules that are evaluated one by one only if `shortcut` is false.

    `shortcut` is a cheap CEL expression that is true for most valid jobs. It must imply every rule in `parts`.
    """

    shortcut: str
    parts: tuple[CelRule, ...]

    @property
    def rule(self) -> str:
        """CEL: the shortcut is true, or every part is."""
        return f"({self.shortcut}) || ({' && '.join(f'({rule})' for rule, _ in self.parts)})"

    @property
    def message(self) -> str:
        """The message if a server cannot evaluate `message_expression`."""
        return f"one of: {'; '.join(message for _, message in self.parts)}"

    @property
    def message_expression(self) -> str:
        """CEL: the messages of all parts that are false. The estimated cost of `join` is above the limit for a CRD."""
        texts = [f"(({rule}) ? '' : {_literal(f'{message}; ')})" for rule, message in self.parts]
        return f"({' + '.join(texts)} + '$').replace('; $', '')"


def _literal(text: str) -> str:
    """The text as a CEL string."""
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"
