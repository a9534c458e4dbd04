# SPDX-License-Identifier: Apache-2.0
"""Process trees: no process of a container outlives it, and no process of another container is killed."""

from pathlib import Path

import pytest
from supervised import Supervised, alive, supervised

from patience import PATIENCE
from trainwright.node.supervisor import tree

# A usual daemon: its parent ends at once, and it leads its own session.
_DAEMON = "(setsid sh -c 'echo daemon $$ >>{log}; sleep 300 & wait' & ) ; "
_INNER = '(setsid sh -c "echo inner \\$\\$ >>{log}; sleep 300" & ); '

_GROUP = (
    "python3 -c 'import os; os.setpgid(0, 0);"
    ' os.execve("/bin/sh", ["sh", "-c", "echo own $$ >>{{log}}; sleep 300"], {env})\' & '
)

_UNTRACEABLE = "a session and no environment"  # when its parents have ended
_TREES = {
    "child": "sh -c 'echo child $$ >>{log}; sleep 300' & ",
    "setsid child": "setsid sh -c 'echo child $$ >>{log}; sleep 300' & ",
    "daemon": _DAEMON,
    "daemon's daemon": f"(setsid sh -c 'echo outer $$ >>{{log}}; {_INNER} sleep 300' & ); ",
    "without its environment": "env -i sh -c 'echo bare $$ >>{log}; sleep 300' & ",
    _UNTRACEABLE: "env -i setsid sh -c 'echo bare $$ >>{log}; sleep 300' & ",
    "group of its own": _GROUP.format(env="os.environ"),
    "group of its own and no environment": _GROUP.format(env="{{}}"),
}
_COUNT = {"daemon's daemon": 2}


def _run(one: Supervised, tmp_path: Path, shape: str, then: str) -> tuple[str, list[int]]:
    """Start a container with such a tree, and return its pids when all run."""
    log = tmp_path / "pids"
    count = _COUNT.get(shape, 1)
    script = (
        _TREES[shape].format(log=log)
        + f"while [ $(cat {log} 2>/dev/null | wc -l) -lt {count} ]; do sleep 0.01; done; {then}"
    )
    name = one.shell(script)
    one.eventually(lambda: log.exists() and len(log.read_text().splitlines()) == count)
    return name, [int(line.split()[1]) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("shape", _TREES)
def test_kill_takes_the_whole_tree(tmp_path: Path, shape: str) -> None:
    with supervised(tmp_path / "s") as one:
        name, pids = _run(one, tmp_path, shape, "sleep 300")
        one.call("kill", container=name)
        end = one.ended(name)
        assert (end["code"], end["signal"]) == (137, 9)
        one.eventually(lambda: not any(map(alive, pids)) and one.children() == [])


@pytest.mark.parametrize("shape", [shape for shape in _TREES if shape != _UNTRACEABLE])
def test_what_is_left_at_the_end_is_killed(tmp_path: Path, shape: str) -> None:
    with supervised(tmp_path / "s") as one:
        name, pids = _run(one, tmp_path, shape, "exit 6")
        assert one.ended(name)["code"] == 6
        one.eventually(lambda: not any(map(alive, pids)) and one.children() == [])


def test_a_program_that_overwrote_its_environment_is_found_by_its_session(tmp_path: Path) -> None:
    with supervised(tmp_path / "s") as one:
        name, pids = _run(one, tmp_path, "without its environment", "exit 0")
        one.ended(name)
        one.eventually(lambda: not any(map(alive, pids)))


def test_one_container_s_end_does_not_touch_another_s_daemon(tmp_path: Path) -> None:
    with supervised(tmp_path / "s") as one:
        kept, pids = _run(one, tmp_path, "daemon", "sleep 300")
        for _ in range(3):
            one.ended(one.shell("(setsid sleep 300 & ); exit 0"))
        assert all(map(alive, pids))
        one.call("kill", container=kept)
        one.ended(kept)
        one.eventually(lambda: one.children() == [])


def test_close_kills_what_a_pod_still_runs_and_answers_then(tmp_path: Path) -> None:
    with supervised(tmp_path / "s") as one:
        names = [one.shell("sleep 300"), one.shell("sleep 300")]
        other = one.shell("sleep 300", pod="p2")
        assert one.call("close", pod="p1")["ok"]
        assert sorted(event["container"] for event in one.events) == sorted(names)
        assert [entry["container"] for entry in one.call("list")["containers"] if not entry["ended"]] == [other]


@pytest.mark.parametrize("how", ["hang up", "terminate"])
def test_ending_the_supervisor_leaves_nothing(tmp_path: Path, how: str) -> None:
    with supervised(tmp_path / "s") as one:
        _, pids = _run(one, tmp_path, "daemon's daemon", "sleep 300")
        lost = one.shell(f"env -i setsid sh -c 'sleep 300 & echo $! >{tmp_path}/lost' & sleep 300")
        one.eventually(lambda: (tmp_path / "lost").exists() and (tmp_path / "lost").read_text())
        pids.append(int((tmp_path / "lost").read_text()))
        if how == "hang up":
            assert one.hang_up() == 0
        else:
            one.process.terminate()
            assert one.ended(lost)["signal"] == 9
            assert one.process.wait(PATIENCE) == 0
        assert not any(map(alive, pids))
        assert not (tmp_path / "s" / "supervisor.sock").exists()


def test_the_rest_of_a_supervisor_that_was_killed_can_be_found(tmp_path: Path) -> None:
    with supervised(tmp_path / "s") as one:
        name, pids = _run(one, tmp_path, "daemon", "sleep 300")
        one.process.kill()
        one.process.wait()
        assert all(map(alive, pids))
        while tree.kill_marked({name}):
            pass
        one.eventually(lambda: not any(map(alive, pids)))
