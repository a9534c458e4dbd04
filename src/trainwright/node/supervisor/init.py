# SPDX-License-Identifier: Apache-2.0
"""PID 1 of a container: it keeps the container's namespaces alive, and its end kills all processes in them.

PID 1 is never the user's command, because the kernel protects PID 1 from SIGTERM. On x86-64 and ARM64, PID 1 is less
than 200 bytes of machine code; on other processors, it is a Python program. PID 1 mounts /proc (only a process in the
PID namespace can do that), writes the result to stdout, ignores SIGCHLD so that the kernel reaps orphans, and ends when
its stdin ends. Its stdin is a pipe that the supervisor holds. The machine code is a file in memory: it needs no loader,
shell or library, so any file system can be mounted in the container, and it uses 8 KiB of memory instead of 100 KiB or
more.
"""

import os
import signal
import struct
import sys
from contextlib import suppress

from trainwright import kernel
from trainwright.node.supervisor.launch import StartRefused

_LOADED_AT = 0x400000
_HEADERS = 64 + 56

# The ELF machine number, and the instructions. Each line below is one of these statements of C:
#   close_range(3, ~0, 0) / result = mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, 0) /
#   rt_sigaction(SIGCHLD, {SIG_IGN}, 0, 8) / write(1, &result, 8) / close(1) /
#   while (read(0, stack, 1) == -EINTR) / exit_group(0) / "/proc"
_MACHINES = {
    "x86_64": (
        62,
        "6a035f 4883ceff 31d2 b8b4010000 0f05"
        "488d355d000000 488d7e01 4889fa 6a0e415a 4531c0 b8a5000000 0f05 50"
        "6a00 6a00 6a00 6a01 6a115f 4889e6 31d2 6a08415a 6a0d58 0f05"
        "6a015f 488d742420 6a085a 89f8 0f05"
        "6a0358 0f05"
        "31ff 4889e6 6a015a 31c0 0f05 83f8fc 74ef"
        "31ff b8e7000000 0f05"
        "2f70726f6300",
    ),
    "aarch64": (
        183,
        "600080d2 01008092 020080d2 883680d2 010000d4"
        "61040010 20040091 e20300aa c30180d2 040080d2 080580d2 010000d4 e00f1ff8"
        "200080d2 e07fbea9 ff7f01a9 200280d2 e1030091 020080d2 030180d2 c81080d2 010000d4"
        "200080d2 e1830091 020180d2 080880d2 010000d4"
        "200080d2 280780d2 010000d4"
        "000080d2 e1030091 220080d2 e80780d2 010000d4 1f100031 40ffff54"
        "000080d2 c80b80d2 010000d4"
        "2f70726f6300",
    ),
}

_PYTHON = """
import ctypes, os, signal, struct
os.closerange(3, os.sysconf("SC_OPEN_MAX"))
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.mount(b"proc", b"/proc", b"proc", 14, None)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(1, struct.pack("=q", -ctypes.get_errno() if failed else 0))
os.close(1)
os.read(0, 1)
"""


def init_command(machine: str) -> list[str]:
    """The command that starts PID 1. Its file in memory, if any, stays open as long as the supervisor lives."""
    if machine not in _MACHINES:
        return [sys.executable, "-I", "-S", "-c", _PYTHON]
    fd = os.memfd_create("init")
    os.write(fd, init_image(machine))
    return [f"/proc/self/fd/{fd}"]


def init_image(machine: str) -> bytes:
    """The machine code of PID 1 as an ELF file: two headers and the instructions."""
    number, code = _MACHINES[machine]
    instructions = bytes.fromhex(code)
    size = _HEADERS + len(instructions)
    ident = b"\x7fELF\2\1\1" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _LOADED_AT + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _LOADED_AT, _LOADED_AT, size, size, 0x10000)
    return ident + header + segment + instructions


class Lifeline:
    """The pipe that all inits of a supervisor read: when the supervisor dies, they read the pipe's end and exit."""

    def __init__(self, *, ambient: bool) -> None:
        """`ambient`: our capabilities come from a user namespace, so a new program keeps only ambient capabilities."""
        self._read, self._write = os.pipe()
        self._command = init_command(os.uname().machine)
        self._ambient = ambient

    def start(self) -> tuple[int, int]:
        """Create a PID namespace for the next children of the calling thread, and start its PID 1.

        Returns a pidfd of PID 1, and the errno of mounting /proc (0 on success). Raises OSError and StartRefused.
        """
        kernel.unshare(kernel.NEWPID)
        read_end, write_end = os.pipe()
        try:
            init = os.pidfd_open(self._spawn(write_end))
        finally:
            os.close(write_end)
        with open(read_end, "rb") as file:
            answer = file.read()
        if len(answer) != 8:
            end(init)
            raise StartRefused("the init process of the container was killed.")
        return init, -struct.unpack("=q", answer)[0]

    def _spawn(self, stdout: int) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, self._read, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
        if self._ambient:
            kernel.set_ambient_capability(kernel.SYS_ADMIN)
        try:
            # posix_spawn is much faster than subprocess. It does not close descriptors; the started program does that.
            return os.posix_spawn(
                self._command[0],
                ["init", *self._command[1:]],
                {},
                file_actions=actions,
                setsid=True,
                setsigmask=(),
            )
        finally:
            if self._ambient:
                kernel.set_ambient_capability(None)

    def close(self) -> None:
        """End all inits, and so all processes in their namespaces."""
        os.close(self._read)
        os.close(self._write)


def end(init: int) -> None:
    """Kill an init, and so all processes in its namespace. The supervisor's loop reaps the init."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(init, signal.SIGKILL)
    os.close(init)
