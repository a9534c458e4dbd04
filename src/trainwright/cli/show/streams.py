# SPDX-License-Identifier: Apache-2.0
"""A run as plain lines, for pipes and files: `12.3s  worker-0  Running` for what happens, `worker-0 | …` for logs.

Made by `run.command` when standard output is no terminal. `summary` words the end for `live` too.

A run as JSON, one object per line, for programs. Made by `run.command` for `-o json`; its help lists the fields.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from trainwright.cli.flags import spell
from trainwright.cli.show.news import EventNews, Frame, JobNews, JobVerdict, Line, News, ReplicaNews
from trainwright.cli.show.text import line as clean
from trainwright.cli.show.text import summary
from trainwright.cli.show.writer import BackgroundWriter, PenView
from trainwright.model.child import BACKING_OFF
from trainwright.model.event import EventReason
from trainwright.model.ledger import Phase
from trainwright.model.units import Time

#: Phases of a replica in which it is told how often it was restarted.
_RESTARTED = ("Running", "Starting", BACKING_OFF)


class LinesView(PenView):
    """The view."""

    def __init__(self, pen: BackgroundWriter, elapsed: Callable[[], float], *, with_logs: bool = True) -> None:
        super().__init__(pen)
        self._elapsed = elapsed
        self._with_logs = with_logs

    def news(self, items: list[News]) -> None:
        """A line for each that has something to tell."""
        at = f"{spell(self._elapsed()):>6}"
        self._pen.write("".join(f"{at}  {text}\n" for one in items if (text := told(one))))

    def logs(self, lines: list[Line]) -> None:
        """With the replica before each line."""
        if self._with_logs:
            self._pen.write("".join(f"{source.label} | {clean(text)}\n" for source, text in lines))

    def notice(self, text: str) -> None:
        """Marked as one."""
        self._pen.write(f"{spell(self._elapsed()):>6}  notice: {clean(text)}\n")

    def tick(self, frame: Frame) -> None:
        """Lines do not move."""

    def end(self, endings: list[JobVerdict], folder: str) -> None:
        """The summary."""
        self._pen.write("\n".join(summary(endings, folder)) + "\n")


def told(item: News) -> str:
    """What a line says of it; nothing, if it only passes through."""
    match item:
        case JobNews(deleted=True, outcome=None):
            return f"{item.key.name}  deleted"
        case JobNews(step=Phase.SUSPENDED):
            word = item.key.name if item.key.namespace == "default" else str(item.key)
            return f"{item.key.name}  {item.phase}  `trainwright resume {word}` lets it go on"
        case JobNews():
            return f"{item.key.name}  {item.phase}" + (f"  {progress(item)}" if item.total and not item.over else "")
        case ReplicaNews(phase="Pending" | "Starting" | "Waiting", reason=""):
            return ""
        case ReplicaNews():
            restarts = f"restart {item.restarts}" if item.restarts and item.phase in _RESTARTED else ""
            node = item.node if item.phase == "Running" else ""
            return "  ".join(part for part in (item.label, item.phase, node, restarts, clean(item.reason)) if part)
        case EventNews(reason="Failed") if item.about == item.job.name:
            return ""  # the phase says so, and the summary why
        case EventNews():
            news = item.warning or item.reason.endswith(EventReason.RESIZED)  # nothing else says why there are fewer
            return f"{item.about}  {item.reason}: {clean(item.message)}" if news else ""


def progress(job: JobNews) -> str:
    """`3 of 4 running, 1 of 4 succeeded`."""
    running, done = (job.counts.get(phase, 0) for phase in ("Running", "Succeeded"))
    wanted = f"{running} of {job.total} running" if running <= job.total else f"{running} running, {job.total} wanted"
    parts = [wanted] if running or not done else []
    parts += [f"{done} of {job.total} succeeded"] if done else []
    parts += [f"{job.counts['Failed']} failed"] if job.counts.get("Failed") else []
    return ", ".join(parts)


class JsonView(PenView):
    """The view. Texts are as they were printed: JSON itself escapes what a screen should not see."""

    def __init__(self, pen: BackgroundWriter, now: Callable[[], Time], *, with_logs: bool = True) -> None:
        super().__init__(pen)
        self._now = now
        self._with_logs = with_logs

    def news(self, items: list[News]) -> None:
        """An object each."""
        self._write([_body(one) for one in items])

    def logs(self, lines: list[Line]) -> None:
        """An object each."""
        if self._with_logs:
            self._write([_log(*line) for line in lines])

    def notice(self, text: str) -> None:
        """`{"type": "notice", "text": …}`."""
        self._write([{"type": "notice", "text": text}])

    def tick(self, frame: Frame) -> None:
        """Nothing moves here."""

    def end(self, endings: list[JobVerdict], folder: str) -> None:
        """One object per job."""
        self._write([{"type": "end", **msgspec.to_builtins(one), "folder": folder} for one in endings])

    def _write(self, bodies: list[dict[str, Any]]) -> None:
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        encode = msgspec.json.encode
        self._pen.write("".join(f"{encode({'at': at, **body}).decode()}\n" for body in bodies))


def _body(item: News) -> dict[str, Any]:
    match item:
        case JobNews():
            return {
                "type": "job",
                "namespace": item.key.namespace,
                "job": item.key.name,
                "kind": item.kind,
                "phase": item.phase,
                "replicas": item.total,
                "counts": dict(item.counts),
                "restarts": item.restarts,
            }
        case ReplicaNews():
            return {
                "type": "replica",
                "namespace": item.job.namespace,
                "job": item.job.name,
                "replica": item.name,
                "phase": item.phase,
                "pod": item.pod,
                "attempt": item.attempt,
                "node": item.node,
                "restarts": item.restarts,
                "reason": item.reason,
            }
        case EventNews():
            return {
                "type": "event",
                "namespace": item.job.namespace,
                "job": item.job.name,
                "about": item.about,
                "reason": item.reason,
                "message": item.message,
                "warning": item.warning,
            }


def _log(source: Any, text: str) -> dict[str, Any]:
    return {
        "type": "log",
        "namespace": source.job.namespace,
        "job": source.job.name,
        "replica": source.replica,
        "container": source.container,
        "text": text,
    }
