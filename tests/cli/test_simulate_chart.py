# SPDX-License-Identifier: Apache-2.0
"""The Gantt chart of `trainwright simulate`: valid XML, a row per replica, a bar per attempt, and a mark per fault."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from simulated import Simulated, generic, tensorflow, training

from trainwright.cli.simulate.chart import element, escape
from trainwright.cli.simulate.timeline import AttemptResult

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Simulated:
    return Simulated(tmp_path, capsys)


def chart(out: str) -> ElementTree.Element:
    return ElementTree.fromstring(out)  # noqa: S314 - we wrote it


def tips(root: ElementTree.Element, tag: str, name: str) -> list[str]:
    """The tooltips of the groups that hold such a shape of such a class."""
    groups = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}{tag}[@class='{name}']") is not None]
    return [group.findtext(f"{SVG}title", "") for group in groups]


def texts(root: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


def test_rows_bars_phases_and_marks(simulate: Simulated) -> None:
    code, out, err = simulate(generic(2), "--fail", "worker-1=137@30s", "--lose-node", "1@2m+10s", "-o", "svg")
    root = chart(out)

    assert (code, err) == (0, "")
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "GenericJob default/demo"
    assert texts(root)[0] == "GenericJob default/demo"
    assert {"phase", "worker-0", "worker-1", "Running", "0s", "2m00s", "10m00s"} <= set(texts(root))
    assert tips(root, "rect", "Failed") == ["worker-1, attempt 0 on node-2: Failed (exit code 137), 0s to 30s"]
    assert tips(root, "rect", "Succeeded") == [
        "worker-0, attempt 0 on node-1: Succeeded, 0s to 10m05s",
        "worker-1, attempt 1 on node-2: Succeeded, 31s to 10m36s",
    ]
    assert tips(root, "rect", "phase") == ["Pending: 0s to 5s", "Running: 5s to 10m36s", "Succeeded: 10m36s"]
    assert tips(root, "path", "fault") == [
        "30s: worker-1 exits with code 137",
        "2m00s: node-1 stops answering, with worker-0",
        "2m10s: node-1 answers again",
    ]
    assert tips(root, "circle", "fault") == tips(root, "path", "fault")[:2]


def luminance(colour: str) -> float:
    """The relative luminance of WCAG."""
    digits = colour if len(colour) == 6 else "".join(one * 2 for one in colour)
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def colours(style: str, attribute: str) -> dict[str, str]:
    found = re.findall(rf"([.\w,]+)\{{[^}}]*\b{attribute}:#(\w+)", style)
    return {name: colour for names, colour in found for name in names.split(",")}


def test_it_has_enough_contrast_in_the_light_and_in_the_dark(simulate: Simulated) -> None:
    style = chart(simulate(training(), "-o", "svg")[1]).findtext(f"{SVG}style", "")
    for theme in style.split("@media(prefers-color-scheme:dark){"):
        fill, stroke = colours(theme, "fill"), colours(theme, "stroke")
        results = {f".{result}" for result in AttemptResult}
        assert results | {"text", ".page", ".row", ".phase", ".fault", ".on"} <= set(fill)
        for result in results - {".Pending"}:
            assert contrast(fill[result], fill[".on"]) >= 4.5, result
            assert contrast(fill[result], fill[".row"]) >= 3, result
        assert contrast(stroke[".Pending"], fill[".row"]) >= 3
        for ground in (".page", ".phase"):
            assert contrast(fill["text"], fill[ground]) >= 7


def test_results_do_not_differ_by_colour_alone(simulate: Simulated) -> None:
    faults = ["--fail", "worker-0=137@10m", "--lose-node", "2@5m", "--evict", "worker-2@30s"]
    root = chart(simulate(generic(3), *faults, "-o", "svg")[1])

    on_bars = [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "on"]
    assert on_bars[:6] == ["Failed (exit code 137)", "Succeeded", "Lost", "Succeeded", "E", "Succeeded"]
    assert {"✓", "✕", "?", "E"} <= set(on_bars[6:])  # in the legend


def test_faults_are_listed_with_the_numbers_of_their_marks(simulate: Simulated) -> None:
    times = [f"--fail=worker-{index}=1@{minute}m" for minute in range(1, 9) for index in (0, 1)]
    root = chart(simulate(generic(2, limit=50), *times, "-o", "svg")[1])

    assert {"1-2", "3-4", "15-16"} <= set(texts(root))
    assert "2. 1m00s: worker-1 exits with code 1" in texts(root)
    assert texts(root)[-1] == "and 4 more faults"


def test_it_has_a_description_and_needs_no_other_file(simulate: Simulated) -> None:
    out = simulate(generic(1, limit=0), "--fail", "worker-0=1@1m", "-o", "svg")[1]
    root = chart(out)

    assert root.findtext(f"{SVG}desc") == (
        "Failed after 1m00s; 91.7 % productive: worker-0: container main exited with code 1."
        " Action: read the log of the replica. 1m00s: worker-0 exits with code 1."
    )
    assert (root.get("role"), root.get("aria-describedby")) == ("img", "description")
    assert "href" not in out
    assert "url(" not in out


def test_a_long_name_keeps_its_index(simulate: Simulated) -> None:
    manifest = generic(2)
    manifest["spec"]["replicaSpecs"][0]["type"] = "a-very-long-name-of-a-role"

    assert "a-very-long-nam…a-role-1" in texts(chart(simulate(manifest, "-o", "svg")[1]))


def test_everything_is_on_the_page(simulate: Simulated) -> None:
    root = chart(simulate(tensorflow("OnFailure"), "--fail", "worker-0=1@1m", "--suspend", "5m+1m", "-o", "svg")[1])

    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    boxes = [one for one in root.iter(f"{SVG}rect") if one.get("x")]
    assert len(boxes) > 10
    for one in boxes:
        x, y, wide, high = (float(one.get(key, "nan")) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width
        assert 0 <= y <= y + high <= height
        assert wide > 0


def test_many_replicas_with_the_same_bars_share_a_row(simulate: Simulated) -> None:
    root = chart(simulate(generic(200), "--fail", "worker-7=1@1m", "-o", "svg")[1])

    assert [text for text in texts(root) if text.startswith("worker")] == ["worker 0-6", "worker-7", "worker 8-199"]


def test_a_job_that_does_not_end_and_one_that_never_begins(simulate: Simulated) -> None:
    endless = chart(simulate(generic(1), "--duration", "never", "--until", "3d", "-o", "svg")[1])
    empty = chart(simulate(generic(1), "--set", "spec.runMode.pause.enabled=true", "-o", "svg")[1])

    assert "not ended after 5s; 0.0 % productive" in texts(endless)
    assert "not ended after 0s" in texts(empty)


@pytest.mark.parametrize("text", ["<a & 'b'>", 'say "x"', "bell \a and null \0", "half \ud800", "worker ☃"])
def test_any_text_can_be_written(text: str) -> None:
    written = element("g", escape(text), class_=text)
    root = ElementTree.fromstring(written.encode())  # noqa: S314 - we wrote it

    assert root.text == root.get("class")
    assert root.text == "".join(one if one.isprintable() else "\ufffd" for one in text)


def test_attributes() -> None:
    assert element("line", x1=1.5, x2=3.0, text_anchor="end") == '<line x1="1.5" x2="3" text-anchor="end"/>'
