# SPDX-License-Identifier: Apache-2.0
"""The table of docs/api.md lists exactly the resources, subresources and verbs that the API serves."""

import re
from pathlib import Path

from trainwright.api.resources import SERVED, ServedResource

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
#: What the words of the table mean; a row with other words names the verbs.
ALL = {"create", "delete", "get", "list", "patch", "update", "watch"}


def _rows() -> list[tuple[set[str], set[str], str]]:
    """Groups, resources and verbs of each row."""
    table = PAGE.partition("## What is served\n\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    names = [[{name.removeprefix("core ") for name in re.findall(r"`([^`]+)`", cell)} for cell in row] for row in rows]
    return [(groups, resources, row[2]) for (groups, resources, *_), row in zip(names, rows, strict=True)]


def test_every_resource_is_listed_with_its_verbs() -> None:
    rows = _rows()
    for served in SERVED:
        words = {verbs for groups, names, verbs in rows if _fits(groups, names, served)}
        assert words, served.resource.id
        expected = ALL if "all" in words else {verb.strip() for word in words for verb in word.split(",")}
        assert set(served.verbs) - {"deletecollection"} == expected, served.resource.id


def _fits(groups: set[str], names: set[str], served: ServedResource) -> bool:
    """Whether a row is about a resource. A row about jobs names only their groups."""
    is_job_row = not names - {"status"}
    is_named = served.resource.plural in names or (is_job_row and served.job is not None)
    return served.resource.api_version in groups and is_named


def test_nothing_else_is_listed() -> None:
    known = {served.resource.plural for served in SERVED}
    subresources = {f"{served.resource.plural}/{sub.name}" for served in SERVED for sub in served.subresources}
    for _, names, _ in _rows():
        assert names <= known | subresources | {"status"}


def test_every_subresource_is_listed() -> None:
    listed = {name for _, names, _ in _rows() for name in names}
    own = {f"{served.resource.plural}/{sub.name}" for served in SERVED for sub in served.subresources}
    assert {name for name in own if not name.endswith("/status")} <= listed
