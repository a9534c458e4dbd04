# SPDX-License-Identifier: Apache-2.0
"""The class of a failure, by its cause and by the text that a program left."""

import pytest
from outputs import HARMLESS, LINES

from trainwright.core.diagnose import Diagnosis, diagnose, doubt
from trainwright.core.output import ends_with_own_error, find_sign, last_line
from trainwright.core.signs import ACTIONS, SIGNS
from trainwright.model.cause import Cause, CauseKind
from trainwright.model.verdict import FailureClass

CAUSES = [
    (Cause(CauseKind.NODE_LOST, node="n"), FailureClass.NODE_LOST),
    (Cause(CauseKind.DISRUPTED, reason="NodeShutdown"), FailureClass.NODE_LOST),
    (Cause(CauseKind.DISRUPTED, reason="Terminated"), FailureClass.NODE_LOST),
    (Cause(CauseKind.DEVICE), FailureClass.DEVICE_FAILED),
    (Cause(CauseKind.DISRUPTED, reason="PreemptionByScheduler"), FailureClass.PREEMPTED),
    (Cause(CauseKind.DISRUPTED, reason="Preempting"), FailureClass.PREEMPTED),
    (Cause(CauseKind.DISRUPTED, reason="EvictionByEvictionAPI"), FailureClass.DISRUPTED),
    (Cause(CauseKind.EVICTED, reason="Evicted"), FailureClass.EVICTED),
    (Cause(CauseKind.DISRUPTED, reason="Evicted"), FailureClass.EVICTED),
    (Cause(CauseKind.DELETED), FailureClass.DELETED),
    (Cause(CauseKind.REJECTED, reason="UnexpectedAdmissionError"), FailureClass.DISRUPTED),
    (Cause(CauseKind.CREATE_ERROR, reason="ImagePullBackOff"), FailureClass.IMAGE),
    (Cause(CauseKind.CREATE_ERROR, reason="InvalidImageName"), FailureClass.IMAGE),
    (Cause(CauseKind.CREATE_ERROR, reason="CreateContainerConfigError"), FailureClass.MISSING_OBJECT),
    (Cause(CauseKind.EXIT, 137, 9, "OOMKilled"), FailureClass.OUT_OF_MEMORY),
    (Cause(CauseKind.EXIT, 137, 0, "OOMKilled"), FailureClass.OUT_OF_MEMORY),
    (Cause(CauseKind.EXIT, 127, reason="ContainerCannotRun"), FailureClass.COMMAND_NOT_FOUND),
    (Cause(CauseKind.EXIT, 128, reason="StartError"), FailureClass.COMMAND_NOT_FOUND),
    (Cause(CauseKind.EXIT, 137, 9, "Error"), FailureClass.KILLED),
    (Cause(CauseKind.EXIT, 137, reason="Error"), FailureClass.KILLED),
    (Cause(CauseKind.EXIT, 137, 0, "Error"), FailureClass.PROGRAM_ERROR),
    (Cause(CauseKind.EXIT, 143, reason="Error"), FailureClass.KILLED),
    (Cause(CauseKind.EXIT, 138, 10, "Error"), FailureClass.KILLED),
    (Cause(CauseKind.EXIT, 135, 7, "Error"), FailureClass.SHARED_MEMORY),
    (Cause(CauseKind.EXIT, 139, 11, "Error"), FailureClass.CRASHED),
    (Cause(CauseKind.EXIT, 134, 6, "Error"), FailureClass.CRASHED),
    (Cause(CauseKind.EXIT, 132, 4, "Error"), FailureClass.CRASHED),
    (Cause(CauseKind.EXIT, 1, reason="Error"), FailureClass.PROGRAM_ERROR),
    (Cause(CauseKind.COMPLETED), FailureClass.COMPLETED),
]
#: Classes that no end of a replica has: the job as a whole has them, see `test_verdicts` and `test_waiting`.
OF_JOBS = {
    *(
        FailureClass.DEADLINE,
        FailureClass.QUOTA,
        FailureClass.REFUSED,
        FailureClass.UNSCHEDULABLE,
        FailureClass.RESIZED,
    ),
    *(FailureClass.RULE, FailureClass.REQUESTED, FailureClass.INVALID, FailureClass.NONE),
}
ERROR = Cause(CauseKind.EXIT, 1, reason="Error")
TRACE = "Traceback (most recent call last):"


def exited(*lines: str, code: int = 1, signal: int = 0, message: str = "") -> Diagnosis:
    """The diagnosis of an end after this output."""
    return diagnose(Cause(CauseKind.EXIT, code, signal, "Error", message), lines)


@pytest.mark.parametrize(("cause", "expected"), CAUSES)
def test_the_cause_names_the_class(cause: Cause, expected: FailureClass) -> None:
    assert diagnose(cause).failure_class is expected


def test_every_class_has_a_row() -> None:
    assert {found for _, found in CAUSES} | set(LINES.values()) | OF_JOBS == set(FailureClass)


# -- signs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:50])
def test_the_output_names_the_class(line: str) -> None:
    found = diagnose(ERROR, ("step 1", line, ""))

    assert found.failure_class is LINES[line]
    assert found.line == line.removeprefix("[rank0]:").strip()
    assert found.action


@pytest.mark.parametrize("line", HARMLESS)
def test_other_lines_show_nothing(line: str) -> None:
    found = diagnose(ERROR, ("step 1", line, ""))

    assert (found.failure_class, found.line, found.last_line) == (FailureClass.PROGRAM_ERROR, "", line)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: f"{sign.failure_class} {sign.pattern.pattern[:30]}")
def test_every_sign_has_a_row(sign: object) -> None:
    code = 127  # with it, the signs for commands that a shell cannot execute count too
    shown = [found.sign for line in (*LINES, *CANNOT_EXECUTE) if (found := find_sign([line], code)) is not None]

    assert sign in shown


#: What shells print if they find a command but cannot execute it. With another code, a program printed it.
CANNOT_EXECUTE = (
    "sh: 1: ./train.sh: Permission denied",
    "bash: line 1: ./train.sh: No such file or directory",
    "bash: line 1: ./train: cannot execute binary file: Exec format error",
)


@pytest.mark.parametrize("line", CANNOT_EXECUTE)
def test_the_exit_code_tells_whether_a_shell_did_not_find_its_command(line: str) -> None:
    assert exited(line, code=126).failure_class is FailureClass.COMMAND_NOT_FOUND
    assert exited(line, code=2).failure_class is FailureClass.PROGRAM_ERROR


def test_every_class_of_a_replica_has_an_action() -> None:
    assert {sign.failure_class for sign in SIGNS} <= ACTIONS.keys()


# -- which line of an output -----------------------------------------------------------------------------------------


def test_the_last_sign_counts() -> None:
    found = exited("connect: Connection refused, retrying", TRACE, "ValueError: bad")

    assert (found.failure_class, found.line) == (FailureClass.PROGRAM_ERROR, "ValueError: bad")


def test_an_error_that_python_ignores_does_not_count() -> None:
    """Captured from a program whose object fails in `__del__` after the real error."""
    ignored = ("Exception ignored in: <function Loader.__del__ at 0x7f73>", TRACE, '  File "x.py", line 5, in __del__')
    found = exited(TRACE, "ValueError: loss is nan", *ignored, "AttributeError: 'NoneType' has no 'close'", "bye")

    assert found.line == "ValueError: loss is nan"


def test_a_report_of_another_process_counts_only_alone() -> None:
    """From a log of torchrun: the summary hides which error the worker had."""
    summary = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 7)",
        TRACE,
        '  File "torch/distributed/launcher/api.py", line 245, in launch_agent',
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Root Cause (first observed failure):",
        "  exitcode  : 1 (pid: 7)",
    )

    assert exited(TRACE, "KeyError: 'learning_rate'", *summary).line == "KeyError: 'learning_rate'"
    assert exited(*summary).line == summary[3]


def test_of_several_ranks_the_one_with_an_own_error_counts() -> None:
    """As PyTorch prefixes tracebacks: rank 1 fails, and rank 0 loses it."""
    found = exited(
        f"[rank1]: {TRACE}",
        "[rank1]: KeyError: 'label'",
        f"[rank0]: {TRACE}",
        "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer",
    )

    assert (found.failure_class, found.line) == (FailureClass.PROGRAM_ERROR, "KeyError: 'label'")


CAUSED = "The above exception was the direct cause of the following exception:"
MEANWHILE = "During handling of the above exception, another exception occurred:"


def test_the_error_that_caused_the_last_one_is_told_and_names_the_class() -> None:
    first = (TRACE, '  File "x.py", line 3, in <module>', "OSError: [Errno 28] No space left on device", "")
    found = exited(*first, CAUSED, "", TRACE, '  File "x.py", line 5', "RuntimeError: cannot save")

    assert found.failure_class is FailureClass.DISK_FULL
    assert found.line == "RuntimeError: cannot save, caused by OSError: [Errno 28] No space left on device"


def test_an_error_of_an_error_handler_keeps_its_class() -> None:
    """The first error may be expected: a program that tries to import a module, for example."""
    first = (TRACE, '  File "x.py", line 3', "ModuleNotFoundError: No module named 'ujson'", "")
    found = exited(*first, MEANWHILE, "", TRACE, '  File "x.py", line 5', "KeyError: 'label'")

    assert found.failure_class is FailureClass.PROGRAM_ERROR
    assert found.line == "KeyError: 'label', raised while it handled ModuleNotFoundError: No module named 'ujson'"


def test_the_error_of_a_traceback_needs_no_known_name() -> None:
    frame = '  File "x.py", line 3, in <module>'

    assert exited(TRACE, frame, "    next(batches)", "StopIteration", "bye").line == "StopIteration"
    assert exited(frame, "StopIteration").line == ""


def test_an_exception_group_is_read() -> None:
    """As Python prints what failed in an `asyncio.TaskGroup`."""
    found = exited(
        "  + Exception Group Traceback (most recent call last):",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        f"    | {TRACE}",
        "    | MemoryError",
        "    +------------------------------------",
    )

    assert (found.failure_class, found.line) == (FailureClass.OUT_OF_MEMORY, "MemoryError")


def test_colours_and_progress_bars_do_not_hide_a_line() -> None:
    assert exited("\x1b[1;31mValueError: bad\x1b[0m").line == "ValueError: bad"
    assert exited("10%|#   | 1/9\r20%|##  | 2/9\rValueError: bad\r").line == "ValueError: bad"
    assert last_line(["step 1", "10%\r20%\r", " "]) == "20%"


def test_without_a_sign_the_last_line_is_told() -> None:
    found = exited("step 1", "the checkpoint is damaged")

    assert (found.line, found.last_line) == ("", "the checkpoint is damaged")


# -- termination messages and signals --------------------------------------------------------------------------------


def test_the_termination_message_is_read_too() -> None:
    assert exited(message="x\nMemoryError\n").failure_class is FailureClass.OUT_OF_MEMORY
    assert exited("bye", message="epoch 3 diverged").line == "epoch 3 diverged"
    assert exited("ValueError: bad", message="epoch 3 diverged").line == "ValueError: bad"


def test_a_message_of_the_node_wins_over_a_general_error_of_the_log() -> None:
    probe = "its liveness probe failed: no answer within 1 s"
    found = exited("KeyboardInterrupt", code=130, message=probe)

    assert (found.failure_class, found.line) == (FailureClass.KILLED, probe)
    assert "probe" in found.action


def test_the_log_wins_over_a_message_that_says_the_same_with_less() -> None:
    bound = "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 80): address already in use"

    assert exited(bound, message="Address already in use: use another port").line == bound


def test_a_command_that_could_not_start_is_told_in_the_words_of_the_node() -> None:
    cause = Cause(CauseKind.EXIT, 127, reason="ContainerCannotRun", message='"trian": not found in PATH')

    assert diagnose(cause).line == '"trian": not found in PATH'


def test_no_line_explains_a_signal_from_outside() -> None:
    found = exited("Connection refused, retrying", code=137, signal=9)

    assert (found.failure_class, found.line) == (FailureClass.KILLED, "")


def test_a_special_error_explains_an_abort_and_a_general_one_is_quoted() -> None:
    fatal = exited("Fatal Python error: Aborted", code=134, signal=6)

    assert (fatal.failure_class, fatal.line) == (FailureClass.CRASHED, "Fatal Python error: Aborted")
    assert exited("std::bad_alloc", code=134, signal=6).failure_class is FailureClass.OUT_OF_MEMORY
    assert exited("Connection refused", code=139, signal=11).failure_class is FailureClass.CRASHED


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ("Killed", 137, FailureClass.KILLED),
        ("bash: line 1:    12 Killed                  python3 train.py", 137, FailureClass.KILLED),
        ("Segmentation fault (core dumped)", 139, FailureClass.CRASHED),
        ("Bus error", 135, FailureClass.SHARED_MEMORY),
        ("Killed", 1, FailureClass.PROGRAM_ERROR),
        ("steps: 137", 137, FailureClass.PROGRAM_ERROR),
    ],
)
def test_a_shell_tells_which_signal_ended_its_command(line: str, code: int, expected: FailureClass) -> None:
    assert exited(line, code=code).failure_class is expected


# -- which of several failures ---------------------------------------------------------------------------------------


def test_a_lost_connection_is_more_doubtful_than_an_unknown_error() -> None:
    known, unknown, lost = exited("ValueError: bad"), exited("step 1"), exited("Connection reset by peer")

    assert [doubt(one) for one in (known, exited(code=137, signal=9), unknown, lost)] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("KeyError: 'label'", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", False),
        ("KeyboardInterrupt", False),
        ("step 1", False),
    ],
)
def test_a_log_that_ends_with_an_own_error(line: str, expected: bool) -> None:
    assert ends_with_own_error(["step 0", line]) is expected
    assert not ends_with_own_error([line, "step 1"])
