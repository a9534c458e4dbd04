# SPDX-License-Identifier: Apache-2.0
"""The state folder: who holds a name, what is kept, and how a run is found again."""

import fcntl
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainwright.cli.runs import find, jobs, kept_runs, latest, select_run
from trainwright.cli.state import KEPT, NameLocks, home, is_live, job_folder, run_id, runs_in
from trainwright.errors import EngineError, UsageError
from trainwright.model.meta import Key

NOW = datetime(2026, 11, 15, 20, 0, 0, tzinfo=UTC)
DEMO = Key("default", "demo")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def past(state: Path, key: Key, number: int = 1) -> list[Path]:
    """Runs that are over."""
    folders = []
    for days in range(number):
        with NameLocks(state, [key], NOW + timedelta(days=days)) as claim:
            folders.append(claim.folder)
    return folders


def test_where_the_state_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRAINWRIGHT_STATE", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert home() == tmp_path / ".local/state/trainwright"

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert home() == tmp_path / "xdg/trainwright"

    monkeypatch.setenv("TRAINWRIGHT_STATE", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"


def test_run_ids_sort_by_time() -> None:
    assert run_id(NOW, 99999) == "20261115-200000-99999"
    assert run_id(NOW, 99999) < run_id(NOW + timedelta(seconds=1), 1)


def test_a_name_is_held_for_as_long_as_the_run_lives(state: Path) -> None:
    with NameLocks(state, [DEMO], NOW) as claim:
        assert claim.folder.is_dir()
        assert is_live(job_folder(state, DEMO) / "lock")
        with pytest.raises(UsageError) as refused, NameLocks(state, [DEMO], NOW + timedelta(seconds=90)):
            pass
    assert str(refused.value) == (
        f"default/demo already runs in process {os.getpid()} since 2026-11-15T20:00:00Z (1m30s ago); to see, "
        "follow or end it: `trainwright get demo`, `trainwright logs -f demo`, `trainwright delete demo`"
    )

    assert not is_live(job_folder(state, DEMO) / "lock")
    with NameLocks(state, [DEMO], NOW + timedelta(seconds=1)):
        pass


def test_another_name_is_free(state: Path) -> None:
    with NameLocks(state, [DEMO], NOW), NameLocks(state, [Key("lab", "demo")], NOW):
        assert [str(key) for key in jobs(state) if (run := latest(state, key)) and run.live] == [
            "default/demo",
            "lab/demo",
        ]


def test_a_look_at_the_lock_does_not_take_it(state: Path) -> None:
    """Others look while a run starts; it must not be told that the name is in use."""
    past(state, DEMO)
    look = os.open(job_folder(state, DEMO) / "lock", os.O_RDONLY)
    fcntl.flock(look, fcntl.LOCK_SH)
    timer = threading.Timer(0.03, os.close, [look])
    timer.start()
    with NameLocks(state, [DEMO], NOW + timedelta(days=1)):
        pass
    timer.join()


def test_a_killed_run_holds_nothing(state: Path) -> None:
    code = (
        "import os, sys, time; from datetime import datetime, UTC; from pathlib import Path\n"
        "from trainwright.cli.state import NameLocks; from trainwright.model.meta import Key\n"
        "with NameLocks(Path(sys.argv[1]), [Key('default', 'demo')], datetime(2026, 1, 1, tzinfo=UTC)):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, state], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"in process {holder.pid}"), NameLocks(state, [DEMO], NOW):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with NameLocks(state, [DEMO], NOW):
        pass


def test_several_jobs_share_one_folder(state: Path) -> None:
    other = Key("default", "other")
    with NameLocks(state, [DEMO, other], NOW) as claim:
        found = [latest(state, key) for key in (DEMO, other)]
        assert [run.folder for run in found if run is not None] == [claim.folder, claim.folder]
        with pytest.raises(UsageError, match="default/other already runs"), NameLocks(state, [other], NOW):
            pass
    assert (job_folder(state, other) / claim.folder.name).resolve() == claim.folder


def test_when_one_name_is_taken_the_others_are_let_go(state: Path) -> None:
    free = Key("default", "a-free-one")
    with NameLocks(state, [DEMO], NOW):
        with pytest.raises(UsageError), NameLocks(state, [free, DEMO], NOW):
            pass
        assert not is_live(job_folder(state, free) / "lock")
        assert runs_in(job_folder(state, free)) == []


def test_the_last_runs_are_kept(state: Path) -> None:
    folders = past(state, DEMO, KEPT + 3)

    assert runs_in(job_folder(state, DEMO)) == folders[-KEPT:]
    assert (job_folder(state, DEMO) / "latest").resolve() == folders[-1]


def test_links_to_runs_that_are_gone_are_no_runs(state: Path) -> None:
    other = Key("default", "other")
    with NameLocks(state, [DEMO, other], NOW - timedelta(days=1)) as shared:
        pass
    past(state, DEMO, KEPT)

    assert runs_in(job_folder(state, other)) == []
    assert latest(state, other) is None
    (last,) = past(state, other)
    assert runs_in(job_folder(state, other)) == [last]
    assert not (job_folder(state, other) / shared.folder.name).is_symlink()


def test_a_run_that_was_refused_leaves_no_trace(state: Path) -> None:
    (before,) = past(state, DEMO)
    other = Key("default", "other")
    with NameLocks(state, [DEMO, other], NOW + timedelta(days=1)) as claim:
        claim.discard()

    assert (job_folder(state, DEMO) / "latest").resolve() == before
    assert runs_in(job_folder(state, DEMO)) == [before]
    assert not job_folder(state, other).exists()
    with NameLocks(state, [other], NOW) as again:
        assert again.folder.is_dir()


def test_a_first_run_that_was_refused_leaves_not_even_the_state_folder(state: Path) -> None:
    with NameLocks(state, [DEMO], NOW) as claim:
        claim.discard()

    assert not state.exists()


def test_a_run_whose_name_is_taken_leaves_nothing_of_its_other_names(state: Path) -> None:
    free = Key("another", "demo")
    with NameLocks(state, [DEMO], NOW):
        with pytest.raises(UsageError), NameLocks(state, [free, DEMO], NOW):
            pass
        assert not (state / "another").exists()
        assert is_live(job_folder(state, DEMO) / "lock")


def test_a_lock_that_was_removed_meanwhile_holds_no_name(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run was refused, and removed its lock after this one had opened it."""
    calls: list[int] = []
    real = fcntl.flock

    def flock(file: int, how: int) -> None:
        if not calls:
            calls.append(how)
            (job_folder(state, DEMO) / "lock").unlink()
            job_folder(state, DEMO).rmdir()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with NameLocks(state, [DEMO], NOW):
        assert is_live(job_folder(state, DEMO) / "lock")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(EngineError) as error, NameLocks(tmp_path / "file", [DEMO], NOW):
        pass
    assert "cannot be used: Not a directory; set TRAINWRIGHT_STATE" in str(error.value)


def test_finding_a_run_by_name(state: Path) -> None:
    (last,) = past(state, DEMO)

    assert find("demo").folder == find("default/demo").folder == find("demo", "default").folder == last
    assert find("demo").live is False
    with NameLocks(state, [DEMO], NOW + timedelta(days=1)) as claim:
        run = find("demo")
        assert (run.live, run.pid, run.folder, run.socket) == (
            True,
            os.getpid(),
            claim.folder,
            claim.folder / "engine.sock",
        )


def test_a_live_run_is_live_behind_a_link(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.mkdir(exist_ok=True)
    link = tmp_path / "link"
    link.symlink_to(state)
    monkeypatch.setenv("TRAINWRIGHT_STATE", str(link))
    past(link, DEMO)
    with NameLocks(link, [DEMO], NOW + timedelta(days=1)) as claim:
        run = find("demo")
        assert select_run(run, claim.folder.name) == run
        assert [one.live for one in kept_runs(run)] == [False, True]


def test_a_name_in_two_namespaces(state: Path) -> None:
    past(state, DEMO)
    with NameLocks(state, [Key("lab", "demo")], NOW):
        assert str(find("demo").key) == "lab/demo"  # the live one is meant

    with pytest.raises(UsageError, match="'demo' can mean default/demo or lab/demo; give the namespace too"):
        find("demo")
    assert str(find("demo", "lab").key) == "lab/demo"


@pytest.mark.parametrize(
    ("word", "namespace", "text"),
    [
        ("dmeo", "", "there is no job 'dmeo'; did you mean `default/demo`?"),
        ("xyz", "", "there is no job 'xyz'; known jobs: default/demo"),
        ("demo", "lab", "there is no job 'demo' in namespace 'lab'; did you mean `default/demo`?"),
    ],
)
def test_a_name_that_is_not_there(state: Path, word: str, namespace: str, text: str) -> None:
    past(state, DEMO)

    with pytest.raises(UsageError) as error:
        find(word, namespace)
    assert str(error.value) == text


def test_nothing_was_ever_run(state: Path) -> None:
    with pytest.raises(UsageError, match="no job has run here yet; start one with `trainwright run FILE`"):
        find("demo")


def test_volumes_are_no_namespace(state: Path) -> None:
    (state / "volumes/default/data").mkdir(parents=True)
    past(state, DEMO)

    assert jobs(state) == (DEMO,)
