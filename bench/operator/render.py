# SPDX-License-Identifier: Apache-2.0
"""Writes the results of `--compare` into docs/performance.md, between two markers, and the plots beside it."""

from pathlib import Path

from plots import plots
from report import (
    APISERVER,
    BODIES,
    CONFLICTS,
    ETCD,
    EVENTS,
    NAMES,
    NEW_OPERATOR,
    NEW_PLANE,
    OPERATOR,
    OTHERS,
    OWN,
    P50,
    P99,
    PEAK,
    RATE,
    RUNNING,
    STORED,
    WALL,
    WRITES,
    Quantity,
    Results,
    label,
    verdicts,
)
from results import Header, ResultsError, Run

BEGIN, END = "<!-- compare:begin -->", "<!-- compare:end -->"
PAGE, FOLDER = "performance.md", "performance"
_TITLES = {
    "jobs-per-second.svg": "Jobs per second by size, one dot per round",
    "all-pods-p99.svg": "Time from the submission of a job to its last pod, p99, by size",
    "limits.svg": "Time until all jobs have succeeded, without limits, with equal limits, and as shipped",
    "own-cost.svg": "Own cost per job, divided into operator, API server and etcd",
    "growth.svg": "CPU of the operator per new job by the number of existing jobs",
}
_WRITE_CASES = ("100x4", "500x4")
Row = list[str]


def write(folder: Path, head: Header, runs: list[Run]) -> list[Path]:
    """Write the page and the plots, and return their paths."""
    page = folder / PAGE
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    inserted = insert(text, section(head, runs), str(page))
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    page.write_text(inserted, encoding="utf-8")
    paths = [page]
    for name, picture in plots(Results(runs)).items():
        paths.append(folder / FOLDER / name)
        paths[-1].write_text(picture, encoding="utf-8")
    return paths


def insert(page: str, text: str, name: str = PAGE) -> str:
    """Return the page with another text between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"{name} has no lines {BEGIN} and {END}; add them where the tables belong")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def section(head: Header, runs: list[Run]) -> str:
    """Return everything between the markers."""
    results = Results(runs)
    cases = [case for case in results.cases if not case.startswith("present-")]
    present = [case for case in results.cases if case.startswith("present-")]
    parts = [
        _about(head),
        "### Targets\n\nThe ratio is Trainwright to training-operator, or to the floor where the row says so.",
        _targets(results),
    ]
    if cases:
        parts += ["### Speed", *_pictures(results, "jobs-per-second.svg", "all-pods-p99.svg", "limits.svg")]
        parts += [_by_case(results, cases, _SPEED)]
        parts += ["### Cost per job", *_pictures(results, "own-cost.svg"), _by_case(results, cases, _COST)]
    if counted := [case for case in _WRITE_CASES if case in cases]:
        parts += ["### Requests of the operators per job", *[_writes(results, case) for case in counted]]
    if present:
        parts += ["### With existing jobs", *_pictures(results, "growth.svg"), _growth(results, present)]
    return "\n\n".join(parts) + "\n"


def _about(head: Header) -> str:
    small = "**Small sizes (`--quick`): these figures only show that the benchmark works.** " if head.quick else ""
    text = (
        f"{small}Measured on {head.date}: Trainwright {head.trainwright} ({head.commit}),"
        f" training-operator {head.peer}, Kubernetes {head.kubernetes}, CPython {head.python},"
        f" aiohttp {head.aiohttp}, msgspec {head.msgspec}, Linux {head.kernel}, {head.processors} x {head.processor}."
        " Figures are medians of the rounds, with the smallest and the largest value in brackets."
    )
    return _wrapped(text)


def _wrapped(text: str, width: int = 120) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _pictures(results: Results, *names: str) -> list[str]:
    there = plots(results)
    return [f"![{_TITLES[name]}]({FOLDER}/{name})" for name in names if name in there]


# -- tables ----------------------------------------------------------------------------------------------------------


def _table(head: Row, rows: list[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "|".join(cell if cell == "---" else f" {cell} " for cell in line) + "|" for line in lines)


def _targets(results: Results) -> str:
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [[one.what, one.target, one.ours, one.peer, one.ratio, words[one.reached]] for one in verdicts(results)]
    return _table(["what", "target", NAMES["ours"], NAMES["peer"], "ratio", "reached"], rows)


_SPEED: dict[str, Quantity] = {
    "wall": WALL,
    "jobs/s": RATE,
    "submit → all pods p50": P50,
    "p99": P99,
    "seen Running": RUNNING,
    "terminal events stored": EVENTS,
    "other programs": OTHERS,
}
_COST: dict[str, Quantity] = {
    "CPU: operator": OPERATOR,
    "API server": APISERVER,
    "etcd": ETCD,
    "own cost": OWN,
    "peak RSS": PEAK,
    "writes": WRITES,
    "409s in total": CONFLICTS,
    "to etcd": STORED,
    "request bodies": BODIES,
}


def _by_case(results: Results, cases: list[str], columns: dict[str, Quantity]) -> str:
    rows = []
    for case in cases:
        for who, name in NAMES.items():
            if found := results.of(case, who):
                cells = [quantity.text(results, case, who) for quantity in columns.values()]
                rows.append([label(results, case), name, str(len(found)), *cells])
    return _table(["jobs x pods", "who", "rounds", *columns], rows)


def _writes(results: Results, case: str) -> str:
    """Return a table of one case: a row for each kind of request."""
    whos = [who for who in NAMES if who != "nobody" and results.of(case, who)]
    kinds = sorted({kind for who in whos for run in results.of(case, who) for kind in run.writes})
    rows = []
    for kind in kinds:
        each = Quantity(kind, "", 2, lambda _, run, kind=kind: run.writes.get(kind, 0) / run.jobs)  # type: ignore[misc]
        rows.append([f"`{kind}`", *[each.text(results, case, who) for who in whos]])
    rows.append(["all", *[WRITES.text(results, case, who) for who in whos]])
    return _table([label(results, case), *[NAMES[who] for who in whos]], rows)


def _growth(results: Results, cases: list[str]) -> str:
    rest = Quantity("at rest", "%", 1, lambda _, run: 100 * run.rest.get("operator", 0.0))
    memory = Quantity("RSS", "MiB", 0, lambda _, run: run.memory)
    columns = [rest, NEW_OPERATOR, NEW_PLANE, RATE, P99, memory, OTHERS]
    rows = []
    for case in cases:
        for who, name in NAMES.items():
            if found := results.of(case, who):
                new = f"{found[0].jobs:,} x {found[0].pods}"
                cells = [quantity.text(results, case, who) for quantity in columns]
                rows.append([f"{found[0].present:,}", name, new, *cells])
    titles = ["operator at rest", "operator's CPU per new job", "API server + etcd", "jobs/s", "p99", "RSS"]
    return _table(["existing jobs", "who", "new jobs", *titles, "other programs"], rows)
