# SPDX-License-Identifier: Apache-2.0
"""The plots of `--compare` as SVG: one dot per round and the median, or stacked bars.

A plot has its own background, so that it is readable on a light and on a dark page.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from statistics import median
from xml.sax.saxutils import escape

from report import (
    NAMES,
    NEW_OPERATOR,
    OWN,
    P99,
    PARTS,
    RATE,
    WALL,
    Quantity,
    Results,
    label,
    own_ms,
)

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 76, 84
COLOURS = {"ours": "#1f6fd6", "peer": "#d9730d", "floor": "#7d8590"}
PART_COLOURS = {"operator": "#1f6fd6", "apiserver": "#8a63d2", "etcd": "#3fa66b"}
PART_NAMES = {"operator": "operator", "apiserver": "API server", "etcd": "etcd"}
_STYLE = """\
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.small { font-size: 11px }
.card { fill: #ffffff; stroke: #d0d7de }
.grid { stroke: #d8dee4; stroke-width: 1 }
.axis { stroke: #57606a; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .card { fill: #161b22; stroke: #30363d }
  .grid { stroke: #30363d }
  .axis { stroke: #8b949e }
}"""
#: Values of one contestant in one category, one for each round.
Rounds = Sequence[float]


def plots(results: Results) -> dict[str, str]:
    """Return the plots that the results suffice for, by file name."""
    sizes = [case for case in ("100x4", "500x4", "1000x4", "2000x1") if case in results.cases]
    limits = [case for case in ("100x4", "matched-100x4", "shipped-100x4") if case in results.cases]
    present = [case for case in results.cases if case.startswith("present-")]
    found = {
        "jobs-per-second.svg": _dots(results, RATE, sizes, "Jobs per second (higher is better)", "jobs/s"),
        "all-pods-p99.svg": _dots(
            results, P99, sizes, "From submission to the last pod, p99 (lower is better)", "seconds"
        ),
        "limits.svg": _dots(results, WALL, limits, "Time until all jobs have succeeded (lower is better)", "seconds"),
        "own-cost.svg": _cost(results, [case for case in sizes if results.of(case, "nobody")]),
        "growth.svg": _growth(results, present),
    }
    return {name: text for name, text in found.items() if text}


# -- kinds of plots --------------------------------------------------------------------------------------------------


def _dots(results: Results, quantity: Quantity, cases: Sequence[str], title: str, unit: str) -> str:
    """Plot one dot per run and the median as a line, for each case and contestant."""
    values = {(case, who): list(quantity.values(results, case, who).values()) for case in cases for who in COLOURS}
    shown = [who for who in COLOURS if any(values[case, who] for case in cases)]
    if not shown:
        return ""
    picture = Picture(title, unit, max(value for some in values.values() for value in some))
    picture.legend({NAMES[who]: COLOURS[who] for who in shown})
    for index, case in enumerate(cases):
        picture.category(label(results, case), index, len(cases))
        for place, who in enumerate(shown):
            at = picture.x((index + (place + 1) / (len(shown) + 1)) / len(cases))
            picture.rounds(
                at, values[case, who], COLOURS[who], f"{NAMES[who]}, {label(results, case)}", quantity.digits
            )
    return picture.text("jobs x pods per job")


def _cost(results: Results, cases: Sequence[str]) -> str:
    """Plot own cost as bars of operator, API server and etcd, with one dot per round for the sum."""
    sums = {(case, who): list(OWN.values(results, case, who).values()) for case in cases for who in COLOURS}
    bars = [key for key in sums if sums[key]]
    if not bars:
        return ""
    title = "Own cost: CPU that the operator causes, per job (lower is better)"
    largest = max(value for some in sums.values() for value in some)
    picture = Picture(title, "ms of CPU per job", largest, has_bars=True)
    picture.legend({PART_NAMES[part]: PART_COLOURS[part] for part in PARTS})
    for index, case in enumerate(cases):
        whos = [who for one, who in bars if one == case]
        picture.category(label(results, case), index, len(cases))
        for place, who in enumerate(whos):
            at = picture.x((index + (place + 0.7) / (len(whos) + 0.4)) / len(cases))
            picture.bar(at, {part: _part(results, case, who, part) for part in PARTS}, NAMES[who])
            picture.rounds(at, sums[case, who], "", f"{NAMES[who]}, {label(results, case)}", 1)
    return picture.text("jobs x pods per job")


def _part(results: Results, case: str, who: str, part: str) -> float:
    return max(median(own_ms(results, run, part) or 0.0 for run in results.of(case, who)), 0.0)


def _growth(results: Results, cases: Sequence[str]) -> str:
    """Plot the operator's CPU per new job by the number of existing jobs, on a logarithmic axis."""
    numbers = {case: next(run.present for who in NAMES for run in results.of(case, who)) for case in cases}
    values = {(case, who): list(NEW_OPERATOR.values(results, case, who).values()) for case in cases for who in COLOURS}
    if len(cases) < 2 or not all(numbers.values()):
        return ""
    title = "CPU of the operator per new job, while other jobs exist (lower is better)"
    picture = Picture(title, "ms of CPU per job", max(value for some in values.values() for value in some))
    first, last = (log10(number) for number in (min(numbers.values()), max(numbers.values())))
    places = {case: picture.x(0.1 + 0.8 * (log10(numbers[case]) - first) / (last - first)) for case in cases}
    for case in cases:
        picture.mark(places[case], f"{numbers[case]:,}")
    shown = [who for who in COLOURS if any(values[case, who] for case in cases)]
    picture.legend({NAMES[who]: COLOURS[who] for who in shown})
    for who in shown:
        known = [case for case in cases if values[case, who]]
        picture.line([(places[case], median(values[case, who])) for case in known], COLOURS[who])
        for case in known:
            picture.rounds(places[case], values[case, who], COLOURS[who], f"{NAMES[who]}, {case}", 1)
    return picture.text("existing jobs (logarithmic)")


# -- drawing ---------------------------------------------------------------------------------------------------------


class Picture:
    """An SVG picture with a title, a vertical axis from zero, and things that are drawn at values of it."""

    def __init__(self, title: str, unit: str, largest: float, *, has_bars: bool = False) -> None:
        self._title, self._unit = title, unit
        self._below = 48 if has_bars else 20
        self._step = _step(largest)
        self._top = self._step * max(ceil(largest * 1.04 / self._step), 1)
        self._parts: list[str] = []

    def x(self, share: float) -> float:
        """Return the horizontal place of a share of the width."""
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical place of a value."""
        return HEIGHT - BOTTOM - value / self._top * (HEIGHT - TOP - BOTTOM)

    def legend(self, colours: Mapping[str, str]) -> None:
        """Name the colours."""
        at = float(LEFT)
        for name, colour in colours.items():
            self._parts.append(f'<rect x="{at:.1f}" y="45" width="12" height="12" rx="2" fill="{colour}"/>')
            self._parts.append(_words(at + 18, 56, name))
            at += 40 + 7.5 * len(name)

    def category(self, name: str, index: int, number: int) -> None:
        """Name a part of the horizontal axis, and separate it from the one before."""
        self._parts.append(_words(self.x((index + 0.5) / number), HEIGHT - BOTTOM + self._below, name, "middle"))
        if index:
            self._parts.append(_line(self.x(index / number), TOP, self.x(index / number), HEIGHT - BOTTOM, "grid"))

    def mark(self, at: float, name: str) -> None:
        """Name a place on the horizontal axis."""
        self._parts.append(_words(at, HEIGHT - BOTTOM + 20, name, "middle"))
        self._parts.append(_line(at, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 5, "axis"))

    def rounds(self, at: float, values: Rounds, colour: str, name: str, digits: int) -> None:
        """Draw one dot per value, and the median with its number; without a colour, only small dots and the number."""
        if not values:
            return
        middle, offset = median(values), 5.0
        self._parts.append(f"<g><title>{escape(name)}: median {middle:,.{digits}f} {escape(self._unit)}</title>")
        for index, value in enumerate(values):
            place = at + offset * (index - (len(values) - 1) / 2)
            look = f'fill="{colour}" fill-opacity="0.55"' if colour else 'fill="#24292f" stroke="#ffffff"'
            self._parts.append(
                f'<circle cx="{place:.1f}" cy="{self.y(value):.1f}" r="{3.5 if colour else 2.5}" {look}/>'
            )
        if colour:
            line = f'x1="{at - 20:.1f}" y1="{self.y(middle):.1f}" x2="{at + 20:.1f}" y2="{self.y(middle):.1f}"'
            self._parts.append(f'<line {line} stroke="{colour}" stroke-width="2.5"/>')
        above = self.y(max(values)) - 8
        self._parts.append(_words(at, above, f"{middle:,.{digits}f}", "middle", "small") + "</g>")

    def bar(self, at: float, parts: Mapping[str, float], name: str) -> None:
        """Draw a stacked bar, with its name written under it."""
        below, half = 0.0, 22.0
        for part, value in parts.items():
            top, height = self.y(below + value), self.y(below) - self.y(below + value)
            box = f'x="{at - half:.1f}" y="{top:.1f}" width="{2 * half:.0f}" height="{height:.1f}"'
            about = f"{name}, {PART_NAMES[part]}: {value:.1f} {self._unit}"
            self._parts.append(f'<rect {box} fill="{PART_COLOURS[part]}"><title>{escape(about)}</title></rect>')
            below += value
        for number, word in enumerate(name.replace("-", "- ").split()):
            self._parts.append(_words(at, HEIGHT - BOTTOM + 15 + 13 * number, word, "middle", "small"))

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Connect values."""
        places = " ".join(f"{x:.1f},{self.y(value):.1f}" for x, value in points)
        self._parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def text(self, below: str) -> str:
        """Return the picture, with the name of the horizontal axis."""
        title = escape(self._title)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        )
        frame = f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>'
        title_words = _words(LEFT, 28, self._title, "start", "title")
        axis = _words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + self._below + 24, below, "middle", "small")
        parts = [head, f"<style>{_STYLE}</style>", frame, title_words, *self._grid(), *self._parts, axis, "</svg>"]
        return "\n".join(parts) + "\n"

    def _grid(self) -> list[str]:
        found = []
        for number in range(round(self._top / self._step) + 1):
            value = number * self._step
            found.append(_line(LEFT, self.y(value), WIDTH - RIGHT, self.y(value), "grid" if number else "axis"))
            found.append(_words(LEFT - 8, self.y(value) + 4, f"{value:,.6g}", "end", "small"))
        middle = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'<text class="small" transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        return [*found, f"{turned}{escape(self._unit)}</text>"]


def _step(largest: float) -> float:
    """Return a round distance between the lines of the grid, for four to eight lines."""
    rough = max(largest, 1e-6) / 5
    power: float = 10.0 ** floor(log10(rough))
    return power * min((factor for factor in (1, 2, 5, 10) if factor * power >= rough), default=10)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _words(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    look = f' class="{kind}"' if kind else ""
    return f'<text{look} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
