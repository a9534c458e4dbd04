# SPDX-License-Identifier: Apache-2.0
"""`trainwright manifests` prints what can be piped into kubectl, as it was asked for."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from trainwright import __version__
from trainwright.cli.install import manifests_command
from trainwright.crd.install import InstallOptions, manifests
from trainwright.errors import UsageError
from trainwright.kinds.registry import KINDS
from trainwright.model.job import Body


def run(*args: str) -> Result:
    return CliRunner().invoke(manifests_command, list(args))


def plain(bodies: tuple[Body, ...]) -> Any:
    return json.loads(json.dumps(bodies))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param((), InstallOptions(image=f"trainwright:{__version__}", namespace="trainwright"), id="nothing"),
        pytest.param(("--image", "a/b:1", "-n", "tools"), InstallOptions(image="a/b:1", namespace="tools"), id="image"),
        pytest.param(
            ("--image", "b", "--watch-namespace", "red"),
            InstallOptions(image="b", namespace="trainwright", watch="red"),
            id="one namespace",
        ),
        pytest.param(
            ("--image", "b", "--no-crds"),
            InstallOptions(image="b", namespace="trainwright", definitions=False),
            id="without CRDs",
        ),
        pytest.param(
            ("--image", "b", "--kinds", "gj, GenericJob"),
            InstallOptions(image="b", namespace="trainwright", kinds=KINDS[:1]),
            id="kinds",
        ),
        pytest.param(
            ("--image", "b", "--nodes"), InstallOptions(image="b", namespace="trainwright", nodes=True), id="nodes"
        ),
    ],
)
def test_what_was_asked_for_is_printed(words: tuple[str, ...], expected: InstallOptions) -> None:
    text = run(*words).stdout

    assert list(yaml.safe_load_all(text)) == plain(manifests(expected))
    assert "&id" not in text


def test_json_is_one_list() -> None:
    expected = plain(manifests(InstallOptions(image="b", namespace="trainwright")))

    assert json.loads(run("--image", "b", "-o", "json").stdout)["items"] == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-n", "My_Place"), "'My_Place' is not a valid namespace: use lower-case letters, digits and dashes"),
        (("-n", ""), "--namespace: expected the name of a namespace, found ''"),
        (("--watch-namespace", ""), "--watch-namespace: expected the name of a namespace, found ''"),
        (("--kinds", "genricjob"), "there is no kind `genricjob`; did you mean `GenericJob`?"),
        (("--image", ""), f"--image: expected a name such as registry.example/trainwright:{__version__}, found ''"),
        (
            ("--image", "a b"),
            f"--image: expected a name such as registry.example/trainwright:{__version__}, found 'a b'",
        ),
    ],
)
def test_what_cannot_be_is_refused(words: tuple[str, ...], expected: str) -> None:
    result = run(*words)

    assert isinstance(result.exception, UsageError)
    assert (str(result.exception), result.stdout) == (expected, "")


def test_help_shows_how_to_install() -> None:
    text = " ".join(run("--help").stdout.split())

    assert "trainwright manifests --image registry.example/trainwright:0.1.0 | kubectl apply --server-side -f -" in text
