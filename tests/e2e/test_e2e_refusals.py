# SPDX-License-Identifier: Apache-2.0
"""Bad input: every line says what is wrong and where, with the right exit code, no traceback, and nothing left."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_jobs import Body, beside, container, job, role, shell, worker
from e2e_stage import Stage

pytest_plugins = ["e2e_fixtures"]

HERE = r"spec\.replicaSpecs\[0]\.template\.spec"
NOTHING = re.compile(r"^trainwright: nothing was started: 1 thing cannot be had here$", re.M)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system, and become another")


def asks(**env: Any) -> Body:
    return job(role("worker", shell("true", **env)))


def mounts(path: str, **volume: Any) -> Body:
    mount = [{"name": "v", "mountPath": path}]
    return job(role("worker", shell("true", volumeMounts=mount), volumes=[{"name": "v", **volume}]))


def from_secret(name: str, key: str) -> Body:
    return asks(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}])


REFUSED = {
    "no such secret": (from_secret("token", "word"), r"there is no Secret 'token'; .*did you mean `tokens`\?"),
    "no such key": (from_secret("tokens", "wort"), r"Secret 'tokens' has no key 'wort'; it has word; did you mean `word`\?"),
    "no such config map": (
        asks(envFrom=[{"configMapRef": {"name": "settings"}}]),
        r"containers\[0]\.envFrom\[0]\.configMapRef\.name: there is no ConfigMap 'settings'",
    ),
    "too much cpu": (
        asks(resources={"requests": {"cpu": "1000"}}),
        r"containers\[0]\.resources: can never fit: node-0: cpu: needs 1000, this node has \d",
    ),
    "too much memory": (
        asks(resources={"requests": {"memory": "64Ti"}}),
        r"containers\[0]\.resources: can never fit: node-0: memory: needs 64Ti, this node has [\d.]+",
    ),
    "no gpu": (
        asks(resources={"limits": {"nvidia.com/gpu": 999}}),
        r"nvidia\.com/gpu: needs 999, this node has .*`--gpus N` pretends",
    ),
    "no command": (
        job(role("worker", {"name": "main", "image": "python:3"})),
        r"containers\[0]\.command: missing; the image is not used here.*name the program to run",
    ),
    "no such host path": (
        mounts("/no/such/path", hostPath={"path": "/no/such/path"}),
        r"volumes\[0]\.hostPath\.path: there is no /no/such/path on this machine; `type: DirectoryOrCreate` makes it",
    ),
}
IN_SANDBOX = {
    "nfs": (mounts("/data", nfs={"server": "a", "path": "/"}), r"volumes\[0]: nfs is not supported here; expected one of emptyDir"),
    "no claim": (
        mounts("/data", persistentVolumeClaim={"claimName": "mine"}),
        r"claimName: there is no PersistentVolumeClaim 'mine'",
    ),
}
IN_PROCESS = {
    "mount path": (
        mounts("/data", emptyDir={}),
        r"volumeMounts\[0]\.mountPath: nothing can be mounted at /data in the process runtime.*`--runtime sandbox`",
    ),
}


def refuse(stage: Stage, body: Body, why: str) -> None:
    file = stage.write(beside("Secret", "tokens", stringData={"word": "x"}), body, name="bad.yaml")
    done = stage.run("run", file)

    assert done.code == 2, done.said
    assert re.search(rf"^{re.escape(file)}:\d+: error: .*\(GenericJob default/e2e\): {HERE}.*{why}", done.err, re.M), done.err
    assert NOTHING.search(done.err), done.err
    assert done.out == ""
    assert not [*stage.folder_of().glob("logs/*")]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_refused_before_anything_starts(process: Stage, case: str) -> None:
    refuse(process, *REFUSED[case])


@pytest.mark.parametrize("case", IN_SANDBOX)
def test_the_sandbox_refuses(sandbox: Stage, case: str) -> None:
    refuse(sandbox, *IN_SANDBOX[case])


@pytest.mark.parametrize("case", IN_PROCESS)
def test_the_process_runtime_refuses(process: Stage, case: str) -> None:
    refuse(process, *IN_PROCESS[case])


def test_a_refused_run_leaves_the_last_one_to_be_found(process: Stage) -> None:
    assert process.run("run", worker("echo I was here")).code == 0
    before = process.folder_of()

    assert process.run("run", REFUSED["no command"][0]).code == 2

    assert process.folder_of() == before
    assert process.run("logs", "e2e").out == "worker-0 | I was here\n"


TEXTS = {
    "broken yaml": ("a: [1,\nb: }", r"bad\.yaml:2:4: document 1: not valid YAML: "),
    "empty": ("", r"bad\.yaml: no documents in it"),
    "a list": ("- 1\n", r"bad\.yaml:1: document 1: expected a mapping that begins with `apiVersion:`"),
    "two of a name": ("{0}\n---\n{0}", r"job default/e2e is given twice"),
    "misspelt kind": ("apiVersion: batch.tensorstack.dev/v1beta1\nkind: GenericJop\n", r"did you mean .GenericJob"),
    "nothing to run": ("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n", r"there is no job in what was given"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_cannot_be_read_is_refused(process: Stage, case: str) -> None:
    text, why = TEXTS[case]
    file = process.folder / "bad.yaml"
    file.write_text(text.replace("{0}", Path(process.write(worker("true"))).read_text()))

    done = process.run("run", str(file))

    assert (done.code, done.out) == (2, "")
    assert re.search(why, done.err), done.err
    assert "Traceback" not in done.err
    assert not process.state.exists()


@pytest.mark.parametrize(("name", "why"), [("missing.yaml", "no such file"), ("home", "this is a directory")])
def test_a_file_that_is_none_is_refused(process: Stage, name: str, why: str) -> None:
    done = process.run("run", str(process.folder / name))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"trainwright: {process.folder / name}: {why}")


# -- commands that cannot be started ---------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "text").write_text("hello")
    (folder / "script").write_text("#!/no/such/interpreter\n")
    (folder / "nonsense").write_text("\0\1\2")
    for name in ("script", "nonsense"):
        (folder / name).chmod(0o755)
    return folder


UNSTARTABLE = {
    "not found": ("no-such-program", 127, r'"no-such-program": executable file not found in PATH'),
    "no such path": ("{}/missing", 127, r'missing".*(no such file|does not exist|not found)'),
    "not executable": ("{}/text", 126, r'text" is not executable \(mode 0644\)'),
    "a directory": ("{}", 126, r"is a directory, not a program"),
    "no interpreter": ("{}/script", 126, r'interpreter "/no/such/interpreter", which does not exist'),
    "nonsense": ("{}/nonsense", 126, r"nonsense"),
}


@pytest.mark.parametrize("case", UNSTARTABLE)
def test_a_command_that_cannot_be_started_is_told(stage: Stage, programs: Path, case: str) -> None:
    command, code, why = UNSTARTABLE[case]
    done = stage.run("run", job(role("worker", container(command.format(programs)))))

    assert done.code == 1, done.said
    assert re.search(why, done.out), done.out
    assert f"container main exited with code {code}" in done.out
    assert "hint:" in done.out
    assert done.err == ""


def test_a_working_directory_that_is_missing_is_told(stage: Stage) -> None:
    done = stage.run("run", job(role("worker", shell("true", workingDir="/no/such"))))

    assert done.code == 1
    assert 'the working directory "/no/such" does not exist' in done.out


# -- a name in use ---------------------------------------------------------------------------------------------------


def test_a_name_that_is_in_use_is_refused_until_it_is_free(process: Stage) -> None:
    first = process.start("run", worker("echo up; exec sleep 60"))
    first.until("worker-0 | up")

    second = process.run("run", worker("true"))

    assert (second.code, second.out) == (2, "")
    assert f"default/e2e is already being run by process {first.pid}" in second.err
    assert "`trainwright delete e2e`" in second.err
    assert process.run("run", "--namespace", "other", worker("true")).code == 0
    first.process.kill()
    first.end()
    assert process.run("run", worker("true")).code == 0


# -- files that are not for us ---------------------------------------------------------------------------------------


@needs_root
def test_another_user_is_told_what_it_may_not_read(process: Stage) -> None:
    """A manifest, and a state folder."""
    file = Path(process.write(worker("true"), name="secret.yaml"))
    file.chmod(0o600)
    done = as_nobody(process, "run", "--runtime", "process", str(file))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"trainwright: {file}: ")
    assert "ermission denied" in done.stderr

    file.chmod(0o644)
    process.state.mkdir(mode=0o700)
    done = as_nobody(process, "run", "--runtime", "process", str(file))
    assert done.returncode == 3, done.stderr
    assert f"the state folder {process.state} cannot be used: Permission denied" in done.stderr


def as_nobody(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    for folder in (stage.folder, *stage.folder.parents):
        if folder.owner() == "root" and folder.stat().st_mode & 0o077 == 0:
            pytest.skip(f"{folder} hides everything from others")
    command = [sys.executable, "-m", "trainwright", *words]
    return subprocess.run(
        command, user=65534, group=65534, cwd="/", env=stage.env, capture_output=True, text=True, check=False, timeout=30
    )


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)  # noqa: S607 - wherever it is
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - likewise


@needs_root
def test_a_job_that_fills_the_disk_with_its_log_succeeds_all_the_same(stage: Stage, small: Path) -> None:
    stage.env["TRAINWRIGHT_STATE"] = str(small / "state")
    much = 'i=0; while [ $i -lt 20000 ]; do echo "line $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"; i=$((i+1)); done'
    done = stage.run("run", "--no-logs", worker(much, replicas=2))

    assert done.code == 0, done.said
    assert "e2e succeeded" in done.out
    assert re.search(r"notice: .*(No space left|full)", done.out), done.out
    (folder,) = (small / "state/default/e2e").glob("2*")
    assert "phase: Succeeded" in (folder / "status.yaml").read_text()
    assert not [*stage.state.glob("*")]


@needs_root
def test_a_disk_that_is_full_already_is_a_clear_error(stage: Stage, small: Path) -> None:
    stage.env["TRAINWRIGHT_STATE"] = str(small / "state")
    (small / "much").write_bytes(b"x" * (1 << 20))
    done = stage.run("run", worker("true"))

    assert done.code == 3, done.said
    assert "No space left on device" in done.err
    assert "Traceback" not in done.said
