# SPDX-License-Identifier: Apache-2.0
"""Option types of the command line: durations, and options in the style of Go programs, which a file can also set.

Go programs accept `-v=4`, `--leader-elect=true` and `-logtostderr`. So do we, so that command lines of the original
controllers work here without a change. The option file is YAML with one key per option, for example `lease-duration`
or `leaseDuration`. Its values become the defaults, so environment variables and the command line override the file.
"""

import re
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from msgspec import Struct

from trainwright.errors import UsageError
from trainwright.model.problem import nearest, shown
from trainwright.model.units import parse_duration, spell

if TYPE_CHECKING:
    from trainwright.manifest import Document

#: The longest duration, about a year. A longer time is a typing error, and some timers do not support it.
MAX_SECONDS = 366 * 86400.0


class Duration(click.ParamType[float]):
    """An option that takes a duration. A number without a unit means seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        seconds = parse_duration(str(value))
        if seconds is None or seconds > MAX_SECONDS:
            self.fail(f"{value!r} is not a duration; write 30, 30s, 5m, 1h or 1h30m", param, ctx)
        return seconds


def span(seconds: float) -> str:
    """Format a configured duration, for example `90 s`; from one hour on, add the text of `spell` in brackets."""
    return f"{seconds:g} s" + (f" ({spell(seconds)})" if seconds >= 3600 else "")


def age(seconds: float) -> str:
    """Format an age for a table: in whole seconds, so that the text changes at most once per second."""
    return f"{max(int(seconds), 0)}s" if seconds < 60 else spell(seconds)


_GO_OPTION = re.compile(r"-([A-Za-z][A-Za-z0-9-]*)((?:=.*)?)", re.DOTALL)
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_FALSE = frozenset({"0", "f", "false", "n", "no", "off"})


class GoCommand(click.Command):
    """A command whose long options also work with one dash. Each long option name also has an environment variable."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        prefix = self.context_settings.get("auto_envvar_prefix")
        for param in self.params:
            names = [name.removeprefix("--").replace("-", "_").upper() for name in param.opts if name.startswith("--")]
            given = [param.envvar] if isinstance(param.envvar, str) else [*(param.envvar or ())]
            param.envvar = [*(f"{prefix}_{name}" for name in names), *given]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the missing second dash to long options, then parse the arguments."""
        known = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        return super().parse_args(ctx, [_dashed(word, known) for word in args])


def _dashed(word: str, known: set[str]) -> str:
    match = _GO_OPTION.fullmatch(word)
    if match is None or f"-{match[1]}" in known or f"--{match[1]}" not in known:
        return word
    return f"-{word}"


class Switch(click.ParamType[bool]):
    """A Boolean option: `--name` means true, `--name=false` means false."""

    name = "switch"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return the value."""
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word not in _TRUE | _FALSE:
            self.fail(f"{value!r} is neither true nor false", param, ctx)
        return word in _TRUE


class PortRange(click.ParamType[tuple[int, int]]):
    """A range of ports, given as the first and the last port: `35000,65000`."""

    name = "ports"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return the first and the last port."""
        given = value if isinstance(value, list | tuple) else re.split("[,-]", str(value))
        words = [str(word).strip() for word in given]
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            self.fail(f"{value!r} is not a range of ports; write 35000,65000", param, ctx)
        first, last = (int(word) for word in words)
        if not 0 < first <= last < 65536:
            self.fail(f"{value!r}: ports go from 1 to 65535, the lower one first", param, ctx)
        return first, last


class Servers(click.ParamType[str]):
    """Addresses of servers: `host:port,…`. The servers use plain HTTP, so users can leave out the scheme http://."""

    name = "servers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return `host:port,…` without schemes."""
        words = [word.strip() for word in str(value).split(",") if word.strip()]
        return ",".join(self._address(word, param, ctx) for word in words)

    def _address(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        scheme, _, address = word.rpartition("://")
        host, _, port = address.rstrip("/").rpartition(":")
        if scheme not in ("", "http", "etcd") or not host or "/" in host or not port.isdecimal():
            self.fail(f"{word!r} is not a server; write host:port", param, ctx)
        if not 0 < int(port) < 65536:
            self.fail(f"{word!r}: ports go from 1 to 65535", param, ctx)
        return f"{host}:{port}"


class Words(click.ParamType[frozenset[str]]):
    """A list of words such as `A,B`. The word `default` means all default words, and `none` means an empty list."""

    name = "words"

    def __init__(self, default: frozenset[str]) -> None:
        self._default = default

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        """Return the words."""
        if isinstance(value, frozenset):
            return value
        given = [word for one in str(value).split(",") if (word := one.strip())]
        found: set[str] = set()
        for word in given:
            found |= self._default if word == "default" else {word} - {"none"}
        if not given or ("none" in given and len(given) > 1):
            self.fail(f"{value!r}: expected words with commas between them, `default` or `none`", param, ctx)
        return frozenset(found)


class Conditions(click.ParamType[frozenset[tuple[str, str]]]):
    """Node conditions that mean a failure, for example `GPUReady=False`. `GPUMissing` means `GPUMissing=True`."""

    name = "conditions"

    def __init__(self, default: frozenset[tuple[str, str]]) -> None:
        self._words = Words(frozenset(f"{type_}={status}" for type_, status in default))

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[tuple[str, str]]:
        """Return the types of conditions, each with the status that means a failure."""
        if isinstance(value, frozenset):
            return value
        return frozenset([self._pair(word, param, ctx) for word in self._words.convert(value, param, ctx)])

    def _pair(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        type_, equals, status = word.partition("=")
        if not type_ or (equals and status not in ("True", "False", "Unknown")):
            self.fail(f"{word!r} is not a condition; write GPUMissing or GPUReady=False", param, ctx)
        return type_, status or "True"


class ZapLevel(click.ParamType[int]):
    """A level of zap, the log library of operators in Go: a word, or a number. A higher number logs more messages."""

    name = "level"
    #: The levels of Python's `logging` as numbers. An import of `logging` takes 3 ms, and most commands do not need it.
    _LEVELS: ClassVar = {"debug": 10, "info": 20, "warn": 30, "error": 40, "panic": 50}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the level of Python's `logging`. In zap, every number from 1 on is a debug level."""
        if isinstance(value, int) and not isinstance(value, bool) and value in self._LEVELS.values():
            return value
        word = str(value).strip().lower()
        if word.isdecimal() and int(word) > 0:
            return self._LEVELS["debug"]
        if word not in self._LEVELS:
            self.fail(f"{value!r} is not a level; write {', '.join(self._LEVELS)} or a number from 1 on", param, ctx)
        return self._LEVELS[word]


_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def check_namespace(namespace: str) -> None:
    """Raise UsageError if the value of `--namespace` is not a valid namespace."""
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise UsageError(f"{namespace!r} is not a valid namespace: use lower-case letters, digits and dashes")


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def switch(*names: str, default: bool = False, **more: Any) -> Decorator:
    """A decorator for an option of type `Switch`."""
    return click.option(
        *names, type=Switch(), is_flag=False, flag_value="true", default=default, metavar="[true|false]", **more
    )


duration_option = partial(click.option, type=Duration(), metavar="TIME", show_default=True)
text_option = partial(click.option, default="")
repeated_option = partial(click.option, multiple=True)


def choice_option(*names: str, choices: tuple[str, ...], **more: Any) -> Decorator:
    """A decorator for an option that takes one of these words; the first word is the default."""
    return click.option(*names, type=click.Choice(choices), default=choices[0], show_default=True, **more)


output_option = partial(choice_option, "-o", "--output", "form")


def cluster_options(context: str, kubeconfig: str) -> Decorator:
    """A decorator for the options that choose a cluster, with the help texts of `--context` and `--kubeconfig`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        function = text_option("--context", metavar="NAME", help=context)(function)
        return text_option("--kubeconfig", metavar="FILE", help=kubeconfig)(function)

    return add


kubeconfig_options = cluster_options(
    "Use this context of the kubeconfig.  [default: its current context]",
    "Use FILE instead of $KUBECONFIG or ~/.kube/config.",
)


class ClusterOptions(Struct, frozen=True):
    """Which cluster has the job, as the user gave it."""

    context: str = ""
    kubeconfig: str = ""

    @property
    def given(self) -> bool:
        """Whether the user chose a cluster; otherwise the job runs on this machine."""
        return bool(self.context or self.kubeconfig)


#: The value for a job of this machine.
THIS_MACHINE = ClusterOptions()


def cluster_choice(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for `--context` and `--kubeconfig`; the command receives them as `cluster`."""

    @wraps(function)
    def command(context: str, kubeconfig: str, **more: Any) -> Any:
        return function(cluster=ClusterOptions(context, kubeconfig), **more)

    return cluster_options(
        "Use the cluster of this context of the kubeconfig.  [default: this machine]",
        "Use the cluster of this kubeconfig FILE, by default of its current context.  [default: this machine]",
    )(command)


_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])[A-Z]")


def from_file(ctx: click.Context, param: click.Parameter, name: str) -> str:
    """Option callback: read the defaults from a file. Raises UsageError or ManifestError with the line."""
    if name:
        ctx.default_map = _defaults(ctx, param, _read(name))
    return name


def _read(name: str) -> "Document":
    from trainwright.manifest import read  # noqa: PLC0415 - it imports a YAML parser, which most commands do not need

    try:
        text = Path(name).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"--config: {name}: {error.strerror or error}") from None
    documents = read(name, text)
    if len(documents) > 1:
        raise UsageError(f"--config: {name}: has {len(documents)} documents; expected one, a mapping of options")
    return documents[0]


def _defaults(ctx: click.Context, file_option: click.Parameter, document: "Document") -> dict[str, Any]:
    known = {
        option.removeprefix("--"): param
        for param in ctx.command.params
        for option in param.opts
        if option.startswith("--") and param is not file_option
    }
    found: dict[str, Any] = {}
    for key, value in document.body.items():
        where = f"{document.file}:{document.line(key)}: {key}"
        option = _CAMEL_CASE.sub(lambda match: f"-{match[0].lower()}", key)
        if option not in known:
            hint = nearest(option, known)
            raise UsageError(f"{where}: there is no such option" + (f"; did you mean `{hint}`?" if hint else ""))
        if value is not None:
            found[known[option].name or ""] = _value(ctx, known[option], value, where)
    return found


def _value(ctx: click.Context, param: click.Parameter, value: Any, where: str) -> Any:
    """Convert a value of the file in the same way as a value of the command line."""
    if isinstance(value, list):
        value = [str(word) for word in value] if param.multiple else ",".join(str(word) for word in value)
    elif isinstance(value, dict):
        raise UsageError(f"{where}: expected one value, found {shown(value)}")
    elif param.multiple:
        value = [value]
    try:
        # click converts the defaults a second time. This is safe, because every type here also accepts its own result.
        return param.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None
