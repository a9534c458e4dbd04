# SPDX-License-Identifier: Apache-2.0
"""Spans of time on the command line: `30`, `1.5m`, `1h30m` in, `12.3s`, `5m03s` out. Used by options and by views.

Options as operators written in Go take them: `-v=4`, `--leader-elect=true`, `-logtostderr`. For `cli.operator`
and, where they are the same, for `cli.run`.

A start line that works for one of the operators whose jobs we run should work here, unchanged.

The options of a command from a file: YAML, one key per option, `lease-duration` or `leaseDuration`.

An option's callback: what it finds becomes the command's defaults, so the environment and the command line come first.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from trainwright.errors import UsageError
from trainwright.model.problem import nearest, shown

if TYPE_CHECKING:
    from trainwright.manifest import Document

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
#: A year; longer is a slip of the keyboard, and timers need not be able to take it.
LONGEST = 366 * 86400.0


class Duration(click.ParamType[float]):
    """An option that takes a span of time; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds."""
        seconds = parse(str(value))
        if seconds is None or seconds > LONGEST:
            self.fail(f"{value!r} is not a span of time; write 30, 30s, 5m, 1h or 1h30m", param, ctx)
        return seconds


def parse(text: str) -> float | None:
    """The seconds that a text names."""
    try:
        return _bare(float(text))
    except ValueError:
        pass
    if not _WHOLE.fullmatch(text):
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _bare(seconds: float) -> float | None:
    return seconds if 0 <= seconds < float("inf") else None


def spell(seconds: float) -> str:
    """As people read it: a tenth of a second below a minute, two units above."""
    if seconds < 59.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def span(seconds: float) -> str:
    """A length that somebody chose: `90 s`, `1.5 s`; from an hour on also as people read it."""
    return f"{seconds:g} s" + (f" ({spell(seconds)})" if seconds >= 3600 else "")


def age(seconds: float) -> str:
    """As a table shows it: whole seconds, so that it does not change more often."""
    return f"{max(int(seconds), 0)}s" if seconds < 60 else spell(seconds)


_WORD = re.compile(r"-([A-Za-z][A-Za-z0-9-]*)((?:=.*)?)", re.DOTALL)
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})


class GoCommand(click.Command):
    """A command whose options may be written with one dash, and each also as an environment variable of its name."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        prefix = self.context_settings.get("auto_envvar_prefix")
        for param in self.params:
            names = [name.removeprefix("--").replace("-", "_").upper() for name in param.opts if name.startswith("--")]
            given = [param.envvar] if isinstance(param.envvar, str) else [*(param.envvar or ())]
            param.envvar = [*(f"{prefix}_{name}" for name in names), *given]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give every long option its two dashes."""
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        return super().parse_args(ctx, [_dashed(word, known) for word in args])


def _dashed(word: str, known: set[str]) -> str:
    match = _WORD.fullmatch(word)
    if match is None or f"-{match[1]}" in known or f"--{match[1]}" not in known:
        return word
    return f"-{word}"


class Switch(click.ParamType[bool]):
    """An option that is on when it is there, unless it says otherwise."""

    name = "switch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Whether it is on."""
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word not in _TRUE | _FALSE:
            self.fail(f"{value!r} is neither true nor false", param, ctx)
        return word in _TRUE


class PortRange(click.ParamType[tuple[int, int]]):
    """The first and the last of some ports: `35000,65000`."""

    name = "ports"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """The two."""
        given = value if isinstance(value, list | tuple) else re.split("[,-]", str(value))
        words = [str(word).strip() for word in given]
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            self.fail(f"{value!r} is not a range of ports; write 35000,65000", param, ctx)
        first, last = (int(word) for word in words)
        if not 0 < first <= last < 65536:
            self.fail(f"{value!r}: ports go from 1 to 65535, the lower one first", param, ctx)
        return first, last


class Servers(click.ParamType[str]):
    """Where servers are: `host:port,…`. They speak plain HTTP, so a scheme says no more than that."""

    name = "servers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Hosts and ports alone."""
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        return ",".join(self._place(word, param, ctx) for word in words)

    def _place(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        scheme, _, place = word.rpartition("://")
        host, _, port = place.rstrip("/").rpartition(":")
        if scheme not in ("", "http", "etcd") or not host or "/" in host or not port.isdecimal():
            self.fail(f"{word!r} is not a server; write host:port", param, ctx)
        if not 0 < int(port) < 65536:
            self.fail(f"{word!r}: ports go from 1 to 65535", param, ctx)
        return f"{host}:{port}"


class Words(click.ParamType[frozenset[str]]):
    """Some words, `A,B`; `default` among them stands for those that are known, `none` for no word at all."""

    name = "words"

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        """The words."""
        if isinstance(value, frozenset):
            return value
        given = [word for one in str(value).split(",") if (word := one.strip())]
        found: set[str] = set()
        for word in given:
            found |= self.known if word == "default" else {word} - {"none"}
        if not given or ("none" in given and len(given) > 1):
            self.fail(f"{value!r}: expected words with commas between them, `default` or `none`", param, ctx)
        return frozenset(found)


class Conditions(click.ParamType[frozenset[tuple[str, str]]]):
    """Conditions of nodes that mean trouble: `GPUMissing`, which is as good as `GPUMissing=True`, `GPUReady=False`."""

    name = "conditions"

    def __init__(self, known: frozenset[tuple[str, str]]) -> None:
        self._words = Words(frozenset(f"{type_}={status}" for type_, status in known))

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[tuple[str, str]]:
        """Their types, each with the status that means trouble."""
        if isinstance(value, frozenset):
            return value
        return frozenset([self._pair(word, param, ctx) for word in self._words.convert(value, param, ctx)])

    def _pair(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        type_, equals, status = word.partition("=")
        if not type_ or (equals and status not in ("True", "False", "Unknown")):
            self.fail(f"{word!r} is not a condition; write GPUMissing or GPUReady=False", param, ctx)
        return type_, status or "True"


class ZapLevel(click.ParamType[int]):
    """A level of zap, the log library of operators written in Go: a word, or a number that grows with the detail."""

    name = "level"
    _WORDS: ClassVar = {
        "debug": logging.DEBUG,
        "info": logging.INFO,
        "warn": logging.WARNING,
        "error": logging.ERROR,
        "panic": logging.CRITICAL,
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The level of Python's `logging`. Every number of zap from 1 on is some debug level."""
        if isinstance(value, int) and not isinstance(value, bool) and value in self._WORDS.values():
            return value
        word = str(value).strip().lower()
        if word.isdecimal() and int(word) > 0:
            return logging.DEBUG
        if word not in self._WORDS:
            self.fail(f"{value!r} is not a level; write {', '.join(self._WORDS)} or a number from 1 on", param, ctx)
        return self._WORDS[word]


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def switch(*names: str, default: bool = False, **more: Any) -> Decorator:
    """An option of that type: `--name`, `--name=true`, `--name=false`."""
    return click.option(
        *names, type=Switch(), is_flag=False, flag_value="true", default=default, metavar="[true|false]", **more
    )


_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")


def from_file(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Read the file, if one is named; UsageError or ManifestError, with its line."""
    if name:
        ctx.default_map = _defaults(ctx, param, _read(name))
    return name


def _read(name: str) -> "Document":
    from trainwright.manifest import read  # noqa: PLC0415 - YAML, which most commands do not need

    try:
        text = Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"--config: {name}: {error.strerror or error}") from None
    documents = read(name, text)
    if len(documents) > 1:
        raise UsageError(f"--config: {name}: has {len(documents)} documents; expected one, a mapping of options")
    return documents[0]


def _defaults(ctx: click.Context, itself: click.Parameter, document: "Document") -> dict[str, Any]:
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
