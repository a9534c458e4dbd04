# SPDX-License-Identifier: Apache-2.0
"""What the supervisor's loop asks of a runtime: `plain` runs bare processes, `sandbox` gives each pod namespaces.

The loop owns logs, cgroups, ends and the journal, and reaps every child of the supervisor, helpers included: a runtime
never waits for one. A runtime knows where a process runs, and finds what it left behind.

How many files may be open: the supervisor holds three for each container, so it asks for all that it may have.

`main` raises its own limit; `launch` gives each new process the one that the user had.

Starting one process, and saying in a sentence why one cannot be started. Both runtimes call it.

`subprocess` does the work (vfork; it searches PATH in the child), so a thread that has entered a pod's namespaces may
call this, and everything is looked up there. A shell comes between only to enter a cgroup or to take a terminal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import stat
import subprocess
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import OpenPod, StartContainer

MARKER = "TRAINWRIGHT_CONTAINER"  # in the environment of every process of a container: how strays are recognised

Stdio = tuple[int, int, int]


class StartRefused(Exception):  # noqa: N818 - the word for an answer, not for a defect
    """Why something cannot be started or opened, as a whole sentence; `code` as a shell would say it: 126, 127, 128."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Process:
    """A process that was started here. Only who holds it reaps it, and closes it then."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1

    def send(self, number: int) -> None:
        """Signal it, if it still lives. Without a pidfd the pid is good too: it is ours until it is reaped."""
        try:
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def ended(self) -> bool:
        """Whether it runs no more, reaped or not. Without a pidfd one that is not reaped yet counts as running."""
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            return bool(poll.poll(0))
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        """Give the pidfd back. Safe to call twice."""
        fd, self.pidfd = self.pidfd, -1
        if fd >= 0:
            os.close(fd)


class Runtime(Protocol):
    """One per supervisor. All calls come from the loop's thread, one at a time, and should not wait for long."""

    notices: list[str]
    outside: bool

    def open(self, pod: OpenPod) -> None:
        """Make what the containers of a pod share. Raises Refused."""

    def spawn(
        self, start: StartContainer, stdio: Stdio, entries: tuple[int, ...], inherited: tuple[int, ...]
    ) -> Process:
        """Start a container's main process, by `launch.launch`, with `MARKER` in its environment. Raises Refused.

        `entries` are the open `cgroup.procs` files that it enters before its command runs. `inherited` are descriptors
        that the process keeps open as long as it lives.
        """

    def enter(
        self,
        container: str,
        argv: list[str],
        env: dict[str, str] | None,
        cwd: str | None,
        stdio: Stdio,
        *,
        tty: bool,
    ) -> Process:
        """One more process in a running container: its namespaces, its cwd unless given, its env with `env` on top."""

    def kill(self, container: str) -> None:
        """SIGKILL the whole tree. The main process's end is reported as always, and `ended` follows."""

    def ended(self, container: str) -> None:
        """The main process has ended: kill what it left. It is not reaped yet, so its pid and group are still its own.

        The container is forgotten with this call; an unknown one is no error, here and in `kill`.
        """

    def orphaned(self) -> None:
        """A process that the loop does not know was reaped: the children that it had may be strays."""

    def close(self, pod: str) -> None:
        """Kill what is left of a pod and drop what its containers shared. An unknown pod is no error."""

    def stop(self) -> None:
        """Kill and drop everything; the supervisor exits after this."""


_ENOUGH = 65536

_users: list[tuple[int, int]] = []


def raise_descriptor_limit() -> None:
    """Raise our limit as far as we may, and remember what it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _users.append((soft, hard))


def restore_descriptor_limit(pid: int) -> None:
    """Give a new process the limit that we were started with, where that can be done from outside (Linux)."""
    if _users and hasattr(resource, "prlimit"):
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _users[0])


# pathlib would cost the supervisor a tenth of its start.


NOT_FOUND, NOT_EXECUTABLE, NOT_POSSIBLE = 127, 126, 128

# The shell's own descriptors are the only ones that every sh can write to, so the cgroups come as stdin and stdout.
_ENTER = {
    1: 'echo 0 >&0; exec "$0" "$@" </dev/null',
    2: 'echo 0 >&0; echo 0 >&1; exec "$0" "$@" </dev/null >&2',
}
_SHELL_SETS = ("PWD", "OLDPWD", "SHLVL")


def launch(  # noqa: PLR0913 - what a process is started with
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    stdio: Stdio,
    *,
    entries: tuple[int, ...] = (),
    tty: bool = False,
    inherited: tuple[int, ...] = (),
) -> Process:
    """Start it in a session of its own. Raises Refused.

    `entries`: one or two open `cgroup.procs` to enter first; stdin is /dev/null then, and stdout the same as stderr.
    `tty`: stdio is a terminal, which becomes the controlling one.
    `inherited`: descriptors that the process keeps.
    """
    try:
        if tty:
            return _terminal(argv, env, cwd, stdio)
        if entries:
            return _limited(argv, env, cwd, stdio, entries, inherited)
        return _spawned(argv, env, cwd, stdio, inherited)
    except (OSError, ValueError, IndexError) as error:
        raise _refusal(error, argv, env, cwd) from None


def _terminal(argv: list[str], env: dict[str, str], cwd: str | None, stdio: Stdio) -> Process:
    """A session leader that opens a terminal gets it as its own; /proc leads to it from any mount namespace."""
    path = "/proc/self/fd/0" if os.path.isdir("/proc/self/fd") else f"'{os.ttyname(stdio[0])}'"
    return _by_shell(f'exec "$0" "$@" <>{path} >&0 2>&1', argv, env, cwd, stdio)


def _limited(
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    stdio: Stdio,
    entries: tuple[int, ...],
    inherited: tuple[int, ...],
) -> Process:
    if all(name.isidentifier() and name.isascii() for name in env):
        stdin, stdout, stderr = (*entries, *stdio[len(entries) :])
        return _by_shell(_ENTER[len(entries)], argv, env, cwd, (stdin, stdout, stderr), inherited)
    # A shell would lose such names: the process enters a moment after its start.
    process = _spawned(argv, env, cwd, stdio, inherited)
    for entry in entries:
        with contextlib.suppress(OSError):  # it has ended already
            os.write(entry, str(process.pid).encode())
    return process


def _by_shell(
    script: str,
    argv: list[str],
    env: dict[str, str],
    cwd: str | None,
    stdio: Stdio,
    inherited: tuple[int, ...] = (),
) -> Process:
    refusal = obstacle(argv, env, cwd)  # the shell could only say so in the log
    if refusal is not None:
        raise refusal
    unset = "".join(f"unset {name}; " for name in _SHELL_SETS if name not in env)
    return _spawned(["/bin/sh", "-c", unset + script, *argv], env, cwd, stdio, inherited)


def _spawned(
    command: list[str], env: dict[str, str], cwd: str | None, stdio: Stdio, inherited: tuple[int, ...] = ()
) -> Process:
    stdin, stdout, stderr = stdio
    popen = subprocess.Popen(  # noqa: S603 - running what the manifest says is the purpose
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=True,
        pass_fds=inherited,
    )
    popen.returncode = 0  # the loop reaps it; Popen must neither wait nor warn
    restore_descriptor_limit(popen.pid)
    return Process(popen.pid)


def obstacle(argv: list[str], env: dict[str, str], cwd: str | None) -> StartRefused | None:
    """Why the command cannot run, as far as looking can tell."""
    if not argv or not argv[0]:
        return StartRefused(NOT_POSSIBLE, "the command is empty.")
    if cwd is not None and not os.path.isdir(cwd):
        what = "is not a directory" if os.path.exists(cwd) else "does not exist"
        return StartRefused(NOT_POSSIBLE, f'the working directory "{cwd}" {what}.')
    if "/" in argv[0]:
        return _file_obstacle(argv[0], f"{cwd or '.'}/{argv[0]}" if argv[0][0] != "/" else argv[0])
    return _search_obstacle(argv[0], os.get_exec_path(env))


def sought(refused: StartRefused, env: dict[str, str], cwd: str) -> list[str]:
    """The paths that a refusal is about: those it names, and those at which a program that it names could be."""
    named = refused.text.split('"')[1::2]
    found = [os.path.join(cwd, name) for name in named if "/" in name]
    if refused.code == NOT_FOUND and not found:
        found = [os.path.join(cwd, folder, name) for name in named for folder in os.get_exec_path(env)]
    return found


def _search_obstacle(name: str, folders: list[str]) -> StartRefused | None:
    """As execvp: the first file that can be run; else the first that was found at all."""
    found = None
    for folder in folders:
        refusal = _file_obstacle(f"{folder}/{name}", f"{folder}/{name}")
        if refusal is None:
            return None
        if refusal.code != NOT_FOUND and found is None:
            found = refusal
    where = ":".join(folders)
    return found or StartRefused(NOT_FOUND, f'"{name}": executable file not found in PATH ({where}).')


def _file_obstacle(shown: str, path: str) -> StartRefused | None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return StartRefused(NOT_FOUND, f'"{shown}": no such file.')
    except (OSError, ValueError) as error:
        return StartRefused(NOT_EXECUTABLE, f'"{shown}": {_reason(error)}.')
    if stat.S_ISDIR(mode):
        return StartRefused(NOT_EXECUTABLE, f'"{shown}" is a directory, not a program.')
    if not os.access(path, os.X_OK):
        return StartRefused(NOT_EXECUTABLE, f'"{shown}" is not executable (mode {stat.S_IMODE(mode):04o}).')
    return _script_obstacle(shown, path)


def _script_obstacle(shown: str, path: str) -> StartRefused | None:
    """A script whose interpreter is missing, which the kernel reports as if the script were."""
    try:
        with open(path, "rb", buffering=0) as file:
            first = file.read(256)
    except OSError:
        return None  # may be run without being read
    line = first.split(b"\n", 1)[0].replace(b"\t", b" ") if first.startswith(b"#!") else b""
    name = line[2:].strip(b" ").split(b" ", 1)[0]  # as the kernel does: a carriage return is part of the name
    if not name or os.access(name, os.X_OK):
        return None
    interpreter = os.fsdecode(name).removesuffix("\r")
    hint = " (its lines end in CR LF; save it with LF)" if name.endswith(b"\r") else ""
    what = "cannot be run" if os.path.exists(name) else "does not exist"
    return StartRefused(
        NOT_EXECUTABLE, f'"{shown}": its first line names the interpreter "{interpreter}", which {what}{hint}.'
    )


def _refusal(error: Exception, argv: list[str], env: dict[str, str], cwd: str | None) -> StartRefused:
    seen = obstacle(argv, env, cwd)
    if seen is not None:
        return seen
    number = getattr(error, "errno", None)
    if number == errno.ENOEXEC:
        text = f'"{argv[0]}": exec format error: neither a program for this machine nor a script that begins with "#!".'
        return StartRefused(NOT_EXECUTABLE, text)
    if number in {errno.EACCES, errno.EPERM} and getattr(error, "filename", None) != cwd:
        return StartRefused(NOT_EXECUTABLE, f'"{argv[0]}" may not be executed here: {_reason(error)}.')
    if number == errno.ENOENT:
        return StartRefused(NOT_EXECUTABLE, f'"{argv[0]}" needs a loader (its ELF interpreter) that does not exist.')
    return StartRefused(NOT_POSSIBLE, f'"{argv[0]}" cannot be started: {_reason(error)}.')


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
