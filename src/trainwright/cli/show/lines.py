# SPDX-License-Identifier: Apache-2.0
"""A run as plain lines, for pipes and files: `12.3s  worker-0  Running` for what happens, `worker-0 | …` for logs.

Made by `run.command` when standard output is no terminal. `summary` words the end for `live` too.
"""

from collections.abc import Callable

from trainwright.cli.duration import spell
from trainwright.cli.show.clean import line as clean
from trainwright.cli.show.news import Ending, Frame, Happening, JobState, Line, News, Replica
from trainwright.cli.show.pen import Pen, PenView
from trainwright.cli.show.summary import summary
from trainwright.model.child import BACKING_OFF
from trainwright.model.event import Moment
from trainwright.model.ledger import Phase

#: Phases of a replica in which it is told how often it was restarted.
_RESTARTED = ("Running", "Starting", BACKING_OFF)


class Lines(PenView):
    """The view."""

    def __init__(self, pen: Pen, elapsed: Callable[[], float], *, with_logs: bool = True) -> None:
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

    def end(self, endings: list[Ending], folder: str) -> None:
        """The summary."""
        self._pen.write("\n".join(summary(endings, folder)) + "\n")


def told(item: News) -> str:
    """What a line says of it; nothing, if it only passes through."""
    match item:
        case JobState(deleted=True, outcome=None):
            return f"{item.key.name}  deleted"
        case JobState(step=Phase.SUSPENDED):
            word = item.key.name if item.key.namespace == "default" else str(item.key)
            return f"{item.key.name}  {item.phase}  `trainwright resume {word}` lets it go on"
        case JobState():
            return f"{item.key.name}  {item.phase}" + (f"  {progress(item)}" if item.total and not item.over else "")
        case Replica(phase="Pending" | "Starting" | "Waiting", reason=""):
            return ""
        case Replica():
            restarts = f"restart {item.restarts}" if item.restarts and item.phase in _RESTARTED else ""
            node = item.node if item.phase == "Running" else ""
            return "  ".join(part for part in (item.label, item.phase, node, restarts, clean(item.reason)) if part)
        case Happening(reason="Failed") if item.about == item.job.name:
            return ""  # the phase says so, and the summary why
        case Happening():
            news = item.warning or item.reason.endswith(Moment.RESIZED)  # nothing else says why there are fewer
            return f"{item.about}  {item.reason}: {clean(item.message)}" if news else ""


def progress(job: JobState) -> str:
    """`3 of 4 running, 1 of 4 succeeded`."""
    running, done = (job.counts.get(phase, 0) for phase in ("Running", "Succeeded"))
    wanted = f"{running} of {job.total} running" if running <= job.total else f"{running} running, {job.total} wanted"
    parts = [wanted] if running or not done else []
    parts += [f"{done} of {job.total} succeeded"] if done else []
    parts += [f"{job.counts['Failed']} failed"] if job.counts.get("Failed") else []
    return ", ".join(parts)
