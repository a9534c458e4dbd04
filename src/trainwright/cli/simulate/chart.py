# SPDX-License-Identifier: Apache-2.0
"""A simulation as a Gantt chart in SVG: phases on top, one row per replica, a bar per attempt, and the faults.

The colours follow the light or dark setting of the viewer. Each part has a tooltip. If a job has many replicas,
neighbours with the same bars share a row.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import Struct

from trainwright.cli.simulate.timeline import AttemptBar, AttemptResult, Entry, EntryKind, Timeline
from trainwright.cli.simulate.words import clock
from trainwright.model.units import format_indexes, parse_indexes

_WIDTH, _MARGIN, _ROW, _BAR = 1000, 16, 20, 14
#: The right end of the time axis, with room for half of the last label.
_RIGHT = _WIDTH - 28
#: Average width of a character of a label, in pixels.
_CHARACTER = 7
#: A longer label is cut; this counts characters.
_MAX_LABEL = 24
#: Up to this many replicas, each has its own row.
_MAX_SINGLE_ROWS = 64
#: The approximate number of marks on the time axis.
_TICKS = 10
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
#: The list of faults under the chart has at most this many lines.
_MAX_FAULTS = 12
#: What a bar shows if its word does not fit, so that results do not differ by colour alone.
_SYMBOLS = {
    AttemptResult.RUNNING: "▸",
    AttemptResult.SUCCEEDED: "✓",
    AttemptResult.FAILED: "✕",
    AttemptResult.LOST: "?",
    AttemptResult.EVICTED: "E",
    AttemptResult.PREEMPTED: "P",
    AttemptResult.DELETED: "D",
    AttemptResult.STOPPED: "■",
}
_STYLE = """
:root{color-scheme:light dark}
text{font:12px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600;font-size:14px}.small{font-size:11px}
.page{fill:#fff}.grid{stroke:#d0d7de}.row{fill:#f6f8fa}.on{font-size:11px;fill:#fff}
.Pending{fill:#eaeef2;stroke:#6e7781}.Running{fill:#0969da}.Succeeded{fill:#1a7f37}.Failed{fill:#cf222e}
.Lost{fill:#8250df}.Evicted,.Preempted{fill:#bc4c00}.Deleted{fill:#bf3989}.Stopped{fill:#6e7781}
.phase{fill:#ddf4ff;stroke:#0969da}.fault{fill:#1f2328;stroke:#fff}.end{stroke:#1f2328;stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}.row{fill:#161b22}
.on{fill:#0d1117}.Pending{fill:#21262d;stroke:#8b949e}.Running{fill:#58a6ff}.Succeeded{fill:#3fb950}
.Failed{fill:#ff7b72}.Lost{fill:#bc8cff}.Evicted,.Preempted{fill:#f0883e}.Deleted{fill:#f778ba}
.Stopped{fill:#8b949e}.phase{fill:#121d2f;stroke:#58a6ff}.fault{fill:#e6edf3;stroke:#0d1117}.end{stroke:#e6edf3}}
"""


def element(tag: str, *children: str, **attributes: object) -> str:
    """One XML element. Children are XML; an attribute `class_` is written `class`, and `_` inside a name is a dash."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    opened = tag + "".join(f' {key}="{escape(_number(value))}"' for key, value in named.items())
    return f"<{opened}>{''.join(children)}</{tag}>" if children else f"<{opened}/>"


def escape(text: str) -> str:
    """A text for XML: without characters that XML does not allow, and with entities for those that have a meaning."""
    kept = "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


class ChartRow(Struct, frozen=True):
    """One row: a replica, or several with the same bars."""

    label: str
    role: str
    indexes: tuple[int, ...]
    bars: tuple[AttemptBar, ...]


class _Scale(Struct, frozen=True):
    """Where a time is on the page."""

    left: float
    seconds: float

    def x(self, at: float) -> float:
        return self.left + (_RIGHT - self.left) * min(max(at / self.seconds, 0.0), 1.0)

    def ticks(self) -> Iterator[float]:
        days = _STEPS[-1]
        step = next((one for one in _STEPS if self.seconds / one <= _TICKS), 0)
        step = step or days * (int(self.seconds / _TICKS / days) + 1)
        at = 0
        while at <= self.seconds:
            yield float(at)
            at += step


def as_svg(timeline: Timeline) -> str:
    """The whole chart."""
    rows = _rows(timeline.attempts)
    label = max([len(row.label) for row in rows] + [6])
    scale = _Scale(_MARGIN + min(label, _MAX_LABEL) * _CHARACTER + 10.0, max(_last_time(timeline), 1.0))
    top = 96
    bottom = top + _ROW * len(rows)
    faults = [entry for entry in timeline.timeline if entry.what is EntryKind.FAULT]
    parts = [
        element("title", escape(_title(timeline)), id="title"),
        element("desc", escape(_description(timeline)), id="description"),
        element("style", _STYLE),
        element("rect", width="100%", height="100%", class_="page"),
        _text(_MARGIN, 26, _title(timeline), class_="head"),
        _text(_MARGIN, 44, _cut(_result(timeline), 140)),
        *_grid(scale, top, bottom),
        *_phases(timeline, scale),
        *(part for place, row in enumerate(rows) for part in _row(row, scale, top + _ROW * place, timeline)),
        *_faults(faults, rows, scale, top),
        *_end(timeline, scale, bottom),
        *_legend(timeline, bottom + 46, bool(faults)),
        *_fault_list(faults, bottom + 68),
    ]
    height = bottom + 64 + 16 * min(len(faults), _MAX_FAULTS + 1)
    size = {"width": _WIDTH, "height": height, "viewBox": f"0 0 {_WIDTH} {height}"}
    svg = element(
        "svg",
        "\n",
        *(f"{part}\n" for part in parts),
        xmlns="http://www.w3.org/2000/svg",
        **size,
        role="img",
        aria_labelledby="title",
        aria_describedby="description",
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg}\n'


def _title(timeline: Timeline) -> str:
    return f"{timeline.kind} {timeline.namespace}/{timeline.name}"


def _result(timeline: Timeline) -> str:
    goodput = timeline.time.goodput
    share = f"; {100 * goodput:.1f} % productive" if goodput is not None else ""
    if timeline.end is None:
        return f"not ended after {clock(timeline.simulated)}{share}"
    return f"{timeline.end.phase} after {clock(timeline.end.at)}{share}: {timeline.end.verdict.message}"


def _description(timeline: Timeline) -> str:
    """The chart in words, for readers who cannot see it."""
    faults = [f"{clock(one.at)}: {one.text}." for one in timeline.timeline if one.what is EntryKind.FAULT]
    action = timeline.end.verdict.action if timeline.end is not None else ""
    return " ".join([f"{_result(timeline)}.", *([f"Action: {action}."] if action else ()), *faults])


def _last_time(timeline: Timeline) -> float:
    return timeline.end.at if timeline.end is not None else timeline.simulated


def _rows(bars: Iterable[AttemptBar]) -> list[ChartRow]:
    """The rows by role in the order of the first pods, and by index."""
    by_replica: dict[str, dict[int, list[AttemptBar]]] = {}
    for bar in bars:
        by_replica.setdefault(bar.role, {}).setdefault(bar.index, []).append(bar)
    single = sum(len(replicas) for replicas in by_replica.values()) <= _MAX_SINGLE_ROWS
    rows = []
    for role, replicas in by_replica.items():
        groups = groupby(sorted(replicas), key=lambda index: index if single else _shape(replicas[index]))
        for _, group in groups:
            indexes = tuple(group)
            name = f"{role}-{indexes[0]}" if len(indexes) == 1 else f"{role} {format_indexes(indexes)}"
            rows.append(ChartRow(_cut(name, _MAX_LABEL, keep=8), role, indexes, tuple(replicas[indexes[0]])))
    return rows


def _shape(bars: list[AttemptBar]) -> tuple[object, ...]:
    """What neighbours must have in common to share a row: everything except the node."""
    return tuple((one.attempt, one.restart, one.created, one.started, one.ended, one.result) for one in bars)


def _grid(scale: _Scale, top: float, bottom: float) -> Iterator[str]:
    for at in scale.ticks():
        x = scale.x(at)
        yield element("line", x1=x, x2=x, y1=top - 4, y2=bottom + 4, class_="grid")
        yield _text(x, bottom + 18, clock(at), class_="small", text_anchor="middle")


def _phases(timeline: Timeline, scale: _Scale) -> Iterator[str]:
    """The phases that last longer than a moment, in the words of the kind."""
    yield _text(_MARGIN, 72, "phase")
    last = _last_time(timeline)
    for span in timeline.phases:
        end = last if span.end is None else min(span.end, last)
        final = span.end is None and timeline.end is not None
        if end <= span.start and not final:
            continue
        width = max(scale.x(end) - scale.x(span.start), 0.0)
        tip = f"{span.phase}: {clock(span.start)}" + ("" if final else f" to {clock(end)}")
        box = element("rect", x=scale.x(span.start), y=58, width=max(width, 2.0), height=20, rx=3, class_="phase")
        shown = span.phase if len(span.phase) * _CHARACTER + 6 <= width else ""
        label = _text(scale.x(span.start) + 5, 72, shown, class_="small") if shown else ""
        yield element("g", element("title", escape(tip)), box, label)


def _row(row: ChartRow, scale: _Scale, y: float, timeline: Timeline) -> Iterator[str]:
    yield _text(_MARGIN, y + 14, row.label)
    width = _RIGHT - scale.left
    yield element("rect", x=scale.left, y=y + 2, width=width, height=_ROW - 4, class_="row")
    for bar in row.bars:
        end = _last_time(timeline) if bar.ended is None else bar.ended
        boxes = []
        begun = end if bar.started is None else bar.started
        if begun > bar.created:
            boxes.append(_box(scale, bar.created, begun, y, AttemptResult.PENDING))
        if bar.started is not None or bar.result is not AttemptResult.PENDING:
            boxes += [_box(scale, begun, end, y, bar.result), _label(scale, begun, end, y, bar)]
        yield element("g", element("title", escape(_tip(row, bar, end))), *boxes)


def _box(scale: _Scale, start: float, end: float, y: float, result: AttemptResult) -> str:
    width = max(scale.x(end) - scale.x(start), 1.0)
    return element("rect", x=scale.x(start), y=y + 3, width=width, height=_BAR, rx=2, class_=result)


def _label(scale: _Scale, start: float, end: float, y: float, bar: AttemptBar) -> str:
    """The longest text about the result that fits in the bar."""
    texts = (f"{bar.result} ({bar.detail})" if bar.detail else "", bar.result, _SYMBOLS.get(bar.result, ""))
    room = scale.x(end) - scale.x(start) - 6
    shown = next((text for text in texts if text and len(text) * _CHARACTER <= room), "")
    return _text(scale.x(start) + 5, y + 14, shown, class_="on") if shown else ""


def _tip(row: ChartRow, bar: AttemptBar, end: float) -> str:
    run = f", restart {bar.restart} inside the pod" if bar.restart else ""
    node = f" on {bar.node}" if bar.node and len(row.indexes) == 1 else ""
    detail = f" ({bar.detail})" if bar.detail else ""
    return f"{row.label}, attempt {bar.attempt}{run}{node}: {bar.result}{detail}, {clock(bar.created)} to {clock(end)}"


def _faults(faults: Iterable[Entry], rows: list[ChartRow], scale: _Scale, top: float) -> Iterator[str]:
    """A mark above the rows, and one in the row of each replica that the fault hits."""
    for entry in faults:
        tip = element("title", escape(f"{clock(entry.at)}: {entry.text}"))
        x = scale.x(entry.at)
        yield element("g", tip, element("path", d=_triangle(x, top - 12), class_="fault"))
        hit = {role: parse_indexes(text) for role, text in entry.replicas.items()}
        for place, row in enumerate(rows):
            if hit.get(row.role, frozenset()).intersection(row.indexes):
                mark = element("circle", cx=x, cy=top + _ROW * place + _ROW / 2, r=4, class_="fault")
                yield element("g", tip, mark)
    free = 0.0
    for at, group in groupby(enumerate(faults, 1), key=lambda one: one[1].at):
        numbers = [number for number, _ in group]
        label = "-".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
        if scale.x(at) >= free:
            yield _text(scale.x(at) + 6, top - 4, label, class_="small")
            free = scale.x(at) + 12 + _CHARACTER * len(label)


def _fault_list(faults: list[Entry], y: float) -> Iterator[str]:
    """What the numbered marks mean."""
    for number, entry in enumerate(faults[:_MAX_FAULTS], 1):
        yield _text(_MARGIN, y, _cut(f"{number}. {clock(entry.at)}: {entry.text}", 140), class_="small")
        y += 16
    if len(faults) > _MAX_FAULTS:
        yield _text(_MARGIN, y, f"and {len(faults) - _MAX_FAULTS} more faults", class_="small")


def _triangle(x: float, y: float) -> str:
    return f"M{_number(x - 5)} {y}h10l-5 9z"


def _end(timeline: Timeline, scale: _Scale, bottom: float) -> Iterator[str]:
    if timeline.end is not None:
        x = scale.x(timeline.end.at)
        line = element("line", x1=x, x2=x, y1=54, y2=bottom + 4, class_="end")
        tip = f"{clock(timeline.end.at)}: {timeline.end.phase}: {timeline.end.verdict.message}"
        yield element("g", element("title", escape(tip)), line)


def _legend(timeline: Timeline, y: float, has_faults: bool) -> Iterator[str]:
    results = {bar.result for bar in timeline.attempts}
    x = float(_MARGIN)
    for result in AttemptResult:
        if result in results or result is AttemptResult.PENDING:
            yield element("rect", x=x, y=y - 11, width=14, height=_BAR, rx=2, class_=result)
            yield _text(x + 7, y, _SYMBOLS.get(result, " "), class_="on", text_anchor="middle")
            yield _text(x + 19, y, result, class_="small")
            x += 32 + len(result) * _CHARACTER
    if has_faults:
        yield element("path", d=_triangle(x + 6, y - 9), class_="fault")
        yield _text(x + 17, y, "Fault", class_="small")
        x += 32 + 5 * _CHARACTER
    if timeline.end is not None:
        yield element("line", x1=x + 6, x2=x + 6, y1=y - 12, y2=y + 4, class_="end")
        yield _text(x + 17, y, "End of the job", class_="small")


def _text(x: float, y: float, text: str, **attributes: object) -> str:
    return element("text", escape(text), x=x, y=y, **attributes)


def _cut(text: str, most: int, keep: int = 0) -> str:
    """Cut a text to at most `most` characters. Its last `keep` characters stay: they contain the index of a replica."""
    return text if len(text) <= most else f"{text[: most - 1 - keep]}…{text[len(text) - keep :]}"
