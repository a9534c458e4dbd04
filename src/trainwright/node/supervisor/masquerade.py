# SPDX-License-Identifier: Apache-2.0
"""Lending the machine's own address to pods that speak to the outside, by iptables or nft. `outside` calls it as root.

Rules are the only thing of ours that would outlive a killed supervisor. They bear its pid and the time it started, and
whoever comes next removes those whose owner is dead.
"""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Protocol

_TAG = re.compile(r"\btrainwright_(\d+)_(\d+)\b")
_PATIENCE = 10.0
_START_TIME = 19  # in /proc/PID/stat, counted after the command's name


class Tool(Protocol):
    """A program that can do it. Every method raises OSError with what the program said."""

    def tags(self) -> set[str]:
        """Whose rules there are."""

    def add(self, tag: str, subnet: str) -> None:
        """What comes from the subnet and leaves it gets the address of the machine."""

    def remove(self, tag: str) -> None:
        """Take the rules of this tag away."""


class Nft:
    """nftables: a table for each supervisor."""

    def tags(self) -> set[str]:
        """Whose tables there are."""
        return _found(_ran(["nft", "list", "tables"]))

    def add(self, tag: str, subnet: str) -> None:
        """A table of our own."""
        chain = f"add chain ip {tag} out {{ type nat hook postrouting priority 100 ; }}"
        rule = f"add rule ip {tag} out ip saddr {subnet} ip daddr != {subnet} masquerade"
        _ran(["nft", "-f", "-"], f"add table ip {tag}\n{chain}\n{rule}\n")

    def remove(self, tag: str) -> None:
        """The whole table."""
        _ran(["nft", "delete", "table", "ip", tag])


class Iptables:
    """iptables: rules with a comment. Unlike a table of nft's, they pass where the machine forwards nothing else."""

    def tags(self) -> set[str]:
        """Who is named in comments."""
        return _found(_ran(["iptables-save"]))

    def add(self, tag: str, subnet: str) -> None:
        """All rules at once."""
        note = f"-m comment --comment {tag}"
        nat = f"-A POSTROUTING -s {subnet} ! -d {subnet} {note} -j MASQUERADE"
        pairs = [f"-I FORWARD -{way} {subnet} {note} -j ACCEPT" for way in ("s", "d")]
        text = "\n".join(["*nat", nat, "COMMIT", "*filter", *pairs, "COMMIT", ""])
        _ran(["iptables-restore", "-w", "--noflush"], text)

    def remove(self, tag: str) -> None:
        """Every rule with this comment."""
        lines, table = [], ""
        for line in _ran(["iptables-save"]).splitlines():
            table = line if line.startswith("*") else table
            if line.startswith("-A") and tag in shlex.split(line):
                lines += [table, f"-D{line[2:]}", "COMMIT"]
        _ran(["iptables-restore", "-w", "--noflush"], "\n".join([*lines, ""]))


_TOOLS: dict[str, Tool] = {"iptables-restore": Iptables(), "nft": Nft()}


class Masquerade:
    """The rules of this process. Raises OSError where none can be made."""

    def __init__(self, subnet: str, tools: Sequence[Tool] = ()) -> None:
        tools = tools or _installed()
        if not tools:
            raise FileNotFoundError(None, "neither iptables nor nft is installed")
        self._tag = f"trainwright_{os.getpid()}_{_started(os.getpid())}"
        for left, self._tool in enumerate(tools, 1 - len(tools)):
            try:
                _sweep(self._tool)
                self._tool.add(self._tag, subnet)
                return
            except OSError:
                if not left:
                    raise

    def alone(self) -> bool:
        """Whether no other supervisor needs that packets are forwarded. The rules of the dead go."""
        return _sweep(self._tool) <= {self._tag}

    def close(self) -> None:
        """Take the rules away."""
        self._tool.remove(self._tag)


def sweep() -> bool:
    """Take the rules of the dead away. Whether nobody who lives has any."""
    alone = True
    for tool in _installed():
        with contextlib.suppress(OSError):  # one that does not work has made no rules either
            alone = not _sweep(tool) and alone
    return alone


def _sweep(tool: Tool) -> set[str]:
    """The tags of those who live; the rules of the others go."""
    living = set()
    for tag in tool.tags():
        if _alive(tag):
            living.add(tag)
            continue
        with contextlib.suppress(OSError):  # another supervisor was quicker
            tool.remove(tag)
    return living


def _installed() -> list[Tool]:
    return [tool for name, tool in _TOOLS.items() if installed(name)]


def installed(name: str) -> str | None:
    """Where a program is, if it is in PATH or where administrators have theirs."""
    folders = [*os.get_exec_path(), "/usr/sbin", "/sbin"]
    return next((path for path in (os.path.join(one, name) for one in folders) if os.access(path, os.X_OK)), None)


def _ran(argv: list[str], text: str = "") -> str:
    command = [installed(argv[0]) or argv[0], *argv[1:]]
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            command, input=text, capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines() or [f"it ended with {error.returncode}"]
        raise OSError(None, f"{argv[0]}: {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(None, f"{argv[0]} did not answer for {_PATIENCE:g} seconds") from None
    return done.stdout


def _found(text: str) -> set[str]:
    return {match.group() for match in _TAG.finditer(text)}


def _alive(tag: str) -> bool:
    match = _TAG.fullmatch(tag)
    return match is not None and _started(int(match.group(1))) == match.group(2)


def _started(pid: int) -> str | None:
    """When a process began, as the kernel counts; None: there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[_START_TIME]
    except (FileNotFoundError, ProcessLookupError):
        return None
