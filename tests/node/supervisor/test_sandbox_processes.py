# SPDX-License-Identifier: Apache-2.0
"""Processes in a sandbox: they have their own PIDs, get signals, and none is left at the end."""

import os
import signal
from pathlib import Path

import pytest
from sandboxed import PATH, Sandboxed, below, eventually
from supervised import alive

_DAEMON = "(setsid sh -c 'sleep 300 & sleep 300' & ); "
_TREES = {
    "child": "sleep 300 & ",
    "daemon": _DAEMON,
    "deaf": "(trap '' TERM INT HUP; sleep 300) & ",
    "without its environment": "env -i sleep 300 & ",
    "daemon's daemon": f"(setsid sh -c '{_DAEMON.replace(chr(39), chr(34))} sleep 300' & ); ",
}


def test_the_command_is_not_process_1_and_sees_only_its_own(box: Sandboxed) -> None:
    box.open()
    box.start("sleep 300")
    words = box.run("echo main $$; cat /proc/1/comm; ls /proc | grep -c '^[0-9]'").split()
    assert words[:2] == ["main", "2"]
    assert int(words[3]) <= 5  # init, sh, ls, grep, and perhaps another sh


def test_the_command_keeps_the_users_id(box: Sandboxed) -> None:
    """Some programs, for example mpirun, refuse to run as root."""
    box.open()
    uid = box.folder.stat().st_uid
    assert box.run("id -u") == f"{uid}\n"


def test_the_command_gets_no_rights_that_the_user_has_not(box: Sandboxed) -> None:
    if box.who == "root":
        pytest.skip("root has all of them")
    box.open()
    assert box.run("grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status").split()[1::2] == ["0" * 16] * 3


def test_sigterm_ends_a_command_that_does_not_handle_it(box: Sandboxed) -> None:
    box.open()
    name = box.start("exec sleep 300")
    box.call("signal", container=name, signal=signal.SIGTERM)
    end = box.event("ended", container=name)
    assert (end["code"], end["signal"]) == (143, 15)


_HOLD = """python3 -c 'import time; x = bytearray(200 << 20); x[::4096] = b"y" * len(x[::4096]); time.sleep(300)'"""


@pytest.mark.parametrize("script", [f"exec {_HOLD}", f"(setsid {_HOLD} & ); sleep 300"], ids=["main process", "daemon"])
def test_without_cgroups_a_memory_limit_holds_for_all_processes(who: str, folder: Path, script: str) -> None:
    hide = ["unshare", "-m", "/bin/sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"']
    box = Sandboxed(folder, who, hide if os.geteuid() == 0 else ())
    try:
        box.ready()
        box.open()
        end = box.event("ended", container=box.start(script, limits={"memory": 64 << 20}))
        assert (end["code"], end["signal"], end["oom"]) == (137, 9, True)
    finally:
        box.end()


@pytest.mark.parametrize(("script", "code", "number"), [("exit 7", 7, 0), ("exit 137", 137, 0), ("kill -9 $$", 137, 9)])
def test_how_it_ended_is_told(box: Sandboxed, script: str, code: int, number: int) -> None:
    box.open()
    end = box.event("ended", container=box.start(script))
    assert (end["code"], end["signal"]) == (code, number)


@pytest.mark.parametrize("tree", _TREES)
def test_kill_takes_the_whole_tree(box: Sandboxed, tree: str) -> None:
    box.open()
    name = box.start(_TREES[tree] + "echo up; sleep 300")
    box.hears(name, "up")
    box.call("kill", container=name)
    assert box.event("ended", container=name)["signal"] == 9
    eventually(lambda: not box.descendants())


@pytest.mark.parametrize("tree", _TREES)
def test_what_the_command_leaves_is_killed_when_it_ends(box: Sandboxed, tree: str) -> None:
    box.open()
    box.run(_TREES[tree] + "exit 0")
    eventually(lambda: not box.descendants())


def test_orphans_are_reaped(box: Sandboxed) -> None:
    box.open()
    script = "for i in 1 2 3 4 5; do (sleep 0.01 &); done; until ! pgrep -x sleep; do sleep 0; done; grep -h ^State"
    assert "Z" not in box.run(script + " /proc/[0-9]*/status 2>/dev/null; true")


def test_closing_a_pod_kills_its_containers(box: Sandboxed) -> None:
    box.open("a")
    box.open("b")
    gone, stays = box.start("sleep 300", "a"), box.start("sleep 300", "b")
    box.call("close", pod="a")
    assert box.event("ended", container=gone)["signal"] == 9
    assert box.enter(stays, "echo here")["output"] == "here\n"


def test_nothing_outlives_a_supervisor_that_is_killed(box: Sandboxed) -> None:
    box.open()
    box.hears(box.start(_TREES["daemon"] + "echo up; sleep 300"), "up")
    processes = below(box.process.pid)
    assert len(processes) >= 4
    box.process.kill()
    eventually(lambda: not any(alive(pid) for pid in processes))


def test_a_command_that_enters_is_in_the_same_place(box: Sandboxed, folder: Path) -> None:
    (folder / "data").mkdir()
    mounts = [{"source": str(folder / "data"), "target": "/opt/sandbox/data"}]
    box.open("web")
    show = "hostname; pwd; echo $NAME $HOME; cat /proc/2/comm; ls /opt/sandbox; cut -d: -f1 /proc/net/dev | xargs"
    env = {"PATH": PATH, "NAME": "value", "HOME": "/h"}
    name = box.start(f"{show}; sleep 300", "web", mounts=mounts, cwd="/usr", env=env)
    box.hears(name, "eth0")
    entered = box.enter(name, show)
    assert (entered["output"], entered["code"]) == (box.said(name), 0)
    assert box.enter(name, "echo $NAME $MORE", env={"MORE": "more"})["output"] == "value more\n"


def test_entering_a_container_that_has_ended_is_refused(box: Sandboxed) -> None:
    box.open()
    name = box.start("exit 0")
    box.event("ended", container=name)
    assert "error" in box.enter(name, "true")


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "words"),
    [
        (["no-such-program"], "/", 127, "not found"),
        (["/etc/passwd"], "/", 126, "not executable"),
        (["/bin/true"], "/no/such/folder", 128, "/no/such/folder"),
    ],
    ids=["missing", "not a program", "no folder"],
)
def test_what_cannot_be_started_is_refused_and_leaves_nothing(
    box: Sandboxed, argv: list[str], cwd: str, code: int, words: str
) -> None:
    box.open()
    _, answer = box.attempt(argv, cwd=cwd)
    assert (answer["code"], words in answer["error"]) == (code, True), answer
    eventually(lambda: not box.descendants())


_PRIVATE = "; /tmp is the pod's own in the sandbox."


def test_a_program_in_the_tmp_of_the_machine_is_missed_with_a_word_on_why(box: Sandboxed, folder: Path) -> None:
    for name, first in (("prog", "/bin/sh"), ("kept/script", f"{folder}/prog"), ("kept/plain", "/no/such")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!{first}\n")
        (folder / name).chmod(0o755)
    (folder / "work").mkdir()
    box.open(keep=[f"{folder}/kept"])
    said = {
        "by its path": box.attempt([f"{folder}/prog"])[1],
        "by its name": box.attempt(["prog"], env={"PATH": f"/bin:{folder}"})[1],
        "as an interpreter": box.attempt([f"{folder}/kept/script"])[1],
        "as a folder": box.attempt(["/bin/true"], cwd=f"{folder}/work")[1],
        "later": box.enter(box.start("exec sleep 300"), "", argv=[f"{folder}/prog"]),
    }
    assert not [how for how, answer in said.items() if not answer.get("error", "").endswith(_PRIVATE)], said
    assert said["by its path"]["error"] == f'"{folder}/prog": no such file{_PRIVATE}'
    for argv in (["/tmp/no-such-program"], ["no-such"], [f"{folder}/kept/plain"], [f"{folder}/kept"]):  # noqa: S108
        assert "pod's own" not in box.attempt(argv)[1]["error"]


def test_where_tmp_is_the_machines_nobody_says_otherwise(box: Sandboxed, folder: Path) -> None:
    (folder / "prog").touch(0o644)
    box.open(keep=["/tmp"])  # noqa: S108
    assert "pod's own" not in box.attempt([f"{folder}/prog"])[1]["error"]


def test_opening_an_open_pod_again_changes_nothing(box: Sandboxed) -> None:
    address = box.open()
    name = box.start("sleep 300")
    before = len(list(Path(f"/proc/{box.process.pid}/fd").iterdir())) if os.geteuid() == 0 else 0
    box.open(address=address)
    after = len(list(Path(f"/proc/{box.process.pid}/fd").iterdir())) if os.geteuid() == 0 else 0
    assert before == after
    assert box.enter(name, "hostname")["output"] == "pod\n"
