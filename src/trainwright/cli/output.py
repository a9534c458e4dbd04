# SPDX-License-Identifier: Apache-2.0
"""Output for people and programs: problems of documents, JSON, YAML, and tables in the style of `kubectl get`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from trainwright.model.problem import Problem

if TYPE_CHECKING:
    from trainwright.manifest import Document  # imports the YAML parser, which tables do not need

State = Literal["valid", "invalid", "skipped"]


class LocatedProblem(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One problem with its line in the file."""

    severity: Literal["error", "warning"]
    path: str
    message: str
    nearest: str = ""
    line: int | None = None

    def __str__(self) -> str:
        return str(Problem(self.path, self.message, self.nearest)) if self.path else self.message


def remarks(document: "Document", problems: Iterable[Problem], *, strict: bool = False) -> tuple[LocatedProblem, ...]:
    """The problems with their line numbers, sorted by line. With `strict`, a warning becomes an error."""
    found = [
        LocatedProblem(
            "warning" if one.warning and not strict else "error",
            one.path,
            one.message,
            one.nearest,
            document.line(one.path),
        )
        for one in problems
    ]
    return tuple(sorted(found, key=lambda remark: remark.line or 0))


class Finding(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The result for one document. `document` is its number from 1 on; 0 means that the file cannot be read."""

    file: str
    document: int
    state: State
    subject: str = ""
    line: int | None = None
    problems: tuple[LocatedProblem, ...] = ()


class Summary(Struct, frozen=True):
    """The numbers of valid, invalid and skipped documents, and of warnings."""

    valid: int
    invalid: int
    skipped: int
    warnings: int

    def __str__(self) -> str:
        counts = [
            f"{_count(self.valid, 'document')} valid",
            f"{self.invalid} invalid",
            _count(self.warnings, "warning"),
        ]
        return ", ".join(counts + [f"{self.skipped} skipped"] * bool(self.skipped))


def summary(findings: Sequence[Finding]) -> Summary:
    """Count the findings."""
    valid, invalid, skipped = (sum(one.state == state for one in findings) for state in ("valid", "invalid", "skipped"))
    warnings = sum(remark.severity == "warning" for one in findings for remark in one.problems)
    return Summary(valid, invalid, skipped, warnings)


def lines(finding: Finding) -> Iterator[str]:
    """A finding as lines of text."""
    about = f"document {finding.document}" + (f" ({finding.subject})" if finding.subject else "")
    for remark in finding.problems:
        where = _where(finding.file, remark.line or finding.line)
        yield f"{where}: {remark.severity}: {f'{about}: ' if finding.document else ''}{remark}"
    if finding.state == "skipped":
        yield f"{_where(finding.file, finding.line)}: skipped: {finding.subject}"
    if finding.state == "valid":
        yield f"{finding.file}: {finding.subject} is valid"


def as_json(whole: Any) -> str:
    """A value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def as_yaml(bodies: Iterable[Any], *, blocks: bool = False) -> str:
    """Values as YAML documents. With `blocks`, a text of several lines is written as a block."""
    import yaml  # noqa: PLC0415 - its import takes a third of the start-up time of a command

    class NoAliasDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        """Writes no aliases, which are hard to read: if several objects share a value, each copy is written in full."""

        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def as_block(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    if blocks:
        NoAliasDumper.add_representer(str, as_block)
    text: str = yaml.dump_all(bodies, Dumper=NoAliasDumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _where(file: str, line: int | None) -> str:
    return file if line is None else f"{file}:{line}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def columns(rows: Sequence[Sequence[str]], gap: str = "   ") -> Iterator[str]:
    """The lines of a table. The last column is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        yield gap.join([*cells, row[-1]]).rstrip()
