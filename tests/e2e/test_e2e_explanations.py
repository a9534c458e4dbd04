# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S108 - paths inside pods
"""What a run says of an end: exactly what happened, and nothing that did not."""

from datetime import datetime
from typing import Any

import pytest
from e2e_jobs import Body, container, job, python, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace

pytest_plugins = ["e2e_fixtures"]

_KILL = "import os, signal; os.kill(os.getpid(), signal.{})"
#: Command; what is told of the cause; what the hint says, if there is one.
ENDS: dict[str, tuple[Body, str, str]] = {
    "a command that is missing": (
        container("no-such-command"),
        "container main could not be started (exit code 127, ContainerCannotRun): "
        '"no-such-command": executable file not found in PATH',
        "the command was not found",
    ),
    "its own 127": (shell("exit 127"), "container main exited with code 127", ""),
    "its own 126": (shell("exit 126"), "container main exited with code 126", ""),
    "a shell that misses a command": (
        shell("no-such-command"),
        "container main exited with code 127",
        "a shell did not find a command",
    ),
    "SIGKILL": (
        python(_KILL.format("SIGKILL")),
        "container main was killed by SIGKILL (exit code 137)",
        "a user or another process sent SIGKILL, or the kernel",
    ),
    "its own 137": (shell("exit 137"), "container main exited with code 137", ""),
    "its own 143": (shell("exit 143"), "container main exited with code 143", ""),
    "SIGBUS": (python(_KILL.format("SIGBUS")), "container main was killed by SIGBUS (exit code 135)", "/dev/shm"),
}


def ends(done: FinishedCommand) -> dict[str, dict[str, Any]]:
    """How each job ended, by its name."""
    return {item["name"]: item for item in done.items if item["type"] == "end"}


@pytest.mark.parametrize("case", ENDS)
def test_the_cause_is_what_happened(workspace: Workspace, case: str) -> None:
    command, cause, hint = ENDS[case]
    done = workspace.run("run", "-o", "json", job(role("worker", command)))

    assert done.code == 1, done.said
    end = ends(done)["e2e"]
    assert end["cause"].startswith(cause)
    assert hint in end.get("hint", "")
    assert bool(hint) == bool(end.get("hint"))
    if "own" in case:
        assert end["cause"] == cause
        assert "signal" not in end
        assert "not found" not in done.out
        assert "SIGKILL" not in done.out


def test_a_full_shared_memory_is_explained(sandbox: Workspace) -> None:
    program = (
        "import mmap; file = open('/dev/shm/big', 'w+b'); file.truncate(1 << 23); "
        "memory = mmap.mmap(file.fileno(), 1 << 23); memory[:] = bytes(1 << 23)"
    )
    shm = "/dev/shm"
    main = python(program, volumeMounts=[{"name": "shm", "mountPath": shm}])
    volume = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    done = sandbox.run("run", job(role("worker", main, volumes=[volume])))

    assert done.code == 1, done.said
    assert "cause:   container main was killed by SIGBUS (exit code 135)" in done.out
    assert "/dev/shm was probably full; mount an emptyDir with `medium: Memory` and a larger `sizeLimit`" in done.out


def test_each_job_has_its_own_duration(process: Workspace) -> None:
    """From the line that says that the job is there to the line that says that it has succeeded, within half a second.

    The first job takes far less than a second, and the run goes on without it.
    """
    flag = process.work / "first-is-over"
    first = worker(f"touch {flag}", name="first")
    second = worker(f"while [ ! -e {flag} ]; do sleep 0.1; done; sleep 3", name="second")
    done = process.run("run", "-o", "json", process.write(first, second))

    assert done.code == 0, done.said
    assert ends(done)["second"]["duration"] > ends(done)["first"]["duration"] + 1.5
    for name, end in ends(done).items():
        told = {item["phase"]: item["at"] for item in done.items if item["type"] == "job" and item["job"] == name}
        took = datetime.fromisoformat(told["Succeeded"]) - datetime.fromisoformat(told["Pending"])
        assert abs(end["duration"] - took.total_seconds()) < 0.5


def training(**annotations: str) -> Body:
    return {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": "e2e", "annotations": annotations},
        "spec": {
            "replicaSpecs": {
                "trainer": {"template": {"spec": {"containers": [shell("echo up; exec sleep 60", name="aitj-main")]}}}
            }
        },
    }


def test_the_annotation_that_ended_a_job_is_named(process: Workspace) -> None:
    run = process.start("run", training(note="x"))
    run.until("trainer-0 | up")
    assert process.run("annotate", "e2e", "preempted=the rack is needed").code == 0
    done = run.end()

    assert done.code == 1, done.said
    assert "e2e failed after" in done.out
    assert ": annotation preempted asked for this end: the rack is needed\n" in done.out
    assert "TrainingJobPreempted: annotation preempted asked for this end: the rack is needed" in done.out
    assert "cause:" not in done.out


def tfjob(command: Body, **policy: Any) -> Body:
    one = {"restartPolicy": "OnFailure", "template": {"spec": {"containers": [command]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "e2e"},
        "spec": {"tfReplicaSpecs": {"Worker": one}, "runPolicy": policy},
    }


def test_a_limit_of_1_is_explained(process: Workspace) -> None:
    done = process.run("run", tfjob(shell("exit 3", name="tensorflow"), backoffLimit=1))

    assert done.code == 1, done.said
    # Its kubelet restarts it in place before anybody can say no, and that restart reaches the limit.
    assert "the restart limit (backoffLimit) of 1 is reached: 1 restart counts against it" in done.out


def test_a_limit_of_1_allows_no_new_pod(process: Workspace) -> None:
    body = tfjob(shell("exit 137", name="tensorflow"), backoffLimit=1)
    body["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    done = process.run("run", body)

    assert done.code == 1, done.said
    assert (
        "the restart limit (backoffLimit) of 1 is reached: the first restart would reach it, so none was made"
        in done.out
    )


def test_a_crash_loop_is_not_shown_as_running(process: Workspace) -> None:
    run = process.start("run", "-o", "json", tfjob(shell("exit 3", name="tensorflow")))
    run.until('"phase":"CrashLoopBackOff"')
    shown = process.run("get", "e2e")
    run.signal(2)
    items = run.end().items

    row = next(line for line in shown.out.splitlines() if line.startswith("Worker-0"))
    assert row.split()[:2] == ["Worker-0", "CrashLoopBackOff"]
    assert "exit code 3: back-off" in row
    (backing_off,) = [item for item in items if item.get("phase") == "CrashLoopBackOff"][:1]
    assert backing_off["reason"].startswith("exit code 3: back-off")
    assert not [item for item in items if item.get("phase") == "Running" and "back-off" in item.get("reason", "")]
