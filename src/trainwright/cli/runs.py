# SPDX-License-Identifier: Apache-2.0
"""Finding runs, live and past, by the name of their job. Called by every command that speaks of a run by name."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from trainwright.cli.state import LATEST, LOCK, VOLUMES, holder, home, is_live, place, runs_in
from trainwright.errors import UsageError
from trainwright.model.meta import Key
from trainwright.model.problem import nearest

#: How many names are listed where an unknown one is given.
_LISTED = 8


class Run(Struct, frozen=True):
    """One run of a job: where it keeps its things, and who runs it if it is live."""

    key: Key
    folder: Path
    live: bool
    pid: int = 0

    @property
    def word(self) -> str:
        """The job's name as one would type it."""
        return self.key.name if self.key.namespace == "default" else str(self.key)

    @property
    def socket(self) -> Path:
        """Where its engine listens."""
        return self.folder / "engine.sock"


def jobs(state: Path) -> tuple[Key, ...]:
    """Every job that the state folder knows of, live or not."""
    spaces = [entry for entry in _folders(state) if entry.name != VOLUMES]
    return tuple(sorted(Key(space.name, job.name) for space in spaces for job in _folders(space)))


def _folders(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def latest(state: Path, key: Key) -> Run | None:
    """The live run of a job, or else its last one."""
    folder = place(state, key)
    by = holder(folder / LOCK) if is_live(folder / LOCK) else None
    if by is not None:
        return Run(key, Path(by.run), live=True, pid=by.pid)
    past = runs_in(folder)
    last = folder / LATEST
    found = last.resolve() if last.is_dir() else past[-1].resolve() if past else None
    return Run(key, found, live=False) if found is not None else None


def live(state: Path) -> tuple[Run, ...]:
    """Every live run, one per job."""
    found = (latest(state, key) for key in jobs(state))
    return tuple(run for run in found if run is not None and run.live)


def find(word: str, namespace: str = "") -> Run:
    """The run of the job that somebody means: NAME or NAMESPACE/NAME. Raises UsageError with the nearest names."""
    state = home()
    known = jobs(state)
    found = [run for key in known if _means(word, namespace, key) and (run := latest(state, key)) is not None]
    lively = [run for run in found if run.live]
    if len(lively or found) == 1:
        return (lively or found)[0]
    if found:
        raise UsageError(f"{word!r} may be {_listed(run.key for run in found)}; say which, with its namespace")
    raise UsageError(_unknown(word, namespace, known))


def near_replica(word: str, known: Iterable[str]) -> str:
    """What to say of a replica that a job has not: the replicas of that role, or the name that was probably meant."""
    names = sorted(known, key=lambda name: (len(name), name))
    role, dash, index = word.lower().rpartition("-")
    same = [name for name in names if name.lower().rpartition("-")[0] == role]
    if dash and index.isdigit() and same:
        return f"it has {' … '.join((same[0], same[-1])) if len(same) > 2 else ' and '.join(same)}"
    meant = nearest(word, names)
    return f"did you mean `{meant}`?" if meant else ""


def _means(word: str, namespace: str, key: Key) -> bool:
    return word in (key.name, str(key)) and namespace in ("", key.namespace)


def _listed(keys: Iterable[Key]) -> str:
    return " or ".join(str(key) for key in keys)


def _unknown(word: str, namespace: str, known: tuple[Key, ...]) -> str:
    where = f" in namespace {namespace!r}" if namespace else ""
    if not known:
        return (
            f"there is no run called {word!r}{where}: nothing was run here yet; start one with `trainwright run FILE`"
        )
    names = {name: str(key) for key in known for name in (key.name, str(key))}
    meant = names.get(nearest(word, names))
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    hint = f"did you mean `{meant}`?" if meant else f"known are {', '.join(map(str, known[:_LISTED]))}{more}"
    return f"there is no run called {word!r}{where}; {hint}"
