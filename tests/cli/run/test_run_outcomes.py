# SPDX-License-Identifier: Apache-2.0
"""`trainwright run` to its end with a real engine: outcomes, exit codes, what is printed, what is kept and what not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from run_command import SCRIPT, CommandRunner, demo, processes, worker
from run_objects import role, template

from patience import PATIENCE
from trainwright.cli.output import as_yaml
from trainwright.model.job import Body


@pytest.fixture
def runner(tmp_path: Path) -> CommandRunner:
    return CommandRunner(tmp_path)


def test_success(runner: CommandRunner) -> None:
    done = runner.run(demo(worker("echo hello from $(rank); pwd", replicas=2)))

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "notice: runtime process: pods are plain processes" in lines[0]
    assert {f"worker-{index} | hello from {index}" for index in range(2)} < set(lines)
    assert f"worker-0 | {runner.folder}" in lines
    assert any(line.endswith("s  demo  Succeeded") for line in lines)
    assert lines[-2].startswith("demo succeeded after ")
    assert lines[-1] == f"logs and final status: {runner.latest()}"
    assert "\x1b" not in done.stdout


def test_what_is_kept_and_what_is_not(runner: CommandRunner) -> None:
    assert runner.run(demo()).returncode == 0

    kept = sorted(path.name for path in runner.latest().iterdir())
    assert kept == ["events.jsonl", "logs", "replicas.jsonl", "run.json", "status.json", "status.yaml"]
    events = [msgspec.json.decode(line) for line in (runner.latest() / "events.jsonl").read_bytes().splitlines()]
    assert "Succeeded" in [event["reason"] for event in events]
    assert [log.read_text() for log in runner.latest().glob("logs/demo-worker-0/*-main-0.log")] == ["hello\n"]
    assert not list(runner.state.rglob("*.sock"))


def test_failure_names_the_rule_the_replica_the_code_and_its_last_words(runner: CommandRunner) -> None:
    rules = [{"worker": [1]}]
    restart = {"policy": "OnFailure", "limit": 1}
    lines = "for i in 1 2 3; do echo step $i; done; if [ $(rank) = 1 ]; then echo doomed >&2; exit 3; fi; sleep 60"
    done = runner.run(demo(worker(lines, replicas=2, restartPolicy=restart), failureRules=rules))

    assert done.returncode == 1
    assert 'failed, which rule {"worker":[1]} names' in done.stdout
    assert "1 restart: " in done.stdout
    assert (
        '  rule:    {"worker":[1]}\n  replica: worker-1 (pod demo-worker-1)\n'
        "  cause:   container main exited with code 3; 1 of 1 restart was used\n"
        "  last lines of worker-1:\n    | step 1\n    | step 2\n    | step 3\n    | doomed\n"
    ) in done.stdout
    assert "notice: every job has its outcome: ending 1 replica, each with its grace period" in done.stdout

    told = runner.call("get", "demo")
    assert (told.returncode, told.stderr) == (0, "")
    assert "    | doomed\n" in told.stdout


@pytest.mark.parametrize(
    ("command", "code", "hint"),
    [
        pytest.param(["no-such-command"], 127, "the command was not found", id="not found"),
        pytest.param(["/etc/passwd"], 126, "needs `chmod +x`", id="not executable"),
        pytest.param(["sh", "-c", "kill -9 0"], 137, "a user or another process sent SIGKILL", id="killed"),
        pytest.param(
            ["python3", "-c", "raise OSError(98, 'Address already in use')"],
            1,
            "--runtime sandbox",
            id="address in use",
        ),
    ],
)
def test_failures_come_with_hints(runner: CommandRunner, command: list[str], code: int, hint: str) -> None:
    pod = {"spec": {"containers": [{"name": "main", "image": "busybox", "command": command}]}}
    done = runner.run(demo(role("worker", 1) | {"template": pod}), args=("-o", "json"))

    end = msgspec.json.decode(done.stdout.splitlines()[-1])
    assert (done.returncode, end["type"], end["exitCode"], end["code"]) == (1, "end", 1, code)
    assert hint in end["hint"]


def test_json_for_programs(runner: CommandRunner) -> None:
    done = runner.run(demo(worker("printf 'a\\033[31mb\\n'")), args=("-o", "json"))

    items = [msgspec.json.decode(line) for line in done.stdout.splitlines()]
    assert {item["type"] for item in items} == {"notice", "job", "replica", "log", "event", "end"}
    assert [item["text"] for item in items if item["type"] == "log"] == ["a\x1b[31mb"]
    assert [item["phase"] for item in items if item["type"] == "job"][-1] == "Succeeded"
    assert [item["phase"] for item in items if item["type"] == "replica"][-1] == "Succeeded"
    assert items[-1]["outcome"] == "Succeeded"


def test_objects_beside_the_job_and_standard_input(runner: CommandRunner) -> None:
    secret: Body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "token"},
        "stringData": {"key": "sesame"},
    }
    service: Body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}}
    source = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}}
    job = demo(worker("echo open $KEY"))
    job["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"][0]["env"] = [source]
    done = runner.call("run", "--runtime", "process", "-n", "lab", "-", text=as_yaml([job, service, secret]))

    assert (done.returncode, done.stderr) == (0, "")
    assert "worker-0 | open sesame" in done.stdout
    assert "notice: skipped, because a local run does not use it: v1 Service default/front" in done.stdout
    assert (runner.state / "lab/demo/latest/status.yaml").exists()


def test_several_jobs_side_by_side_and_the_worst_exit_code(runner: CommandRunner) -> None:
    done = runner.run(demo(), demo(worker("echo bad; exit 1"), name="other"), args=("--no-logs",))

    assert done.returncode == 1
    assert "demo succeeded after " in done.stdout
    assert "other failed after " in done.stdout
    assert "demo/worker-0  Succeeded" in done.stdout
    assert " | hello" not in done.stdout
    assert runner.latest("other") == runner.latest("demo")
    assert runner.call("logs", "other").stdout == "bad\n"


def test_changes_on_the_command_line(runner: CommandRunner) -> None:
    done = runner.run(demo(), args=("--set", "spec.replicaSpecs[worker].replicas=2", "--set", "spec.cleanUpPolicy=All"))

    assert done.returncode == 0
    assert "worker-1 | hello" in done.stdout


@pytest.mark.parametrize("keep", [True, False])
def test_files_of_replicas_are_kept_on_request(runner: CommandRunner, keep: bool) -> None:
    job = demo(worker("echo content > /data/file"))
    spec = job["spec"]["replicaSpecs"][0]["template"]["spec"]
    spec["volumes"] = [{"name": "data", "emptyDir": {}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    done = runner.call("run", *["--keep"] * keep, runner.write(job))
    if "mountPath" in done.stderr:
        pytest.skip("no sandbox here, so no mounts")

    assert done.returncode == 0
    kept = [file.read_text() for file in runner.latest().glob("pods/*/volumes/data/file")]
    assert kept == ["content\n"] * keep


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            {"cleanUpPolicy": "Most"}, "spec.cleanUpPolicy: expected one of All, None, Unfinished", id="invalid"
        ),
        pytest.param(
            {"replicaSpecs": [role("worker", 1, template=template(containers=[{"name": "a", "image": "b"}]))]},
            "spec.replicaSpecs[0].template.spec.containers[0].command: missing; the image is not used here",
            id="no command",
        ),
        pytest.param(
            {
                "replicaSpecs": [
                    role(
                        "worker",
                        1,
                        template=template(
                            containers=[
                                {
                                    "name": "a",
                                    "image": "b",
                                    "command": ["true"],
                                    "resources": {"requests": {"cpu": "4096"}},
                                }
                            ]
                        ),
                    )
                ]
            },
            "can never fit",
            id="no machine is that large",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_starts(runner: CommandRunner, change: Body, told: str) -> None:
    job = demo()
    job["spec"] |= change
    done = runner.run(job)

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "job-1.yaml:" in done.stderr
    assert "trainwright: nothing was started" in done.stderr
    assert not list(runner.state.glob("default/demo/2*"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("run", "nowhere.yaml"), "trainwright: nowhere.yaml: no such file"),
        (("run", "--timeout", "soon", "x"), "'soon' is not a duration"),
        (("run", "--set", "nonsense", "x"), "expected PATH=VALUE"),
        (("run", "-n", "Bad_", "x"), "is not a valid namespace"),
        (("get", "demo"), "there is no job 'demo'"),
        (("logs", "demo"), "there is no job 'demo'"),
        (("exec", "demo", "worker-0", "--", "ls"), "there is no job 'demo'"),
        (("scale", "demo", "worker"), "expected ROLE=NUMBER, such as worker=4; found 'worker'"),
        (("annotate", "demo", "nothing"), "expected KEY=VALUE to set an annotation"),
    ],
)
def test_wrong_usage(runner: CommandRunner, args: tuple[str, ...], told: str) -> None:
    done = runner.call(*args)

    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_a_state_folder_that_cannot_be_used(runner: CommandRunner) -> None:
    runner.state.write_text("a file")
    done = runner.run(demo())

    assert done.returncode == 3
    assert "cannot be used: Not a directory; set TRAINWRIGHT_STATE" in done.stderr


@pytest.fixture
def disk(runner: CommandRunner) -> Iterator[Path]:
    """A state folder with little room."""
    runner.state.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(runner.state)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("may not mount here")
    yield runner.state
    subprocess.run(["umount", runner.state], check=True)  # noqa: S607


def test_a_full_disk_ends_no_job_and_the_status_is_kept(runner: CommandRunner, disk: Path) -> None:
    done = runner.run(demo(worker("head -c 3000000 /dev/zero | tr '\\0' x | fold -w 99; echo; exit 0")))

    assert done.returncode == 0
    assert "No space left on device" in done.stdout or "no space left on device" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "phase: Succeeded" in (runner.latest() / "status.yaml").read_text()


def test_a_full_disk_under_the_output_ends_no_job(runner: CommandRunner) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [SCRIPT, "run", "--runtime", "process", runner.write(demo())],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=runner.env,
            cwd=runner.folder,
            timeout=PATIENCE,
            check=False,
        )

    assert done.returncode == 0
    assert done.stderr == "trainwright: the output could not be written: No space left on device\n"


def test_nobody_reads_any_more(runner: CommandRunner) -> None:
    """As in `trainwright run job.yaml | head -1`: nothing may be left behind."""
    word = f"nobody-reads-{os.getpid()}"
    file = runner.write(demo(worker("while true; do echo tick; sleep 0.05; done", f": {word}")))
    words = f"'{SCRIPT}' run --runtime process {file} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", words],  # noqa: S607
        capture_output=True,
        text=True,
        env=runner.env,
        timeout=PATIENCE,
        check=False,
    )

    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr == ""
    assert processes(word) == []


def test_no_more_is_imported_than_is_needed(runner: CommandRunner) -> None:
    code = "import sys; from trainwright.cli.main import run\nrun(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        [*words, "run", "--runtime", "process", runner.write(demo())],
        capture_output=True,
        text=True,
        env=runner.env,
        cwd=runner.folder,
        timeout=PATIENCE,
        check=False,
    )
    assert not {"rich", "prometheus_client", "aiohttp"} & set(done.stderr.split())

    done = subprocess.run(
        [*words, "logs", "demo"], capture_output=True, text=True, env=runner.env, timeout=PATIENCE, check=False
    )
    assert "hello" in done.stdout
    assert not {"rich", "asyncio", "yaml"} & set(done.stderr.split())
