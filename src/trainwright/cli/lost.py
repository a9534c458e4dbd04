# SPDX-License-Identifier: Apache-2.0
"""What is known of a job whose run was killed before it could write how the job ended. `get` shows it.

Sources are the files that the run writes as things happen: `run.json`, `replicas.jsonl` and `events.jsonl`.
"""

from collections.abc import Iterator
from pathlib import Path

from trainwright.cli.columns import columns
from trainwright.cli.record import Facts, Pod, events, facts_of, pods
from trainwright.cli.show.clean import line as clean
from trainwright.model.job import Body
from trainwright.model.meta import Key

#: Replicas and events that are listed.
_MOST_REPLICAS = 50
_MOST_EVENTS = 5
_UNKNOWN = "how the job and its replicas ended, and restarts of containers inside a pod"


def restarts(folder: Path, key: Key) -> int:
    """Pods that replaced another one of the same replica."""
    seen = _pods(folder, key)
    return len(seen) - len({one.replica for one in seen})


def lines(folder: Path, key: Key, word: str) -> Iterator[str]:
    """What `get` prints below the table of jobs."""
    yield _headline(key, facts_of(folder))
    yield f"not known: {_UNKNOWN}"
    last = {one.replica: one for one in _pods(folder, key)}
    if last:
        yield ""
        rows = [[one.replica, one.pod, str(one.attempt)] for one in list(last.values())[:_MOST_REPLICAS]]
        yield from columns(["REPLICA", "LAST POD", "ATTEMPT"], rows)
        if len(last) > _MOST_REPLICAS:
            yield f"… and {len(last) - _MOST_REPLICAS} more"
    told = [_event(one) for one in events(folder) if _is_of(one, key, {pod.pod for pod in _pods(folder, key)})]
    if told:
        yield ""
        yield "last events:"
        yield from (f"  {text}" for text in told[-_MOST_EVENTS:])
    yield ""
    yield f"`trainwright logs {word}` prints the logs; they are in {folder}, without a final status"


def _headline(key: Key, facts: Facts | None) -> str:
    who = f" (process {facts.pid}, started at {facts.started})" if facts is not None else ""
    return f"{key.name} was lost: its run{who} was killed"


def _pods(folder: Path, key: Key) -> list[Pod]:
    return [one for one in pods(folder) if one.job == str(key)]


def _is_of(event: Body, key: Key, names: set[str]) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("namespace") == key.namespace and about.get("name") in {key.name, *names}


def _event(event: Body) -> str:
    about = (event.get("involvedObject") or {}).get("name", "")
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return clean(f"{at} {about} {event.get('reason', '')}: {event.get('message', '')}".strip())
