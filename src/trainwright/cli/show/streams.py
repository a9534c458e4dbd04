# SPDX-License-Identifier: Apache-2.0
"""Shows a run as plain lines (for example `12.3s  worker-0  Running` or `worker-0 | …`), or as JSON objects.

The help of `trainwright run` lists the fields of the JSON objects.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from trainwright.cli.show.news import EventNews, JobEnding, JobNews, Line, News, ReplicaNews
from trainwright.cli.show.text import line as clean
from trainwright.cli.show.text import summary
from trainwright.cli.show.writer import BackgroundWriter, WriterView
from trainwright.model.child import BACKING_OFF
from trainwright.model.event import EventReason
from trainwright.model.ledger import Phase
from trainwright.model.meta import Key
from trainwright.model.units import Time, spell

#: Phases of a replica in which its line contains the number of restarts.
_SHOW_RESTARTS = ("Running", "Starting", BACKING_OFF)


class LinesView(WriterView):
    """Plain lines."""

    def __init__(self, writer: BackgroundWriter, elapsed: Callable[[], float], *, with_logs: bool = True) -> None:
        super().__init__(writer, with_logs=with_logs)
        self._elapsed = elapsed

    def news(self, items: list[News]) -> None:
        """Write a line for each visible change."""
        at = f"{spell(self._elapsed()):>6}"
        self._writer.write("".join(f"{at}  {text}\n" for one in items if (text := news_line(one))))

    def logs(self, lines: list[Line]) -> None:
        """Write each line with the label of its replica."""
        if self._with_logs:
            self._writer.write("".join(f"{source.label} | {clean(text)}\n" for source, text in lines))

    def notice(self, text: str) -> None:
        """Write a notice."""
        self._writer.write(f"{spell(self._elapsed()):>6}  notice: {clean(text)}\n")

    def end(self, endings: list[JobEnding], folder: str) -> None:
        """Write the summary."""
        self._writer.write("\n".join(summary(endings, folder)) + "\n")


def news_line(item: News) -> str:
    """The line for a change; empty if the change is not worth a line."""
    match item:
        case JobNews(deleted=True, outcome=None):
            return f"{item.key.name}  deleted"
        case JobNews(step=Phase.SUSPENDED):
            name = item.key.name if item.key.namespace == "default" else str(item.key)
            return f"{item.key.name}  {item.phase}  `trainwright resume {name}` continues the job"
        case JobNews():
            return f"{item.key.name}  {item.phase}" + (f"  {progress(item)}" if item.total and not item.over else "")
        case ReplicaNews(phase="Pending" | "Starting" | "Waiting", reason=""):
            return ""
        case ReplicaNews():
            restarts = f"restart {item.restarts}" if item.restarts and item.phase in _SHOW_RESTARTS else ""
            node = item.node if item.phase == "Running" else ""
            return "  ".join(part for part in (item.label, item.phase, node, restarts, clean(item.reason)) if part)
        case EventNews(reason="Failed") if item.about == item.job.name:
            return ""  # the phase of the job shows the failure already, and the summary has the reason
        case EventNews():
            # A RESIZED event is shown, because only this event says why a job has another number of replicas.
            is_shown = item.warning or item.reason.endswith(EventReason.RESIZED)
            return f"{item.about}  {item.reason}: {clean(item.message)}" if is_shown else ""


def progress(job: JobNews) -> str:
    """The numbers of replicas in words, for example `3 of 4 running, 1 of 4 succeeded`."""
    running, done = (job.counts.get(phase, 0) for phase in ("Running", "Succeeded"))
    wanted = f"{running} of {job.total} running" if running <= job.total else f"{running} running, {job.total} wanted"
    parts = [wanted] if running or not done else []
    parts += [f"{done} of {job.total} succeeded"] if done else []
    parts += [f"{job.counts['Failed']} failed"] if job.counts.get("Failed") else []
    return ", ".join(parts)


class JsonView(WriterView):
    """One JSON object per line. Log texts need no cleaning, because JSON escapes control characters."""

    def __init__(self, writer: BackgroundWriter, now: Callable[[], Time], *, with_logs: bool = True) -> None:
        super().__init__(writer, with_logs=with_logs)
        self._now = now

    def news(self, items: list[News]) -> None:
        """Write an object for each change."""
        self._write([_body(one) for one in items])

    def logs(self, lines: list[Line]) -> None:
        """Write an object for each line."""
        if self._with_logs:
            self._write(
                [
                    _about("log", source.job, replica=source.replica, container=source.container, text=text)
                    for source, text in lines
                ]
            )

    def notice(self, text: str) -> None:
        """Write `{"type": "notice", "text": …}`."""
        self._write([{"type": "notice", "text": text}])

    def end(self, endings: list[JobEnding], folder: str) -> None:
        """Write an object for each job."""
        self._write([{"type": "end", **msgspec.to_builtins(one), "folder": folder} for one in endings])

    def _write(self, bodies: list[dict[str, Any]]) -> None:
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        encode = msgspec.json.encode
        self._writer.write("".join(f"{encode({'at': at, **body}).decode()}\n" for body in bodies))


def _body(item: News) -> dict[str, Any]:
    match item:
        case JobNews():
            counts = dict(item.counts)
            rest = {"kind": item.kind, "phase": item.phase, "replicas": item.total, "counts": counts}
            return _about("job", item.key, **rest, restarts=item.restarts)
        case ReplicaNews():
            fields = ("phase", "pod", "attempt", "node", "restarts", "reason")
            return _about("replica", item.job, replica=item.name, **{name: getattr(item, name) for name in fields})
        case EventNews():
            return _about("event", **msgspec.structs.asdict(item))


def _about(type_: str, job: Key, **rest: Any) -> dict[str, Any]:
    return {"type": type_, "namespace": job.namespace, "job": job.name, **rest}
