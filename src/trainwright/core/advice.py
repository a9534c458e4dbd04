# SPDX-License-Identifier: Apache-2.0
"""What to do about a failure, in terms of the place where the job ran.

`core.signs` has the advice that is right everywhere. On one machine more is known: there are no images, and replicas of
the process runtime share the network and /dev/shm of the machine.
"""

import re

from msgspec import Struct

from trainwright.core.diagnose import Diagnosis
from trainwright.core.signs import ACTIONS
from trainwright.model.cause import Cause, CauseKind, implied_signal, signal_name
from trainwright.model.verdict import FailureClass


class RunPlace(Struct, frozen=True, gc=False):
    """Where a job ran. The default means: on a cluster."""

    #: The runtime of a run on one machine: `process` or `sandbox`; empty: on a cluster.
    runtime: str = ""
    #: Whether the job was made from a command, so that its limits come from options; None: not known.
    by_command: bool | None = None


ON_CLUSTER = RunPlace()
_INSTALL = "a local run uses no images, so it must be installed on this machine"
_NO_SHARED_MEMORY = "there was no space left for shared memory, or a file that it had mapped became shorter"
_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
#: What the signal means that ended a program.
_SIGNALS = {
    4: "it ran an instruction that this processor does not have: it was built for another processor",
    6: "the program aborted: the last lines of its log should say why",
    9: "a user or another process sent SIGKILL, or the kernel did because memory ran out (see `dmesg` on the node)",
    11: "it used an invalid memory address: a defect in native code",
    15: "another process asked it to end",
}
#: Advice for runs on one machine, by class and runtime.
_LOCAL = {
    (FailureClass.PORT_IN_USE, "process"): "replicas share the ports of this machine; with `--runtime sandbox` each"
    " replica has its own network",
    (FailureClass.PORT_IN_USE, "sandbox"): "another process in the same replica already listens on this port, or"
    " hostNetwork is set",
    (FailureClass.SHARED_MEMORY, "process"): f"{_NO_SHARED_MEMORY}: replicas share /dev/shm of this machine;"
    " `df -h /dev/shm` shows how full it is",
    (FailureClass.SHARED_MEMORY, "sandbox"): f"{_NO_SHARED_MEMORY}: /dev/shm was probably full; mount an emptyDir with"
    " `medium: Memory` and a larger `sizeLimit` there, or start fewer data loader workers",
    (FailureClass.NAME_RESOLUTION, "process"): "names of replicas resolve only with `--runtime sandbox`; without it,"
    " use $(service.TYPE[RANK].host)",
    (FailureClass.NAME_RESOLUTION, "sandbox"): "replicas have host names only if the job has `spec.service`; other"
    " names must resolve on this machine",
    **dict.fromkeys(
        [(FailureClass.DISK_FULL, "process"), (FailureClass.DISK_FULL, "sandbox")],
        "a disk is full: free some space, or move the state folder to another disk (TRAINWRIGHT_STATE)",
    ),
}


def advise(cause: Cause, found: Diagnosis, place: RunPlace) -> str:
    """Return what to do about a failure; empty if the cause already says all."""
    if found.action != ACTIONS.get(found.failure_class):
        return found.action  # the sign has its own action, not the usual one of its class
    if found.failure_class in (FailureClass.KILLED, FailureClass.CRASHED):
        return _about_signal(cause) or found.action
    if found.failure_class is FailureClass.OUT_OF_MEMORY and place.by_command is not None:
        limit = "--memory-per-replica" if place.by_command else "resources.limits.memory"
        return f"it used more memory than its limit: raise {limit}" if cause.reason == "OOMKilled" else found.action
    if not place.runtime:
        return found.action
    if found.failure_class is FailureClass.IMPORT_ERROR and (module := _MODULE.search(found.line)):
        return f"Python did not find {module[1]}: {_INSTALL}, for the Python of the command"
    if found.failure_class is FailureClass.COMMAND_NOT_FOUND:
        return _about_command(cause, found.line)
    return _LOCAL.get((found.failure_class, place.runtime), found.action)


def _about_signal(cause: Cause) -> str:
    code = cause.code if cause.why is CauseKind.EXIT and isinstance(cause.code, int) else 0
    implied = implied_signal(code)
    if cause.signal == 0 and implied:
        why = f": {_SIGNALS[implied]}" if implied in _SIGNALS else ""
        return f"a command of the shell was ended by {signal_name(implied)}{why}"
    if not isinstance(cause.signal, int):
        return f"if it was {signal_name(implied)}: {_SIGNALS[implied]}" if implied in _SIGNALS else ""
    return _SIGNALS.get(cause.signal, "")


def _about_command(cause: Cause, line: str) -> str:
    if "can't open file" in line:
        return "check the path of the script: a relative path begins in the working directory (workingDir)"
    # The message of the node explains these cases already.
    if not cause.started and ("directory" in cause.message or "interpreter" in cause.message):
        return ""
    if cause.started and cause.code != _NOT_EXECUTABLE:
        return f"a shell did not find a command (see the last lines of the log): {_INSTALL} and be on the PATH"
    if cause.code == _NOT_FOUND:
        return f"the command was not found: {_INSTALL} and be on the PATH"
    return "the command cannot be executed: it needs `chmod +x`, and a first line `#!…` if it is a script"
