# SPDX-License-Identifier: Apache-2.0
"""Bad input: every line says what is wrong and where, with the right exit code, no traceback, and nothing left."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_jobs import Body, beside, container, job, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace

pytest_plugins = ["e2e_fixtures"]

HERE = r"spec\.replicaSpecs\[0]\.template\.spec"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")


def asks(**fields: Any) -> Body:
    return job(role("worker", shell("true", **fields)))


def mounts(path: str, volume: Body, **mount: Any) -> Body:
    mounted = [{"name": "v", "mountPath": path, **mount}]
    return job(role("worker", shell("true", volumeMounts=mounted), volumes=[{"name": "v", **volume}]))


def from_secret(name: str, key: str) -> Body:
    return asks(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}])


REFUSED = {
    "no-such-secret": (
        from_secret("token", "word"),
        r"env\[0]\.valueFrom\.secretKeyRef\.name: there is no Secret 'token'; .*did you mean `tokens`\?",
    ),
    "no-such-key": (
        from_secret("tokens", "wort"),
        r"Secret 'tokens' has no key 'wort'; it has word; did you mean `word`",
    ),
    "no-such-settings": (
        asks(envFrom=[{"configMapRef": {"name": "settings"}}]),
        r"containers\[0]\.envFrom\[0]\.configMapRef\.name: there is no ConfigMap 'settings'",
    ),
    "too-much-cpu": (
        asks(resources={"requests": {"cpu": "1000"}}),
        r"containers\[0]\.resources: can never fit: node-0: cpu: needs 1000, this node has \d",
    ),
    "too-much-memory": (
        asks(resources={"requests": {"memory": "64Ti"}}),
        r"containers\[0]\.resources: can never fit: node-0: memory: needs 64Ti, this node has [\d.]+",
    ),
    "too-many-gpus": (
        asks(resources={"limits": {"nvidia.com/gpu": 999}}),
        r"nvidia\.com/gpu: needs 999, this node has .*`--gpus N` pretends",
    ),
    "no-command": (
        job(role("worker", {"name": "main", "image": "python:3"})),
        r"containers\[0]\.command: missing; the image is not used here.*name the program to run",
    ),
    "no-host-path": (
        mounts("/no/such/path", {"hostPath": {"path": "/no/such/path"}}),
        r"volumes\[0]\.hostPath\.path: there is no /no/such/path on this machine; `type: DirectoryOrCreate` makes it",
    ),
}
IN_SANDBOX = {
    "nfs": (
        mounts("/data", {"nfs": {"server": "a", "path": "/"}}),
        r"volumes\[0]: nfs is not supported here; expected one of emptyDir",
    ),
    "no-claim": (
        mounts("/data", {"persistentVolumeClaim": {"claimName": "mine"}}),
        r"claimName: there is no PersistentVolumeClaim 'mine'",
    ),
}
IN_PROCESS = {
    "mount-path": (
        mounts("/data", {"emptyDir": {}}),
        r"volumeMounts\[0]\.mountPath: nothing can be mounted at /data in the process runtime.*`--runtime sandbox`",
    ),
}


@pytest.mark.parametrize("runtime", ["sandbox", "process"])
def test_what_cannot_be_had_is_refused_before_anything_starts(tmp_path: Path, no_sandbox: str, runtime: str) -> None:
    """All of it is told at once, each with its place."""
    if runtime == "sandbox" and no_sandbox:
        pytest.skip(no_sandbox)
    workspace, table = Workspace(tmp_path, runtime), REFUSED | (IN_SANDBOX if runtime == "sandbox" else IN_PROCESS)
    secret = beside("Secret", "tokens", stringData={"word": "x"})
    bodies = [body | {"metadata": {"name": name}} for name, (body, _) in table.items()]
    file = workspace.write(secret, *bodies)

    done = workspace.run("run", file)

    assert (done.code, done.out) == (2, ""), done.said
    for name, (_, why) in table.items():
        found = rf"^{re.escape(file)}:\d+: error: document \d+ \(GenericJob default/{name}\): {HERE}.*{why}"
        assert re.search(found, done.err, re.MULTILINE), (name, done.err)
    assert f"trainwright: nothing was started: this machine cannot run the jobs ({len(table)} problems)" in done.err
    assert workspace.left() == []


IMPOSSIBLE = {
    "sub path": mounts("/data", {"emptyDir": {}}, subPath="../../x"),
    "item": mounts("/data", {"configMap": {"name": "cm", "items": [{"key": "a", "path": "../../x"}]}}),
    "field": asks(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.nonsense"}}}]),
    "container name": job(role("worker", shell("true", name="../../x"))),
    "volume name": job(
        role(
            "worker",
            shell("true", volumeMounts=[{"name": "../../x", "mountPath": "/data"}]),
            volumes=[{"name": "../../x", "emptyDir": {}}],
        )
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_no_cluster_would_take_is_refused_too(sandbox: Workspace, case: str) -> None:
    settings = beside("ConfigMap", "cm", data={"a": "b"})
    done = sandbox.run("run", "--timeout", "0.5", sandbox.write(settings, IMPOSSIBLE[case]))

    assert (done.code, done.out) == (2, ""), done.said


ODD = {
    "base64": beside("Secret", "s", data={"a": "!!!"}),
    "key": beside("ConfigMap", "s", data={"../x": "y"}),
    "name": beside("ConfigMap", "../x", data={"a": "y"}),
}


@pytest.mark.parametrize("case", ODD)
def test_an_object_beside_the_job_that_is_invalid_is_an_invalid_manifest(process: Workspace, case: str) -> None:
    file = process.write(ODD[case], worker("true"))
    done = process.run("run", file)

    assert (done.code, done.out) == (2, ""), done.said
    assert done.err.startswith(file)


def test_a_refused_run_leaves_the_last_one_to_be_found(process: Workspace) -> None:
    assert process.run("run", worker("echo I was here")).code == 0
    before = process.folder_of()

    assert process.run("run", REFUSED["no-command"][0]).code == 2

    assert process.folder_of() == before
    assert process.run("logs", "e2e").out == "I was here\n"


TEXTS = {
    "broken yaml": ("a: [1,\nb: }", r"bad\.yaml:2:4: document 1: not valid YAML: "),
    "two of a name": ("{0}\n---\n{0}", r"job default/e2e occurs twice in the input"),
    "misspelt kind": ("apiVersion: batch.tensorstack.dev/v1beta1\nkind: GenericJop\n", r"did you mean .GenericJob"),
    "nothing to run": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n",
        r"the files contain no job; expected at least one",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_cannot_be_read_is_refused(process: Workspace, case: str) -> None:
    text, why = TEXTS[case]
    file = process.folder / "bad.yaml"
    file.write_text(text.replace("{0}", Path(process.write(worker("true"))).read_text()))

    done = process.run("run", str(file))

    assert (done.code, done.out) == (2, "")
    assert re.search(why, done.err), done.err
    assert "Traceback" not in done.err
    assert not process.state.exists()


@pytest.mark.parametrize(("name", "why"), [("missing.yaml", "no such file"), ("home", "this is a directory")])
def test_a_file_that_is_none_is_refused(process: Workspace, name: str, why: str) -> None:
    done = process.run("run", str(process.folder / name))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"trainwright: {process.folder / name}: {why}")


# -- commands that cannot be started ---------------------------------------------------------------------------------


@pytest.fixture
def programs(workspace: Workspace) -> Path:
    """Where one stands: the sandbox has a /tmp of its own."""
    folder = workspace.work
    (folder / "text").write_text("hello")
    (folder / "script").write_text("#!/no/such/interpreter\n")
    (folder / "nonsense").write_text("\0\1\2")
    for name in ("script", "nonsense"):
        (folder / name).chmod(0o755)
    return folder


UNSTARTABLE = {
    "missing": ("no-such-program", 127, r'"no-such-program": executable file not found in PATH'),
    "path": ("{}/missing", 127, r'missing": no such file'),
    "text": ("{}/text", 126, r'text" is not executable \(mode 0644\)'),
    "folder": ("{}", 126, r"is a directory, not a program"),
    "interpreter": ("{}/script", 126, r'interpreter "/no/such/interpreter", which does not exist'),
    "nonsense": ("{}/nonsense", 126, r"nonsense"),
}


def test_commands_that_cannot_be_started_are_told(workspace: Workspace, programs: Path) -> None:
    words = {name: command.format(programs) for name, (command, _, _) in UNSTARTABLE.items()}
    jobs = [job(role("worker", container(word)), name=name) for name, word in words.items()]
    jobs.append(job(role("worker", shell("true", workingDir="/no/such")), name="nowhere"))
    done = workspace.run("run", "-o", "json", workspace.write(*jobs))

    assert (done.code, done.err) == (1, ""), done.said
    ends = {item["name"]: item for item in done.items if item["type"] == "end"}
    for name, (_, code, why) in UNSTARTABLE.items():
        assert (ends[name]["outcome"], ends[name]["code"]) == ("Failed", code), ends[name]
        assert re.search(why, ends[name]["cause"]), ends[name]
        assert bool(ends[name].get("hint")) == (name not in ("folder", "interpreter"))  # which say all there is to say
    assert 'the working directory "/no/such" does not exist.' in ends["nowhere"]["cause"]


# -- a name in use ---------------------------------------------------------------------------------------------------


def test_a_name_that_is_in_use_is_refused_until_it_is_free(process: Workspace) -> None:
    first = process.start("run", worker("echo up; exec sleep 60"))
    first.until("worker-0 | up")

    second = process.run("run", worker("true"))

    assert (second.code, second.out) == (2, "")
    assert f"default/e2e already runs in process {first.pid}" in second.err
    assert "`trainwright delete e2e`" in second.err
    assert process.run("run", "--namespace", "other", worker("true")).code == 0
    first.process.kill()
    first.end()
    assert process.run("run", worker("true")).code == 0


def test_of_runs_that_start_at_once_one_has_the_name(process: Workspace) -> None:
    file = process.write(worker("sleep 1"))
    runs = [process.start("run", file) for _ in range(3)]

    assert sorted(one.end().code for one in runs) == [0, 2, 2]


# -- what is not for us ----------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_told(process: Workspace) -> None:
    """A manifest, and a state folder; root is made to respect permissions."""
    run = meekly if os.geteuid() == 0 else Workspace.run
    file = Path(process.write(worker("true"), name="secret.yaml"))
    file.chmod(0)
    done = run(process, "run", "--runtime", "process", str(file))
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith(f"trainwright: {file}: ")
    assert "you have no permission to read this file" in done.err

    file.chmod(0o600)
    process.state.mkdir(mode=0)
    done = run(process, "run", "--runtime", "process", str(file))
    process.state.chmod(0o700)
    assert (done.code, done.out) == (3, ""), done.err
    assert f"the state folder {process.state} cannot be used: Permission denied" in done.err


def meekly(workspace: Workspace, *words: str, without: str = "-dac_override,-dac_read_search") -> FinishedCommand:
    """The command without some of root's privileges."""
    command = ["setpriv", f"--bounding-set={without}", *workspace.words(*words)]
    how: dict[str, Any] = {"cwd": workspace.work, "env": workspace.env, "timeout": 30}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    return FinishedCommand(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")
def test_root_without_privileges_is_served_by_plain_processes_and_told_why(process: Workspace) -> None:
    """As in a container."""
    done = meekly(process, "run", "--runtime", "auto", process.write(worker("echo hello")), without="-all")

    assert done.code == 0, done.said
    assert "worker-0 | hello" in done.out
    assert re.search(r"notice: runtime (sandbox|process: .*; the sandbox does not work here: )", done.out)


# -- a full disk -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)  # noqa: S607 - on any PATH
    yield folder
    subprocess.run(["umount", str(folder)], check=True)  # noqa: S607 - likewise


@needs_root
def test_a_job_that_fills_the_disk_with_its_log_succeeds_all_the_same(workspace: Workspace, small: Path) -> None:
    workspace.env["TRAINWRIGHT_STATE"] = str(small / "state")
    done = workspace.run("run", "--no-logs", worker("seq 1000000 1200000", replicas=2))

    assert done.code == 0, done.said
    assert "e2e succeeded" in done.out
    assert re.search(r"notice: .*(No space left|full)", done.out), done.out
    (folder,) = (small / "state/default/e2e").glob("2*")
    assert "phase: Succeeded" in (folder / "status.yaml").read_text()


@needs_root
def test_a_disk_that_is_full_already_is_a_clear_error(workspace: Workspace, small: Path) -> None:
    workspace.env["TRAINWRIGHT_STATE"] = str(small / "state")
    (small / "much").write_bytes(b"x" * (1 << 20))
    done = workspace.run("run", worker("true"))

    assert (done.code, done.out) == (3, ""), done.said
    assert "No space left on device" in done.err
    assert "Traceback" not in done.said
