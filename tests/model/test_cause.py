# SPDX-License-Identifier: Apache-2.0
"""Causes: how each of them reads."""

import msgspec
import pytest

from trainwright.model.cause import Cause, CauseKind, brief


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        pytest.param(Cause(CauseKind.COMPLETED), "completed", id="completed"),
        pytest.param(Cause(CauseKind.EXIT, code=1, container="main"), "container main exited with code 1", id="exit"),
        pytest.param(
            Cause(CauseKind.EXIT, code=1, container="main", reason="Error", message="trace"),
            "container main exited with code 1",
            id="exit, with the reason that says nothing",
        ),
        pytest.param(
            Cause(CauseKind.EXIT, code=137, signal=9, container="main", reason="OOMKilled"),
            "container main was killed by SIGKILL (exit code 137, OOMKilled)",
            id="exit, with a reason",
        ),
        pytest.param(
            Cause(CauseKind.EXIT, code=137, container="main", reason="OOMKilled"),
            "container main exited with code 137 (OOMKilled)",
            id="exit, with a reason that explains the code",
        ),
        pytest.param(
            Cause(CauseKind.EXIT, code=137, container="main", reason="Error"),
            "container main ended with SIGKILL, or exit code 137 from the program",
            id="exit, and it is not known whether by a signal",
        ),
        pytest.param(
            Cause(CauseKind.EXIT, code=137, signal=0, container="main", reason="Error"),
            "container main exited with code 137",
            id="exit, and it is known that by no signal",
        ),
        pytest.param(
            Cause(CauseKind.EXIT, code=192, signal=64, container="main"),
            "container main was killed by signal 64 (exit code 192)",
            id="exit, by a signal without a name",
        ),
        pytest.param(
            Cause(CauseKind.EXIT, code=128, container="main", reason="StartError", message="no such file"),
            "container main could not be started (exit code 128, StartError)",
            id="a program that never ran",
        ),
        pytest.param(Cause(CauseKind.EVICTED), "evicted by its node", id="evicted"),
        pytest.param(
            Cause(CauseKind.EVICTED, reason="Evicted", message="low on memory"),
            "evicted by its node (Evicted: low on memory)",
            id="evicted, in detail",
        ),
        pytest.param(Cause(CauseKind.DISRUPTED, reason="Preempted"), "disrupted (Preempted)", id="disrupted"),
        pytest.param(Cause(CauseKind.DELETED), "deleted by somebody else", id="deleted"),
        pytest.param(Cause(CauseKind.NODE_LOST, node="node-1"), "node node-1 is lost", id="node lost"),
        pytest.param(
            Cause(CauseKind.CREATE_ERROR, container="main", message="no such image"),
            "container main cannot be created (no such image)",
            id="create error",
        ),
        pytest.param(Cause(CauseKind.IN_PLACE), "restarted in place", id="in place"),
        pytest.param(
            Cause(CauseKind.REJECTED, reason="OutOfcpu"), "failed before any container ran (OutOfcpu)", id="rejected"
        ),
    ],
)
def test_a_cause_reads_as_one_phrase(cause: Cause, expected: str) -> None:
    assert expected == str(cause)


@pytest.mark.parametrize("why", list(CauseKind))
def test_every_kind_of_cause_has_words(why: CauseKind) -> None:
    assert str(Cause(why))


@pytest.mark.parametrize(
    ("text", "longest", "expected"),
    [
        pytest.param("", 5, "", id="nothing"),
        pytest.param("abcde", 5, "abcde", id="as long as may be"),
        pytest.param("abcdef", 5, "abcd…", id="longer"),
        pytest.param("a\nb\tc", 9, "a\nb\tc", id="line ends and tabs stay"),
        pytest.param("a\x00b\x1b[31mc\r", 20, "ab[31mc", id="control characters go"),
        pytest.param("\u00e9\u4e2d", 9, "\u00e9\u4e2d", id="other scripts stay"),
    ],
)
def test_a_text_is_kept_brief_and_printable(text: str, longest: int, expected: str) -> None:
    assert expected == brief(text, longest)


def test_a_message_is_kept_to_a_kilobyte() -> None:
    assert brief("x" * 1025) == "x" * 1023 + "…"
    assert brief("x" * 1024) == "x" * 1024


def test_a_cause_is_stored_without_what_it_does_not_know() -> None:
    assert msgspec.json.encode(Cause(CauseKind.EXIT, code=1)) == b'{"why":"Exit","code":1}'
    assert Cause(CauseKind.EXIT, code=137, signal=9) == msgspec.json.decode(
        b'{"why":"Exit","code":137,"signal":9}', type=Cause
    )
