# SPDX-License-Identifier: Apache-2.0
"""Masquerading: packets from pods to the outside get the machine's own address, by rules of iptables or nft.

The kernel does not remove these rules when a supervisor is killed. A tag in each rule contains the pid and the start
time of the supervisor that owns the rule. The next supervisor removes rules whose owner is dead.
"""

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence

from trainwright.node.supervisor import tree

_TAG = re.compile(r"\btrainwright_\d+_\d+\b")
_TIMEOUT_SECONDS = 10.0


class Nft:
    """nftables: one table for each supervisor. Every method raises OSError with the message of the program."""

    def tags(self) -> set[str]:
        """The tags of all supervisors: the names of their tables."""
        return set(_TAG.findall(_run(["nft", "list", "tables"])))

    def add(self, tag: str, subnet: str) -> None:
        """Add a table with one rule."""
        chain = f"add chain ip {tag} out {{ type nat hook postrouting priority 100 ; }}"
        rule = f"add rule ip {tag} out ip saddr {subnet} ip daddr != {subnet} masquerade"
        _run(["nft", "-f", "-"], f"add table ip {tag}\n{chain}\n{rule}\n")

    def remove(self, tag: str) -> None:
        """Remove the table."""
        _run(["nft", "delete", "table", "ip", tag])


class Iptables:
    """iptables: rules with a comment. They also work if the machine drops forwarded packets; an nft table does not."""

    def tags(self) -> set[str]:
        """The tags of all supervisors: the comments of their rules."""
        return set(_TAG.findall(_run(["iptables-save"])))

    def add(self, tag: str, subnet: str) -> None:
        """Add all rules in one step."""
        note = f"-m comment --comment {tag}"
        nat = f"-A POSTROUTING -s {subnet} ! -d {subnet} {note} -j MASQUERADE"
        pairs = [f"-I FORWARD -{way} {subnet} {note} -j ACCEPT" for way in ("s", "d")]
        text = "\n".join(["*nat", nat, "COMMIT", "*filter", *pairs, "COMMIT", ""])
        _run(["iptables-restore", "-w", "--noflush"], text)

    def remove(self, tag: str) -> None:
        """Remove every rule with this comment."""
        lines, table = [], ""
        for line in _run(["iptables-save"]).splitlines():
            table = line if line.startswith("*") else table
            if line.startswith("-A") and tag in shlex.split(line):
                lines += [table, f"-D{line[2:]}", "COMMIT"]
        _run(["iptables-restore", "-w", "--noflush"], "\n".join([*lines, ""]))


Tool = Nft | Iptables
_TOOLS: dict[str, Tool] = {"iptables-restore": Iptables(), "nft": Nft()}


class Masquerade:
    """The rules of this process. The constructor raises OSError if no rules can be made."""

    def __init__(self, subnet: str, tools: Sequence[Tool] = ()) -> None:
        tools = tools or _installed()
        if not tools:
            raise FileNotFoundError(None, "neither iptables nor nft is installed")
        self._tag = f"trainwright_{os.getpid()}_{tree.start_time(os.getpid())}"
        for self._tool in tools:
            try:
                _remove_stale(self._tool)
                self._tool.add(self._tag, subnet)
                return
            except OSError:
                if self._tool is tools[-1]:
                    raise

    def is_only_user(self) -> bool:
        """Remove stale rules; return whether no other supervisor has rules."""
        return _remove_stale(self._tool) <= {self._tag}

    def close(self) -> None:
        """Remove the rules."""
        self._tool.remove(self._tag)


def remove_stale_rules() -> bool:
    """Remove the rules of dead supervisors; return whether no rules are left."""
    unused = True
    for tool in _installed():
        with contextlib.suppress(OSError):  # if a tool does not work here, no supervisor has made rules with it
            unused = not _remove_stale(tool) and unused
    return unused


def _remove_stale(tool: Tool) -> set[str]:
    """Remove the rules whose owner is dead; return the tags of the other rules."""
    living = set()
    for tag in tool.tags():
        _, pid, start = tag.split("_")
        if tree.start_time(int(pid)) == start:  # the owner still runs
            living.add(tag)
            continue
        with contextlib.suppress(OSError):  # another supervisor has just removed these rules
            tool.remove(tag)
    return living


def _installed() -> list[Tool]:
    return [tool for name, tool in _TOOLS.items() if installed(name)]


def installed(name: str) -> str | None:
    """The path of a program, from PATH or the folders of system programs; None if it is not installed."""
    folders = [*os.get_exec_path(), "/usr/sbin", "/sbin"]
    return next((path for path in (os.path.join(one, name) for one in folders) if os.access(path, os.X_OK)), None)


def _run(argv: list[str], text: str = "") -> str:
    command = [installed(argv[0]) or argv[0], *argv[1:]]
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands
            command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise OSError(None, f"{argv[0]}: {lines[0]}") from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(None, f"{argv[0]} did not answer for {_TIMEOUT_SECONDS:g} seconds") from None
    return done.stdout
