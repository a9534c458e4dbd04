# SPDX-License-Identifier: Apache-2.0
"""PID 1 of a container, which holds its namespaces together and takes all its processes along when it ends.

It is never the user's command, for the kernel shields PID 1 from SIGTERM. `sandbox` starts one for each container from
a thread that is in the container's other namespaces already; what it runs is in `program`.
"""

import os
import signal
import struct
from contextlib import suppress

from trainwright.local.supervisor import kernel, program
from trainwright.local.supervisor.runtimes import Refused


class Lifeline:
    """What the inits of a supervisor read from: when it dies, however it dies, they read the end of it and die too."""

    def __init__(self, *, ambient: bool) -> None:
        """`ambient`: we have our rights from a user namespace, where a new program gets none unless told so."""
        self._read, self._write = os.pipe()
        self._command = program.command(os.uname().machine)
        self._ambient = ambient

    def start(self) -> tuple[int, int]:
        """A PID namespace for the calling thread's children from now on: a pidfd of its PID 1, errno of its /proc.

        Raises OSError and Refused.
        """
        kernel.unshare(kernel.NEWPID)
        told, tell = os.pipe()
        try:
            init = os.pidfd_open(self._spawned(tell))
        finally:
            os.close(tell)
        with open(told, "rb") as file:
            answer = file.read()
        if len(answer) != 8:
            end(init)
            raise Refused(128, "the init process of the container was killed.")
        return init, -struct.unpack("=q", answer)[0]

    def _spawned(self, tell: int) -> int:
        actions = [(os.POSIX_SPAWN_DUP2, self._read, 0), (os.POSIX_SPAWN_DUP2, tell, 1)]
        if self._ambient:
            kernel.bequeath(kernel.SYS_ADMIN)
        try:
            # Quicker than subprocess, by far; what it lacks (closing descriptors) the program does.
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
                kernel.bequeath(None)

    def close(self) -> None:
        """All inits end that still live, and with them everything in their namespaces."""
        os.close(self._read)
        os.close(self._write)


def end(init: int) -> None:
    """Kill an init, and so everything in its namespace. The loop reaps it, once it has reaped its children there."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(init, signal.SIGKILL)
    os.close(init)
