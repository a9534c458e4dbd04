# SPDX-License-Identifier: Apache-2.0
"""When an agent dies, its supervisor ends all containers, or keeps them and all exit codes for the next agent."""

import time
from pathlib import Path

from supervised import Supervised, Talk, alive, supervised

from patience import PATIENCE
from trainwright.node.supervisor import identity, journal, terminal


def _back(one: Supervised) -> Talk:
    """Another agent for the same supervisor."""
    talk = Talk(terminal.connect(str(one.folder)))
    talk.take_over()
    assert talk.event("ready")["runtime"] == "process"
    return talk


def test_an_agent_that_comes_back_finds_the_ends_it_missed(tmp_path: Path) -> None:
    with supervised(tmp_path, orphans="keep") as one:
        wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; "
        seven, killed, exit137 = (one.shell(wait + end) for end in ("echo late; exit 7", "kill -9 $$", "exit 137"))
        running = one.shell("sleep 300")
        one.sock.close()
        (tmp_path / "go").touch()
        one.eventually(lambda: (tmp_path / "journal").read_text().count('"signal"') == 3)
        back = _back(one)
        try:
            found = {entry["container"]: entry for entry in back.call("list")["containers"]}
            ends = {name: found[name]["ended"] for name in (seven, killed, exit137)}
            assert [(end["code"], end["signal"]) for end in ends.values()] == [(7, 0), (137, 9), (137, 0)]
            assert found[running]["ended"] is None
            assert alive(found[running]["pid"])
            assert one.log(seven).read_text() == "late\n"
            for name in ends:
                back.call("forget", container=name)
            assert [entry["container"] for entry in back.call("list")["containers"]] == [running]
            assert [*journal.read(str(tmp_path / "journal"))] == [running]
            back.call("signal", container=running, signal=15)
            assert back.event("ended", container=running)["signal"] == 15
        finally:
            back.sock.close()


def test_the_newest_agent_is_the_one_that_is_heard(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        name = one.shell("sleep 300")
        back = _back(one)
        try:
            assert one.sock.recv(100) == b""  # the containers still run
            assert back.call("kill", container=name)["ok"]
            back.event("ended", container=name)
        finally:
            back.sock.close()
        assert one.process.wait(PATIENCE) == 0


def test_notices_wait_for_an_agent_that_comes_back(tmp_path: Path) -> None:
    with supervised(tmp_path, orphans="keep") as one:
        one.shell("echo something; sleep 300", log="/proc/no/such/folder/x.log")
        one.event("notice")
        one.sock.close()
        back = Talk(terminal.connect(str(tmp_path)))
        back.take_over()
        assert "is incomplete" in back.event("ready")["notices"][0]
        back.sock.close()


def test_a_supervisor_that_was_left_with_nothing_to_do_goes(tmp_path: Path) -> None:
    with supervised(tmp_path, orphans="keep", linger=0.1) as one:
        name = one.shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; exit 7")
        one.sock.close()
        (tmp_path / "go").touch()
        assert one.process.wait(PATIENCE) == 0
        end = journal.read(str(tmp_path / "journal"))[name]["ended"]
        assert end is not None
        assert (end["code"], end["signal"]) == (7, 0)


def test_the_last_requests_of_an_agent_count(tmp_path: Path) -> None:
    with supervised(tmp_path, orphans="keep") as one:
        for number in range(100):
            one.ask("start", pod="p1", container=f"x{number}", argv=["true"], env={}, log=str(tmp_path / "log"))
        one.sock.close()
        one.eventually(lambda: (tmp_path / "journal").read_text().count('"signal"') == 100)


def test_the_next_agent_learns_what_a_container_is(tmp_path: Path) -> None:
    with supervised(tmp_path, orphans="keep") as one:
        name = one.shell("sleep 300", name="main", restart=2, message="/some/message")
        one.call("note", container=name, notes={"post_start": True})
        one.call("note", container=name, notes={"stop_by": 12.5})
        one.sock.close()
        back = _back(one)
        answer = back.call("list")
        back.sock.close()
        (found,) = answer["containers"]
        assert {key: found[key] for key in ("name", "restart", "message", "notes")} == {
            "name": "main",
            "restart": 2,
            "message": "/some/message",
            "notes": {"post_start": True, "stop_by": 12.5},
        }
        assert abs(found["started"] - time.time()) < PATIENCE
        assert answer["pods"] == ["p1"]
        assert journal.read(str(tmp_path / "journal"))[name] == found


def test_a_container_that_cannot_start_leaves_no_trace(tmp_path: Path) -> None:
    with supervised(tmp_path, orphans="keep") as one:
        name, answer = one.try_start("/no/such/program", name="main", restart=0)
        assert answer["code"] == 127
        assert one.call("list")["containers"] == []
        assert journal.read(str(tmp_path / "journal")) == {}
        assert one.start("/bin/true", container=name, name="main", restart=0) == name


def test_a_folder_has_one_supervisor_at_a_time(tmp_path: Path) -> None:
    """A second one would begin another journal and take the socket away from the first."""
    with supervised(tmp_path, orphans="keep") as one:
        name = one.shell("sleep 300")
        assert identity.lives(str(tmp_path))
        second = Supervised(tmp_path, orphans="keep")
        try:
            assert "another supervisor lives in this folder" in second.event("failed")["text"]
        finally:
            second.end()
        assert [*journal.read(str(tmp_path / "journal"))] == [name]
        known = identity.read(str(tmp_path))
        assert known is not None
        assert known["pid"] == one.process.pid
    assert not identity.lives(str(tmp_path))


def test_the_journal_of_a_dead_supervisor_tells_what_ended_and_what_did_not(tmp_path: Path) -> None:
    with supervised(tmp_path) as one:
        ended, running = one.shell("exit 7"), one.shell("sleep 1")
        one.ended(ended)
        one.process.kill()
        one.process.wait()
    entries = journal.read(str(tmp_path / "journal"))
    end = entries[ended]["ended"]
    assert end is not None
    assert end["code"] == 7
    assert (entries[running]["ended"], entries[running]["pod"]) == (None, "p1")


def test_a_journal_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    one = journal.Journal(str(path))
    one.started("stays", "p", 1)
    for number in range(2000):
        one.started(f"c{number}", "p", 2)
        one.ended(f"c{number}", {"code": 0, "signal": 0, "oom": False, "at": 0.0})
        one.forget(f"c{number}")
    one.close()
    assert len(path.read_text().splitlines()) < 1600
    assert journal.read(str(path)) == {"stays": {"container": "stays", "pod": "p", "pid": 1, "ended": None}}


def test_a_torn_line_spoils_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"container": "a", "ended": null}\n{"container": "b", "en\n{"container": "c", "ended": null}\n')
    assert [*journal.read(str(path))] == ["a", "c"]
    assert journal.read(str(tmp_path / "absent")) == {}
