# SPDX-License-Identifier: Apache-2.0
"""Starting containers: what a process inherits, how it ended, and a clear sentence if it cannot start."""

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from supervised import PATH, Supervised, supervised

from patience import PATIENCE
from trainwright.node.supervisor.resource_limits import Cgroups


@pytest.mark.parametrize(
    ("script", "code", "signal"),
    [
        ("exit 0", 0, 0),
        ("exit 7", 7, 0),
        ("exit 137", 137, 0),
        ("kill -9 $$", 137, 9),
        ("kill -15 $$", 143, 15),
        ("ulimit -c 0; kill -SEGV $$", 139, 11),
    ],
    ids=["success", "exit 7", "exit 137", "SIGKILL", "SIGTERM", "SIGSEGV"],
)
def test_an_end_tells_an_exit_code_from_a_signal(tmp_path: Path, script: str, code: int, signal: int) -> None:
    with supervised(tmp_path) as one:
        end = one.ended(one.shell(script))
    assert (end["code"], end["signal"], end["oom"]) == (code, signal, False)
    assert end["at"] > 1.6e9


def _file(path: Path, text: str, mode: int) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


_FILES: dict[str, tuple[str | None, int, int, str]] = {
    "absent": (None, 0, 127, '"{path}": no such file.'),
    "plain": ("exit 0", 0o644, 126, '"{path}" is not executable (mode 0644).'),
    "format": ("exit 0", 0o755, 126, '"{path}": exec format error'),
    "script": ("#!/no/python -u\n", 0o755, 126, 'names the interpreter "/no/python", which does not exist.'),
    "dos": ("#!/bin/sh\r\nexit 0\r\n", 0o755, 126, "its lines end in CR LF"),
    "folder": ("", stat.S_IFDIR, 126, '"{path}" is a directory, not a program.'),
}


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("limits", [{}, {"memory": 64 << 20}], ids=["free", "limited"])
def test_a_file_that_cannot_run_is_refused(tmp_path: Path, name: str, limits: dict[str, int]) -> None:
    if limits and name == "format" and "memory" not in Cgroups().refusals:
        pytest.skip("the shell that enters a cgroup runs such a file as a script")
    text, mode, code, sentence = _FILES[name]
    path = tmp_path / name
    if mode == stat.S_IFDIR:
        path.mkdir()
    elif text is not None:
        _file(path, text, mode)
    with supervised(tmp_path / "s") as one:
        _, answer = one.try_start(str(path), limits=limits)
    assert (answer.get("code"), sentence.format(path=path) in answer["error"]) == (code, True), answer


@pytest.mark.parametrize(
    ("argv", "fields", "code", "sentence"),
    [
        (["no-such-program"], {}, 127, '"no-such-program": executable file not found in PATH ('),
        (["true"], {"env": {"PATH": "/nowhere"}}, 127, "not found in PATH (/nowhere)."),
        (["true"], {"cwd": "/no/such"}, 128, 'the working directory "/no/such" does not exist.'),
        (["true"], {"cwd": "/etc/passwd"}, 128, 'the working directory "/etc/passwd" is not a directory.'),
        ([], {}, 128, "the command is empty."),
        (["true", "a\0b"], {}, 128, "embedded null byte"),
        (["true"], {"env": {"A=B": "x"}}, 128, "illegal environment variable name"),
        (["true"], {"mounts": [{"source": "/tmp", "target": "/data"}]}, 128, '"/data" cannot be mounted'),  # noqa: S108
    ],
    ids=["not in PATH", "other PATH", "no cwd", "cwd is a file", "empty", "null byte", "bad name", "mount"],
)
def test_a_command_that_cannot_run_is_refused(
    tmp_path: Path, argv: list[str], fields: dict[str, Any], code: int, sentence: str
) -> None:
    with supervised(tmp_path) as one:
        name, answer = one.try_start(*argv, **fields)
        assert (answer.get("code"), sentence in answer["error"]) == (code, True), answer
        assert one.call("list")["containers"] == []
        assert not one.log(name).exists()


def test_path_is_searched_in_the_environment_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    _file(tmp_path / "bin" / "mine", "#!/bin/sh\nexit 5\n", 0o755)
    with supervised(tmp_path / "s") as one:
        assert one.ended(one.start("mine", env={"PATH": f"/nowhere:{tmp_path}/bin"}))["code"] == 5


@pytest.mark.parametrize("limits", [{}, {"memory": 64 << 20, "cpu": 1}], ids=["free", "limited"])
def test_a_process_gets_exactly_its_environment(tmp_path: Path, limits: dict[str, int]) -> None:
    with supervised(tmp_path) as one:
        name = one.start("/usr/bin/env", env={"A": "x y"}, cwd="/usr", limits=limits)
        one.ended(name)
        assert sorted(one.log(name).read_text().splitlines()) == [
            "A=x y",
            f"PATH={PATH}",
            f"TRAINWRIGHT_CONTAINER={name}",
        ]


def test_names_that_a_shell_would_lose_survive_a_limit(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.start("/usr/bin/env", env={"my.option": "1"}, limits={"memory": 64 << 20})
        one.ended(name)
        assert "my.option=1" in one.log(name).read_text()


#: Signals 32 and 33 belong to the C library's threads; whatever started these tests may have left them ignored.
THREADING = 0b11 << 31


@pytest.mark.parametrize("limits", [{}, {"memory": 64 << 20, "cpu": 1}], ids=["free", "limited"])
def test_a_process_has_a_clean_slate(tmp_path: Path, limits: dict[str, int]) -> None:
    look = (
        "readlink /proc/self/fd/0; echo $(ls /proc/self/fd); pwd; grep -E 'Sig(Blk|Ign)' /proc/self/status;"
        " cut -d' ' -f1,5,6 /proc/$$/stat; ulimit -n"
    )
    tight = (
        "/bin/sh",
        "-c",
        'ulimit -Sn 256; trap "" HUP; exec "$0" "$@"',
    )  # the supervisor itself has another limit
    with supervised(tmp_path, tight) as one:
        name = one.shell(look, cwd="/usr", limits=limits)
        one.ended(name)
        lines = one.log(name).read_text().split("\n")
    assert lines[0] == "/dev/null"
    assert lines[1] == "0 1 2 3"  # 3 is the folder that `ls` reads
    assert lines[2] == "/usr"
    masks = [int(line.split()[1], 16) & ~THREADING for line in lines[3:5]]
    assert masks == [0, 0]
    assert len({*lines[5].split()}) == 1  # it leads its group and its session
    assert int(lines[6]) == 256


def test_what_is_asked_twice_is_done_once(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 60")
        _, again = one.try_start("true", container=name)
        assert again["error"] == f'the container "{name}" was started before.'
        assert one.call("kill", container=name)["ok"]
        one.ended(name)
        for verb in ("kill", "forget"):
            assert one.call(verb, container=name)["ok"]
            assert one.call(verb, container=name)["ok"]
        assert one.call("close", pod="p1")["ok"]
        assert one.call("close", pod="p1")["ok"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"nonsense\n", "a line is not JSON"),
        (b"[1]\n", "expected a JSON object, found list."),
        (b'{"id": 0, "do": "dance"}\n', "expected `do` to be one of open, start, signal"),
        (b'{"id": 0, "do": "kill"}\n', "the request lacks the field 'container'."),
        (b'{"id": 0, "do": "signal", "container": "x", "signal": 15}\n', 'there is no container "x".'),
        (b'{"id": 0, "do": "start", "container": "x", "argv": 5, "env": 1, "log": "/x", "pod": "p"}\n', "not"),
    ],
    ids=["no JSON", "no object", "unknown verb", "missing field", "unknown container", "wrong types"],
)
def test_a_bad_request_is_answered_and_harms_nothing(tmp_path: Path, line: bytes, sentence: str) -> None:
    with supervised(tmp_path) as one:
        one.sock.sendall(line)
        one.until(lambda: bool(one.answers.keys() & {0, None}), "the answer")
        (answer,) = one.answers.values()
        assert sentence in answer["error"]
        assert one.ended(one.shell("exit 3"))["code"] == 3


def test_signals_reach_the_main_process_alone(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("trap 'echo got it; exit 4' TERM; sleep 60 & echo up; wait")
        one.words(name, "up")
        assert one.call("signal", container=name, signal=15)["ok"]
        assert one.ended(name)["code"] == 4
        assert "got it" in one.log(name).read_text()
        assert one.call("signal", container=name, signal=15)["ok"]


def test_three_hundred_short_containers_leave_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        one.ended(one.start("true"))
        before = one.descriptors()
        asked = [one.ask("start", **_true(one, number)) for number in range(300)]
        assert all(one.answer(number)["ok"] for number in asked)
        for number in range(300):
            one.ended(f"t{number}")
            one.ask("forget", container=f"t{number}")
        assert len(one.call("list")["containers"]) == 1
        assert (one.descriptors(), one.children()) == (before, [])


def _true(one: Supervised, number: int) -> dict[str, object]:
    argv = ["/bin/sh", "-c", "true & true & wait"]
    return {"pod": "p1", "container": f"t{number}", "argv": argv, "env": {}, "log": str(one.log("same"))}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [({"runtime": "magic"}, "found 'magic'"), ({}, "Is a directory")],
    ids=["unknown runtime", "no journal"],
)
def test_a_supervisor_that_cannot_work_says_why(tmp_path: Path, config: dict[str, Any], sentence: str) -> None:
    (tmp_path / "journal").mkdir()
    one = Supervised(tmp_path, **config)
    try:
        assert sentence in one.event("failed")["text"]
        assert one.process.wait(PATIENCE) == 3
    finally:
        one.end()


def test_an_interrupt_of_the_terminal_does_not_end_it(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        for number in (1, 2):
            os.kill(one.process.pid, number)
        assert one.ended(one.shell("exit 3"))["code"] == 3


def test_an_agent_that_does_not_listen_blocks_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        name = one.shell("while :; do echo line; sleep 0.001; done")
        for _ in range(3000):
            one.ask("list")
        size = one.log(name).stat().st_size
        one.eventually(lambda: one.log(name).stat().st_size > size)
        assert one.call("list")["ok"]


def test_an_agent_that_was_slow_gets_all_its_answers(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        one.shell("sleep 300")
        asked = [one.ask("list") for _ in range(4000)]
        one.eventually(lambda: _asleep(one.process.pid))  # it waits until it can write again
        assert all(len(one.answer(number)["containers"]) == 1 for number in asked)


def _asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
