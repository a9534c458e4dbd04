# SPDX-License-Identifier: Apache-2.0
"""The table of pod fields is what the generator makes of the installed models, and complete in itself."""

import re
import runpy
from pathlib import Path

from trainwright.kinds.podtable import ROOT, TYPES

REPOSITORY = Path(__file__).parents[2]
TOOL = runpy.run_path(str(REPOSITORY / "tools" / "podtable.py"))


def test_the_file_is_up_to_date() -> None:
    checked_in = (REPOSITORY / "src" / "trainwright" / "kinds" / "podtable.py").read_text(encoding="utf-8")

    assert TOOL["text"]() == checked_in, "run: python tools/podtable.py"


def test_every_type_is_known_and_used() -> None:
    named = {re.sub(r"[][{}!]", "", word) for fields in TYPES.values() for word in fields.values()}

    assert named - {"str", "int", "bool", "quantity", "intOrString", "time", "any"} | {ROOT} == set(TYPES)


def test_a_few_fields_that_people_use() -> None:
    assert TYPES["Container"]["name"] == "str!"
    assert TYPES["Container"]["args"] == "[str]"
    assert TYPES["Container"]["env"] == "[EnvVar]"
    assert TYPES["ResourceRequirements"]["limits"] == "{quantity}"
    assert TYPES["EmptyDirVolumeSource"]["sizeLimit"] == "quantity"
    assert TYPES["HTTPGetAction"]["port"] == "intOrString!"
    assert TYPES["ObjectMeta"]["labels"] == "{str}"
    assert TYPES["ObjectMeta"]["creationTimestamp"] == "time"
