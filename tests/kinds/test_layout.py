# SPDX-License-Identifier: Apache-2.0
"""Every kind has the modules, and the modules have the names, that the table in CONTRIBUTING.md lists."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from trainwright.kinds.base import Kind
from trainwright.kinds.kubeflow import kind as kubeflow_kind
from trainwright.kinds.registry import KINDS

ROOT = Path(__file__).parent.parent.parent
_ROW = re.compile(r"\| `(\w+)\.py` \|([^|]*)\|")
#: The kinds of Kubeflow v1 are tables on top of `kinds/kubeflow`; they have a layout of their own.
KUBEFLOW = [kind for kind in KINDS if kind.adopted_ledger is kubeflow_kind.adopted_ledger]
OTHERS = [kind for kind in KINDS if kind not in KUBEFLOW]


def table(number: int = 0) -> dict[str, list[str]]:
    """The modules of a kind and the names in each, as a table of CONTRIBUTING.md lists them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add a kind")[1].split("\n## ")[0]
    rows = text.split("| module | names | what you write |")[number + 1]
    return {module: re.findall(r"`(\w+)`", names) for module, names in _ROW.findall(rows)}


def test_the_tables_are_found() -> None:
    assert {"wire", "checks", "__init__"} < table().keys()
    assert "check" in table()["checks"]
    assert {"wire", "environment", "__init__"} == table(1).keys()
    assert "tfjob" in [kind.singular for kind in KUBEFLOW]


def package_of(kind: Kind) -> str:
    """The name of the package of a kind."""
    return str(kind.wire.__module__).rpartition(".")[0]


@pytest.mark.parametrize("kind", KUBEFLOW, ids=package_of)
def test_a_kind_of_kubeflow_has_the_modules_and_names_of_its_table(kind: Kind) -> None:
    package = ROOT / "src" / Path(*package_of(kind).split("."))
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py"}

    assert table(1).keys() <= modules <= table().keys()
    for module, names in table(1).items():
        found = import_module(package_of(kind) + (f".{module}" if module != "__init__" else ""))
        assert [name for name in names if not hasattr(found, name)] == []


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.singular)
def test_every_kind_has_exactly_the_modules_of_the_table(kind: Kind) -> None:
    package = ROOT / "src" / "trainwright" / "kinds" / kind.singular

    assert {path.stem for path in package.iterdir() if path.suffix == ".py"} == table().keys()
    assert {path.name for path in package.iterdir() if path.is_dir()} <= {"__pycache__"}


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.singular)
def test_every_module_defines_the_names_of_the_table(kind: Kind) -> None:
    for module, names in table().items():
        found = import_module(f"trainwright.kinds.{kind.singular}" + (f".{module}" if module != "__init__" else ""))
        for name in names:
            value = getattr(found, name, None)
            assert value is not None, f"{found.__name__} has no {name}"
            assert getattr(value, "__module__", found.__name__) in (found.__name__, "builtins"), f"{name} is imported"


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.singular)
def test_the_kind_is_made_of_these_functions(kind: Kind) -> None:
    package = import_module(f"trainwright.kinds.{kind.singular}")

    assert (kind.default, kind.translate, kind.adopted_ledger) == (
        package.default,
        package.translate,
        package.adopted_ledger,
    )
    assert (kind.check, kind.check_edit, kind.cel) == (
        package.checks.check,
        package.checks.check_edit,
        package.checks.CEL_RULES,
    )
    assert (kind.suspend, kind.scale, kind.render) == (
        package.checks.suspend,
        package.checks.scale,
        package.status.render,
    )
    assert kind.event is getattr(package.conditions, "event", kind.event)
