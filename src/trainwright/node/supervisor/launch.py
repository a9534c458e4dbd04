# SPDX-License-Identifier: Apache-2.0
"""Starting one process, explaining in a sentence why a process cannot be started, and the interface of a runtime.

`subprocess` starts the process with vfork, and the child searches PATH. So a thread that is in a pod's namespaces can
call `launch`, and all paths are resolved in these namespaces. A shell runs before the program only if the process must
enter a cgroup or open a terminal.

The supervisor's loop owns logs, cgroups and the journal, and reaps every child of the supervisor, helpers included: a
runtime never waits for a child. A runtime decides where a process runs, and finds the processes that still run after
the main process of their container has ended.

The supervisor needs three descriptors for each container, so it raises its own limit; each new process gets the limit
that the supervisor was started with.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import subprocess
from typing import TYPE_CHECKING, Protocol

from trainwright import open_files

if TYPE_CHECKING:
    from trainwright.node.supervisor.protocol import Exec, OpenPod, StartContainer

#: The environment of every process of a container has this variable, so that the container of an orphan is known.
MARKER = "TRAINWRIGHT_CONTAINER"
NOT_FOUND, NOT_EXECUTABLE, NOT_POSSIBLE = 127, 126, 128
# Some shells can write only to their standard descriptors, so the cgroup files are stdin and stdout.
_ENTER_CGROUPS = {
    1: 'echo 0 >&0; exec "$0" "$@" </dev/null',
    2: 'echo 0 >&0; echo 0 >&1; exec "$0" "$@" </dev/null >&2',
}
_SHELL_SETS = ("PWD", "OLDPWD", "SHLVL")


class Descriptors:
    """The open files of a new process: `stdio` (stdin, stdout and stderr) and `inherited`.

    With `tty`, `stdio` is a terminal, and becomes the controlling terminal of the process.

    `entries`: the `cgroup.procs` files of one or two cgroups, which the process enters at its start. With entries,
    stdin must be /dev/null, and stdout and stderr must be the same file. This is no NamedTuple, because creating such a
    class would make the start of the supervisor 1 ms slower.
    """

    __slots__ = ("entries", "inherited", "stdio", "tty")

    def __init__(
        self, *stdio: int, tty: bool = False, entries: tuple[int, ...] = (), inherited: tuple[int, ...] = ()
    ) -> None:
        self.stdio, self.tty, self.entries, self.inherited = stdio, tty, entries, inherited


class StartRefused(Exception):  # noqa: N818 - an answer, not a defect
    """A process or a pod cannot be started: the reason as a sentence, and the exit code of a shell (126, 127, 128)."""

    def __init__(self, text: str, code: int = NOT_POSSIBLE) -> None:
        super().__init__(text)
        self.code = code


class Process:
    """A process and its pidfd. The owner of this object closes it after the process is reaped."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1

    def send(self, number: int) -> None:
        """Signal the process if it still runs. Without pidfds, the pid is safe to use until the process is reaped."""
        try:
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def ended(self) -> bool:
        """Whether the process has ended, reaped or not. Without pidfds, an unreaped process counts as running."""
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
        """Close the pidfd. Safe to call twice."""
        fd, self.pidfd = self.pidfd, -1
        if fd >= 0:
            os.close(fd)


class Runtime(Protocol):
    """One runtime per supervisor. Only the thread of the loop calls it, so a method must not block for long."""

    notices: list[str]
    outside: bool

    def open(self, pod: OpenPod) -> None:
        """Create what the containers of a pod share. Raises StartRefused."""

    def spawn(self, start: StartContainer, fds: Descriptors) -> Process:
        """Start a container's main process with `launch`, with `MARKER` in its environment. Raises StartRefused."""

    def enter(self, request: Exec, fds: Descriptors) -> Process:
        """Start a process in a running container. `env` adds to its variables, `cwd` replaces its working directory."""

    def kill(self, container: str) -> None:
        """SIGKILL all processes of a container. The loop calls `ended` when the main process has ended."""

    def ended(self, container: str) -> None:
        """Kill the processes that still run after the main process of a container has ended.

        The main process is not reaped yet, so its pid and group are not reused. The runtime forgets the container.
        An unknown container is no error, here and in `kill`.
        """

    def orphaned(self) -> None:
        """Look for new orphans: the children of a process that the loop has reaped, and that the loop did not know."""

    def close(self, pod: str) -> None:
        """Kill the remaining processes of a pod and release what its containers shared. An unknown pod is no error."""

    def stop(self) -> None:
        """Kill all processes and release everything. The supervisor exits after this."""


def launch(argv: list[str], env: dict[str, str], cwd: str | None, fds: Descriptors) -> Process:
    """Start a process in a new session. Raises StartRefused."""
    try:
        if fds.tty:
            # The process leads a session, so a terminal that it opens becomes its controlling terminal. The path in
            # /proc is valid in every mount namespace; the terminal's path in /dev is perhaps missing in the container.
            path = "/proc/self/fd/0" if os.path.isdir("/proc/self/fd") else f"'{os.ttyname(fds.stdio[0])}'"
            return _spawn(_shell(f'exec "$0" "$@" <>{path} >&0 2>&1', argv, env, cwd), env, cwd, fds)
        if not fds.entries:
            return _spawn(argv, env, cwd, fds)
        if all(name.isidentifier() and name.isascii() for name in env):
            command = _shell(_ENTER_CGROUPS[len(fds.entries)], argv, env, cwd)
            stdio = (*fds.entries, *fds.stdio[len(fds.entries) :])
            return _spawn(command, env, cwd, Descriptors(*stdio, inherited=fds.inherited))
        # A shell would drop variables with unusual names. So no shell runs, and the supervisor itself moves the process
        # into the cgroups.
        process = _spawn(argv, env, cwd, fds)
        join_cgroups(process.pid, fds.entries)
        return process
    except (OSError, ValueError, IndexError) as error:
        raise _refusal(error, argv, env, cwd) from None


def _shell(script: str, argv: list[str], env: dict[str, str], cwd: str | None) -> list[str]:
    """The command of a shell that runs `script` and then `argv`. Raises StartRefused."""
    refusal = _obstacle(argv, env, cwd)  # check now: the shell could report a problem only in the log
    if refusal is not None:
        raise refusal
    unset = "".join(f"unset {name}; " for name in _SHELL_SETS if name not in env)
    return ["/bin/sh", "-c", unset + script, *argv]


def _spawn(command: list[str], env: dict[str, str], cwd: str | None, fds: Descriptors) -> Process:
    stdin, stdout, stderr = fds.stdio
    popen = subprocess.Popen(  # noqa: S603 - the command of the manifest
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        start_new_session=True,
        pass_fds=fds.inherited,
    )
    popen.returncode = 0  # the loop reaps the process; a returncode keeps Popen from waiting and warning
    open_files.restore_limit(popen.pid)
    return Process(popen.pid)


def join_cgroups(pid: int, entries: tuple[int, ...]) -> None:
    """Move a running process, and so its later children, into the cgroups of these open `cgroup.procs` files."""
    for entry in entries:
        with contextlib.suppress(OSError):  # the process has already ended
            os.write(entry, str(pid).encode())


def _obstacle(argv: list[str], env: dict[str, str], cwd: str | None) -> StartRefused | None:
    """Why the command cannot run, as far as the file system shows it; None if no reason is found."""
    if not argv or not argv[0]:
        return StartRefused("the command is empty.")
    if cwd is not None and not os.path.isdir(cwd):
        what = "is not a directory" if os.path.exists(cwd) else "does not exist"
        return StartRefused(f'the working directory "{cwd}" {what}.')
    if "/" in argv[0]:
        return _file_obstacle(argv[0], f"{cwd or '.'}/{argv[0]}" if argv[0][0] != "/" else argv[0])
    return _search_obstacle(argv[0], os.get_exec_path(env))


def _search_obstacle(name: str, folders: list[str]) -> StartRefused | None:
    """Like execvp: None if any folder has an executable file, else the problem of the first file found."""
    found = None
    for folder in folders:
        refusal = _file_obstacle(f"{folder}/{name}", f"{folder}/{name}")
        if refusal is None:
            return None
        if refusal.code != NOT_FOUND and found is None:
            found = refusal
    where = ":".join(folders)
    return found or StartRefused(f'"{name}": executable file not found in PATH ({where}).', NOT_FOUND)


def _file_obstacle(shown: str, path: str) -> StartRefused | None:
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return StartRefused(f'"{shown}": no such file.', NOT_FOUND)
    except (OSError, ValueError) as error:
        return StartRefused(f'"{shown}": {_reason(error)}.', NOT_EXECUTABLE)
    if stat.S_ISDIR(mode):
        return StartRefused(f'"{shown}" is a directory, not a program.', NOT_EXECUTABLE)
    if not os.access(path, os.X_OK):
        return StartRefused(f'"{shown}" is not executable (mode {stat.S_IMODE(mode):04o}).', NOT_EXECUTABLE)
    return _script_obstacle(shown, path)


def _script_obstacle(shown: str, path: str) -> StartRefused | None:
    """Check the interpreter of a script: if it is missing, the kernel reports the script itself as missing."""
    try:
        with open(path, "rb", buffering=0) as file:
            first = file.read(256)
    except OSError:
        return None  # a program can be executable but not readable
    line = first.split(b"\n", 1)[0].replace(b"\t", b" ") if first.startswith(b"#!") else b""
    name = line[2:].strip(b" ").split(b" ", 1)[0]  # the kernel reads a carriage return as part of this path
    if not name or os.access(name, os.X_OK):
        return None
    interpreter = os.fsdecode(name).removesuffix("\r")
    hint = " (its lines end in CR LF; save it with LF)" if name.endswith(b"\r") else ""
    what = "cannot be run" if os.path.exists(name) else "does not exist"
    text = f'"{shown}": its first line names the interpreter "{interpreter}", which {what}{hint}.'
    return StartRefused(text, NOT_EXECUTABLE)


def _refusal(error: Exception, argv: list[str], env: dict[str, str], cwd: str | None) -> StartRefused:
    found = _obstacle(argv, env, cwd)
    if found is not None:
        return found
    number = getattr(error, "errno", None)
    if number == errno.ENOEXEC:
        text = f'"{argv[0]}": exec format error: neither a program for this machine nor a script that begins with "#!".'
        return StartRefused(text, NOT_EXECUTABLE)
    if number in {errno.EACCES, errno.EPERM} and getattr(error, "filename", None) != cwd:
        return StartRefused(f'"{argv[0]}" may not be executed here: {_reason(error)}.', NOT_EXECUTABLE)
    if number == errno.ENOENT:
        return StartRefused(f'"{argv[0]}" needs a loader (its ELF interpreter) that does not exist.', NOT_EXECUTABLE)
    return StartRefused(f'"{argv[0]}" cannot be started: {_reason(error)}.')


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
