# SPDX-License-Identifier: Apache-2.0
"""Find live and past runs by the name of their job."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from trainwright.cli.state import LATEST, LOCK, VOLUMES, home, is_live, job_folder, read_lock, runs_in
from trainwright.errors import UsageError
from trainwright.model.meta import Key
from trainwright.model.problem import nearest

#: Maximum number of names that an error lists.
_MAX_LISTED = 8


class Run(Struct, frozen=True):
    """One run of a job: its folder, and its process if it is live."""

    key: Key
    folder: Path
    live: bool
    pid: int = 0

    @property
    def word(self) -> str:
        """The name of the job as the user types it."""
        return self.key.name if self.key.namespace == "default" else str(self.key)

    @property
    def socket(self) -> Path:
        """The socket of the run's engine."""
        return self.folder / "engine.sock"


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
    folder = job_folder(state, key)
    lock = read_lock(folder / LOCK) if is_live(folder / LOCK) else None
    if lock is not None:
        return Run(key, Path(lock.run), live=True, pid=lock.pid)
    past = runs_in(folder)
    last = folder / LATEST
    found = last.resolve() if last.is_dir() else past[-1].resolve() if past else None
    return Run(key, found, live=False) if found is not None else None


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
    """All kept runs of the same job, oldest first. One of them is `run`, if it is live."""
    folders, own = (folder.resolve() for folder in runs_in(job_folder(home(), run.key))), run.folder.resolve()
    return [run if run.live and one == own else Run(run.key, one, live=False, pid=run.pid) for one in folders]


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
