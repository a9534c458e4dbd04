# SPDX-License-Identifier: Apache-2.0
"""Find live and past runs by the name of their job."""

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from trainwright.cli.record import STATUS
from trainwright.cli.state import (
    API_SOCKET,
    ENGINE,
    LATEST,
    LOCK,
    VOLUMES,
    NameInUseError,
    home,
    is_live,
    job_folder,
    read_lock,
    read_pid,
    runs_in,
)
from trainwright.errors import UsageError
from trainwright.model.meta import Key
from trainwright.model.problem import nearest

#: Maximum number of names that an error lists.
_MAX_LISTED = 8


class Run(Struct, frozen=True):
    """One run of a job: its folder, and its process if it is live. `engine`: the folder of the background engine."""

    key: Key
    folder: Path
    live: bool
    pid: int = 0
    engine: Path | None = None

    @property
    def word(self) -> str:
        """The name of the job as the user types it."""
        return self.key.name if self.key.namespace == "default" else str(self.key)

    @property
    def background(self) -> bool:
        """Whether the background engine runs or ran the job."""
        return self.engine is not None

    @property
    def engine_folder(self) -> Path:
        """The folder of the engine, with its socket and the folders of its nodes."""
        return self.engine or self.folder

    @property
    def socket(self) -> Path:
        """The private socket of the run's engine."""
        return self.engine_folder / "engine.sock"

    @property
    def api_socket(self) -> Path | None:
        """The socket of the engine's Kubernetes API; None if the engine has no API, or if the run is private."""
        path = self.engine / API_SOCKET if self.engine is not None else None
        return path if path is not None and path.exists() else None


def jobs(state: Path) -> tuple[Key, ...]:
    """All jobs in the state folder, both with and without a live run."""
    namespaces = [entry for entry in _folders(state) if entry.name != VOLUMES]
    return tuple(sorted(Key(namespace.name, job.name) for namespace in namespaces for job in _folders(namespace)))


def _folders(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def latest(state: Path, key: Key) -> Run | None:
    """The live run of a job; if no run is live, the last run; None if there is no run."""
    return _latest(state, key, _Engine(state))


def latest_runs(state: Path) -> list[Run]:
    """The live or last run of every job."""
    engine = _Engine(state)
    return [run for key in jobs(state) if (run := _latest(state, key, engine)) is not None]


class _Engine:
    """The background engine of a state folder, as one command sees it."""

    def __init__(self, state: Path) -> None:
        self.folder = state.resolve() / ENGINE
        self.prefix = f"{self.folder}{os.sep}"

    @cached_property
    def pid(self) -> int:
        """The process of the engine; 0 if no engine runs."""
        return read_pid(self.folder / LOCK) if is_live(self.folder / LOCK) else 0


def _latest(state: Path, key: Key, engine: _Engine) -> Run | None:
    folder = job_folder(state, key)
    lock = read_lock(folder / LOCK) if is_live(folder / LOCK) else None
    if lock is not None:
        return Run(key, Path(lock.run), live=True, pid=lock.pid)
    found = _last_folder(folder)
    if found is None:
        return None
    if not str(found).startswith(engine.prefix):
        return Run(key, found, live=False)
    live = bool(engine.pid) and not (found / STATUS).exists()
    return Run(key, found, live=live, pid=engine.pid, engine=engine.folder)


def _last_folder(folder: Path) -> Path | None:
    """The folder of the last run. This runs for thousands of jobs, so it reads links instead of resolving paths."""
    try:
        path = os.path.join(folder, os.readlink(folder / LATEST))  # noqa: PTH115, PTH118 - as above
        if os.path.islink(path):  # noqa: PTH114 - as above
            path = os.path.join(folder, os.readlink(path))  # noqa: PTH115, PTH118 - as above
        if os.path.isdir(path):  # noqa: PTH112 - as above
            return Path(path)
    except OSError:
        pass
    past = runs_in(folder)
    return past[-1].resolve() if past else None


def has_ended(run: Run) -> bool:
    """Whether the final record of the run exists."""
    return (run.folder / STATUS).exists()


def is_open(run: Run) -> bool:
    """Whether the job has not ended: its run is live, or its replicas run on without the background engine."""
    return run.live or (run.background and not has_ended(run))


def check_not_in_engine(key: Key) -> None:
    """Raise NameInUseError if an unfinished job of the background engine has this name."""
    run = latest(home(), key)
    if run is not None and run.background and not has_ended(run):
        commands = f"`trainwright attach {run.word}` follows it, `trainwright delete {run.word}` ends it"
        raise NameInUseError(f"the background engine has an unfinished job {key}; {commands}")


def find(word: str, namespace: str = "") -> Run:
    """The live or last run of a job. `word` is NAME or NAMESPACE/NAME. Raises UsageError with the nearest names."""
    state = home()
    known = jobs(state)
    found = [run for key in known if _matches(word, namespace, key) and (run := latest(state, key)) is not None]
    live_runs = [run for run in found if run.live]
    if len(live_runs or found) == 1:
        return (live_runs or found)[0]
    if found:
        keys = " or ".join(str(run.key) for run in found)
        raise UsageError(f"{word!r} can mean {keys}; give the namespace too")
    raise UsageError(_unknown(word, namespace, known))


def kept_runs(run: Run) -> list[Run]:
    """All kept runs of the same job, oldest first. One of them is `run`."""
    state = home()
    folders, own, engine = (
        (one.resolve() for one in runs_in(job_folder(state, run.key))),
        run.folder.resolve(),
        _Engine(state),
    )
    return [run if one == own else _past_run(run, one, engine) for one in folders]


def _past_run(run: Run, folder: Path, engine: _Engine) -> Run:
    is_background = str(folder).startswith(engine.prefix)
    return Run(run.key, folder, live=False, pid=run.pid, engine=engine.folder if is_background else None)


def select_run(run: Run, run_id: str) -> Run:
    """The kept run of the same job with this id; without an id, `run` itself. Raises UsageError with the nearest id."""
    if not run_id:
        return run
    known = {one.folder.name: one for one in kept_runs(run)}
    if run_id not in known:
        meant = nearest(run_id, known)
        hint = f"did you mean `{meant}`?" if meant else f"these runs are kept: {', '.join(known)}"
        raise UsageError(f"{run.key} has no run {run_id!r}; {hint}")
    return known[run_id]


def near_replica(word: str, known: Iterable[str]) -> str:
    """A hint for the name of a replica that does not exist: the replicas of its role, or the most similar name."""
    names = sorted(known, key=lambda name: (len(name), name))
    role, dash, index = word.lower().rpartition("-")
    same = [name for name in names if name.lower().rpartition("-")[0] == role]
    if dash and index.isdigit() and same:
        return f"it has {' … '.join((same[0], same[-1])) if len(same) > 2 else ' and '.join(same)}"
    meant = nearest(word, names)
    return f"did you mean `{meant}`?" if meant else ""


def _matches(word: str, namespace: str, key: Key) -> bool:
    return word in (key.name, str(key)) and namespace in ("", key.namespace)


def _unknown(word: str, namespace: str, known: tuple[Key, ...]) -> str:
    where = f" in namespace {namespace!r}" if namespace else ""
    if not known:
        return f"there is no job {word!r}{where}: no job has run here yet; start one with `trainwright run FILE`"
    names = {name: str(key) for key in known for name in (key.name, str(key))}
    meant = names.get(nearest(word, names))
    more = f" and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    hint = f"did you mean `{meant}`?" if meant else f"known jobs: {', '.join(map(str, known[:_MAX_LISTED]))}{more}"
    return f"there is no job {word!r}{where}; {hint}"
