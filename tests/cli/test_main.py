# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S607 - the command line is what is under test
"""The way in: what is loaded, what is printed, which exit code, whatever happens."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import click
import pytest

from trainwright import __version__
from trainwright.cli import main as entry
from trainwright.cli.main import COMMANDS, run
from trainwright.errors import ManifestError, TrainwrightError, UsageError

SCRIPT = Path(sys.executable).with_name("trainwright")
HEAVY = {"msgspec", "yaml", "trainwright.kinds", "trainwright.core", "trainwright.crd", "trainwright.cli.validate"}


def raising(error: BaseException) -> click.Command:
    @click.command("validate")
    def odd() -> NoReturn:
        raise error

    return odd


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("TRAINWRIGHT_DEBUG", raising=False)
    return monkeypatch


def end(patch: pytest.MonkeyPatch, error: BaseException) -> int:
    """The exit code of a command that ends with this error."""
    patch.setattr(entry.LazyGroup, "get_command", lambda *_: raising(error))
    return run(["validate"])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"trainwright {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)
    assert "Exit codes" in text


def test_help_loads_nothing_heavy() -> None:
    code = "import sys\nfrom trainwright.cli.main import run\nrun(['--help'])\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert HEAVY & set(done.stderr.split()) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0

    text = capsys.readouterr().out
    assert "Example" in text
    assert f"trainwright {name} " in text


#: The commands that work on any cluster, each with arguments.
ON_CLUSTERS = {
    "annotate": ("x", "a=b"),
    "delete": ("x",),
    "describe": ("x",),
    "events": ("x",),
    "exec": ("x", "worker-0", "--", "true"),
    "explain": ("x",),
    "get": (),
    "history": ("x",),
    "logs": ("x",),
    "resume": ("x",),
    "scale": ("x", "worker=1"),
    "submit": ("missing.yaml",),
    "suspend": ("x",),
    "wait": ("x",),
}


@pytest.mark.parametrize("name", ON_CLUSTERS)
def test_a_command_for_this_machine_loads_nothing_of_clusters(name: str, tmp_path: Path) -> None:
    code = "import sys\nfrom trainwright.cli.main import run\nrun(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", code, name, *ON_CLUSTERS[name]]
    env = os.environ | {"TRAINWRIGHT_STATE": str(tmp_path), "KUBECONFIG": str(tmp_path / "missing")}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=True)

    modules = done.stderr.splitlines()[-1].split()
    assert [one for one in modules if one.startswith(("trainwright.kube", "trainwright.cli.remote"))] == []


@pytest.mark.parametrize("name", ON_CLUSTERS)
def test_a_context_that_does_not_exist(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config"
    config.write_text('{"contexts": [{"name": "lab", "context": {"cluster": "lab"}}]}')
    options = ["--context", "lib", "--kubeconfig", str(config)]

    assert run([name, *options, *ON_CLUSTERS[name]]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"trainwright: {config}: --context: there is no context 'lib'; did you mean 'lab'?\n",
    )


def test_a_misspelt_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validte", "x"]) == 2
    assert "Did you mean 'validate'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [["validate"], ["validate", "--nope", "x"], ["validate", "-o", "xml", "x"], ["--nope"]]
)
def test_wrong_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        pytest.param(ManifestError("a.yaml:1: odd"), 2, "trainwright: a.yaml:1: odd\n", id="manifest"),
        pytest.param(UsageError("cannot"), 2, "trainwright: cannot\n", id="usage"),
        pytest.param(TrainwrightError("broke"), 3, "trainwright: broke\n", id="ours"),
        pytest.param(KeyboardInterrupt(), 130, "\n", id="interrupt"),
        pytest.param(BrokenPipeError(32, "Broken pipe"), 141, "", id="reader gone"),
        pytest.param(
            ValueError("two\nlines"),
            3,
            "trainwright: internal error: ValueError: two lines; run with TRAINWRIGHT_DEBUG=1 for the traceback\n",
            id="unexpected",
        ),
        pytest.param(
            RecursionError("deep"),
            3,
            "trainwright: internal error: RecursionError: deep; run with TRAINWRIGHT_DEBUG=1 for the traceback\n",
            id="recursion",
        ),
    ],
)
def test_every_end_has_its_code_and_at_most_one_line(
    odd: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    odd.setattr(sys, "stdout", sys.stdout)  # put back what the way out replaces
    odd.setattr(sys, "stderr", sys.stderr)

    assert code == end(odd, error)
    assert text == capfd.readouterr().err


def test_the_traceback_on_request(odd: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    odd.setenv("TRAINWRIGHT_DEBUG", "1")

    assert end(odd, ValueError("x")) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"'{SCRIPT}' --help | true; '{SCRIPT}' crds | head -c 1; '{SCRIPT}' crds | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    assert done.stdout.endswith("141\n")


def test_a_terminal_that_cannot_show_everything(tmp_path: Path) -> None:
    (tmp_path / "職.yaml").write_text("a: 1")
    done = subprocess.run(
        [SCRIPT, "validate", "職.yaml"],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )

    assert done.returncode == 2
    assert b"\\u8077.yaml:1: error" in done.stdout
    assert done.stderr == b""


def test_closed_streams() -> None:
    done = subprocess.run(["bash", "-c", f"'{SCRIPT}' --help >&- 2>&-"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([SCRIPT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, env=env, check=False)

    assert done.returncode == 3
    assert done.stderr == "trainwright: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--replicas", "two"), "Invalid value for '--replicas': expected a whole number from 1 to 10000, found 'two'"),
        (("--replicas", "0"), "expected a whole number from 1 to 10000, found 0"),
        (("--max-restarts", "x"), "expected a whole number of at least 0, found 'x'"),
        (("--cpus-per-replica", "0"), "expected a number above 0, found 0"),
    ],
)
def test_an_option_says_which_numbers_it_takes(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert run(["run", *words, "--", "true"]) == 2
    assert expected in capsys.readouterr().err
