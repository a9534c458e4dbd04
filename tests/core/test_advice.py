# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S108 - a path inside pods
"""What to do about a failure: what is right everywhere, and what is known only on one machine."""

import pytest
from msgspec import UNSET

from trainwright.core.advice import ON_CLUSTER, RunPlace, advise
from trainwright.core.diagnose import diagnose
from trainwright.core.signs import ACTIONS
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.verdict import FailureClass

SANDBOX = RunPlace("sandbox", by_command=False)


def advice(place: RunPlace, code: int, signal: int | None = None, reason: str = "Error", line: str = "") -> str:
    cause = Cause(CauseKind.EXIT, code, UNSET if signal is None else signal, reason)
    return advise(cause, diagnose(cause, (line,)), place)


@pytest.mark.parametrize(
    ("code", "signal", "reason", "line", "runtime", "expected"),
    [
        (
            1,
            None,
            "",
            "OSError: [Errno 98] Address already in use",
            "process",
            "with `--runtime sandbox` each replica has its own network",
        ),
        (1, None, "", "bind: address already in use", "sandbox", "in the same replica already listens on this port"),
        (
            1,
            None,
            "",
            "ModuleNotFoundError: No module named 'torch'",
            "sandbox",
            "Python did not find torch: a local run uses no images",
        ),
        (137, 9, "OOMKilled", "", "sandbox", "raise resources.limits.memory"),
        (127, None, "ContainerCannotRun", "", "sandbox", "the command was not found: a local run uses no images"),
        (126, None, "ContainerCannotRun", "", "sandbox", "needs `chmod +x`"),
        (127, None, "Error", "", "sandbox", "read the log of the replica"),
        (126, None, "Error", "", "sandbox", "read the log of the replica"),
        (127, None, "Error", "sh: 1: trian: not found", "sandbox", "a shell did not find a command"),
        (126, None, "Error", "sh: 1: ./train.sh: Permission denied", "sandbox", "needs `chmod +x`"),
        (2, None, "Error", "python3: can't open file 'x.py': [Errno 2] No such file", "sandbox", "path of the script"),
        (137, 0, "Error", "", "sandbox", "read the log of the replica"),
        (
            137,
            0,
            "Error",
            "run.sh: line 3:  71 Killed   python",
            "sandbox",
            "a command of the shell was ended by SIGKILL",
        ),
        (137, 9, "Error", "", "sandbox", "a user or another process sent SIGKILL"),
        (137, None, "Error", "", "sandbox", "if it was SIGKILL: a user or another process sent SIGKILL"),
        (135, 7, "Error", "", "sandbox", "/dev/shm was probably full; mount an emptyDir with `medium: Memory`"),
        (135, 7, "Error", "", "process", "`df -h /dev/shm`"),
        (1, None, "Error", "Unexpected bus error encountered in worker", "sandbox", "/dev/shm was probably full"),
        (1, None, "", "socket.gaierror: [Errno -2] Name or service not known", "process", "$(service.TYPE[RANK].host)"),
        (1, None, "", "Temporary failure in name resolution", "sandbox", "only if the job has `spec.service`"),
        (1, None, "", "OSError: [Errno 28] No space left on device", "process", "a disk is full"),
        (139, None, "", "", "process", "a defect in native code"),
        (134, 6, "", "", "process", "the program aborted"),
        (132, 4, "", "", "process", "built for another processor"),
        (143, 15, "", "", "process", "another process asked it to end"),
        (1, None, "Error", "loss is nan", "process", "read the log of the replica"),
        (200, None, "", "", "process", "read the log of the replica"),
    ],
)
def test_on_one_machine(code: int, signal: int | None, reason: str, line: str, runtime: str, expected: str) -> None:
    assert expected in advice(RunPlace(runtime, by_command=False), code, signal, reason, line)


def test_a_command_is_told_of_its_option_and_a_manifest_of_its_field() -> None:
    expected = "it used more memory than its limit: raise "
    assert advice(RunPlace("sandbox", by_command=True), 137, 9, "OOMKilled") == f"{expected}--memory-per-replica"
    assert advice(SANDBOX, 137, 9, "OOMKilled") == f"{expected}resources.limits.memory"
    assert advice(RunPlace("sandbox"), 137, 9, "OOMKilled") == ACTIONS[FailureClass.OUT_OF_MEMORY]
    assert advice(SANDBOX, 1, 0, line="MemoryError") == ACTIONS[FailureClass.OUT_OF_MEMORY]  # it has no limit


@pytest.mark.parametrize("message", ["/etc is a directory", "the interpreter /no of x is not there"])
def test_no_advice_where_the_node_has_said_it_all(message: str) -> None:
    cause = Cause(CauseKind.EXIT, 126, reason="ContainerCannotRun", message=message)

    assert advise(cause, diagnose(cause), SANDBOX) == ""
    assert advise(cause, diagnose(cause), ON_CLUSTER) == ACTIONS[FailureClass.COMMAND_NOT_FOUND]


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 98] Address already in use",
        "ModuleNotFoundError: No module named 'torch'",
        "socket.gaierror: [Errno -2] Name or service not known",
        "OSError: [Errno 28] No space left on device",
        "sh: 1: trian: not found",
    ],
)
def test_on_a_cluster_the_general_advice_is_given(line: str) -> None:
    cause = Cause(CauseKind.EXIT, 127, 0, "Error")
    found = diagnose(cause, (line,))

    assert advise(cause, found, ON_CLUSTER) == ACTIONS[found.failure_class]


def test_causes_that_are_no_exits_and_rare_signals() -> None:
    evicted = Cause(CauseKind.EVICTED, reason="Evicted")
    assert advise(evicted, diagnose(evicted), SANDBOX) == ACTIONS[FailureClass.EVICTED]
    assert advice(SANDBOX, 129, 1) == ACTIONS[FailureClass.KILLED]
    assert advice(SANDBOX, 129) == ACTIONS[FailureClass.KILLED]
    assert advice(SANDBOX, 136, 0, line="run.sh: line 3:  71 Floating point exception python").endswith("by SIGFPE")
    other = "ImportError: cannot import name 'x' from 'y'"
    assert advice(SANDBOX, 1, 0, line=other) == ACTIONS[FailureClass.IMPORT_ERROR]


def test_a_message_of_the_node_that_says_all_needs_no_advice() -> None:
    message = 'the working directory "/no/such/folder" does not exist.'
    cause = Cause(CauseKind.EXIT, 128, reason="StartError", message=message)

    assert advise(cause, diagnose(cause), SANDBOX) == ""
