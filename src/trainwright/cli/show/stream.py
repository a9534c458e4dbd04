# SPDX-License-Identifier: Apache-2.0
"""A run as JSON, one object per line, for programs. Made by `run.command` for `-o json`; its help lists the fields."""

from collections.abc import Callable
from typing import Any

import msgspec

from trainwright.cli.show.news import Ending, Frame, Happening, JobState, Line, News, Replica
from trainwright.cli.show.pen import Pen, PenView
from trainwright.model.units import Time


class Stream(PenView):
    """The view. Texts are as they were printed: JSON itself escapes what a screen should not see."""

    def __init__(self, pen: Pen, now: Callable[[], Time], *, with_logs: bool = True) -> None:
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

    def end(self, endings: list[Ending], folder: str) -> None:
        """One object per job."""
        self._write([{"type": "end", **msgspec.to_builtins(one), "folder": folder} for one in endings])

    def _write(self, bodies: list[dict[str, Any]]) -> None:
        at = self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
        encode = msgspec.json.encode
        self._pen.write("".join(f"{encode({'at': at, **body}).decode()}\n" for body in bodies))


def _body(item: News) -> dict[str, Any]:
    match item:
        case JobState():
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
        case Replica():
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
        case Happening():
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
