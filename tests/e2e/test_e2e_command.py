# SPDX-License-Identifier: Apache-2.0
"""`trainwright run -- COMMAND`: replicas find each other, restart together, and are told what frameworks expect."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from e2e_workspace import EXAMPLES, Workspace, until

pytest_plugins = ["e2e_fixtures"]

#: Sums squares over a ring of real connections. Rank 0 listens at all addresses, as PyTorch's store does.
RING = (EXAMPLES / "local/ring.py").read_text(encoding="utf-8")


def script(workspace: Workspace, text: str, name: str = "train.py") -> None:
    (workspace.work / name).write_text(text, encoding="utf-8")


def test_four_replicas_reduce_over_the_address_that_they_are_told(workspace: Workspace) -> None:
    script(workspace, RING)
    done = workspace.run("run", "--replicas", "4", "--timeout", "100s", "--", "python3", "train.py")

    assert done.code == 0, done.said
    assert sorted(re.findall(r"(worker-\d) \| rank \d of 4: all-reduce (\d+)", done.out)) == [
        (f"worker-{rank}", "30") for rank in range(4)
    ]
    assert "train succeeded after" in done.out
    (workspace.work / "train.py").unlink()


def test_two_runs_at_once_do_not_meet(process: Workspace) -> None:
    """Plain processes share the machine's ports; rank 0 listens at all of its addresses."""
    script(process, RING)
    wait = f"import os, time\nopen(f'{process.work}/{{os.getpid()}}.up', 'w')\n"
    wait += f"while sum(name.endswith('.up') for name in os.listdir('{process.work}')) < 4: time.sleep(0.02)\n"
    script(process, wait + RING.replace("sys.stdout.write", "time.sleep(0.5); sys.stdout.write"))
    options = ("--replicas", "2", "--timeout", "100s")
    runs = [process.start("run", *options, "--name", name, "--", "python3", "train.py") for name in ("one", "two")]

    for run in runs:
        done = run.end()
        assert done.code == 0, done.said
        assert done.out.count("all-reduce 5") == 2
    for path in process.work.iterdir():
        path.unlink()


TELL = "import json, os; print(json.dumps({name: os.environ.get(name) for name in %r}))"
NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "CUDA_VISIBLE_DEVICES"]


def test_each_replica_knows_its_place_and_sees_its_own_gpus(process: Workspace) -> None:
    options = ("--gpus", "4", "--replicas", "2", "--gpus-per-replica", "2")
    done = process.run("run", *options, "--", "python3", "-c", TELL % (NAMES,))

    assert done.code == 0, done.said
    found = {rank: json.loads(text) for rank, text in re.findall(r"worker-(\d) \| ({.*})", done.out)}
    seen = [found[rank].pop("CUDA_VISIBLE_DEVICES").split(",") for rank in "01"]
    assert sorted(seen[0] + seen[1]) == ["0", "1", "2", "3"]
    for rank in "01":
        one = {"RANK": rank, "NODE_RANK": rank, "GROUP_RANK": rank}
        assert found[rank] == one | {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def test_what_was_typed_reaches_the_program_as_it_is(workspace: Workspace) -> None:
    words = ["$(rank)", "$$", "$(RANK) $$(x) $", "a b", "--", "-n", "{{x}}", "ä\n", ""]
    done = workspace.run("run", "--", "python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words)

    assert done.code == 0, done.said
    assert json.loads(done.out.partition("worker-0 | ")[2].splitlines()[0]) == words


def test_it_runs_where_one_stands_and_output_comes_at_once(process: Workspace) -> None:
    run = process.start("run", "--", "python3", "-c", "import os, time; print(os.getcwd()); time.sleep(60)")
    run.until(f"worker-0 | {process.work}")
    run.process.terminate()

    assert run.end().code == 143


def test_a_failure_restarts_all_together(workspace: Workspace) -> None:
    """Rank 1 fails once; without the others anew there would be nobody whom it could meet."""
    fail = f"""
import os, pathlib
mark = pathlib.Path({str(workspace.work)!r}, "failed")
print("begins")
"""
    late = """
if rank == 1 and not mark.exists():
    mark.touch()
    sys.exit(3)
"""
    script(workspace, fail + RING.replace("total = value", f"{late}\ntotal = value"))
    done = workspace.run(
        "run", "--replicas", "3", "--max-restarts", "1", "--timeout", "100s", "--", "python3", "train.py"
    )

    assert done.code == 0, done.said
    assert done.out.count("| begins") == 6
    assert done.out.count("all-reduce 14") == 3
    for path in workspace.work.iterdir():
        path.unlink()


def test_without_restarts_one_failure_ends_all(process: Workspace) -> None:
    code = "import os, sys, time; time.sleep(0.3) if os.environ['RANK'] == '1' else time.sleep(60); sys.exit(7)"
    done = process.run("run", "--replicas", "3", "--grace", "1", "--name", "one", "--", "python3", "-c", code)

    assert done.code == 1, done.said
    assert "container main exited with code 7" in done.out


# -- torchrun --------------------------------------------------------------------------------------------------------

#: Prints how it was called, then starts the script as the real one does, once for each process.
TORCHRUN = f"""#!{sys.executable}
import json, os, subprocess, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
script = sys.argv[1 + len(options):]
print(json.dumps(sys.argv[1:]))
each = int(options["nproc-per-node"])
running = []
for local in range(each):
    rank = int(options["node-rank"]) * each + local
    told = {{"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": int(options["nnodes"]) * each}}
    told |= {{"MASTER_ADDR": options["master-addr"], "MASTER_PORT": options["master-port"]}}
    env = os.environ | {{name: str(value) for name, value in told.items()}}
    running.append(subprocess.Popen([sys.executable, *script], env=env))
sys.exit(max(one.wait() for one in running))
"""


def test_torchrun_is_told_where_to_meet(workspace: Workspace) -> None:
    script(workspace, RING)
    script(workspace, TORCHRUN, "torchrun")  # in the work folder, which the sandbox sees
    (workspace.work / "torchrun").chmod(0o755)
    env = {"PATH": f"{workspace.work}{os.pathsep}{workspace.env['PATH']}"}
    options = ("--replicas", "2", "--nproc-per-node", "2", "--timeout", "100s", "--torchrun")
    done = workspace.run("run", *options, "--", "train.py", "--lr", "0.1", env=env)

    assert done.code == 0, done.said
    assert done.out.count("all-reduce 30") == 4  # two of them may share a line
    calls = [json.loads(text) for text in re.findall(r"worker-\d \| (\[.*\])", done.out)]
    assert sorted(call[2] for call in calls) == ["--node-rank=0", "--node-rank=1"]
    assert {(call[0], call[1]) for call in calls} == {("--nnodes=2", "--nproc-per-node=2")}
    assert all(call[5:] == ["train.py", "--lr", "0.1"] for call in calls)
    for path in workspace.work.iterdir():
        path.unlink()


def test_torchrun_has_a_process_for_each_gpu(process: Workspace) -> None:
    done = process.run("run", "--print", "--image", "x", "--gpus-per-replica", "4", "--torchrun", "--", "train.py")

    assert "- --nproc-per-node=4\n" in done.out
    assert "RANK" not in done.out  # torchrun tells its processes, and would be confused by ours


def test_without_torchrun_it_is_said_how_to_get_it(process: Workspace) -> None:
    empty = process.folder / "empty"
    empty.mkdir()
    done = process.run("run", "--torchrun", "--", "train.py", env={"PATH": str(empty)})

    assert (done.code, done.out) == (2, "")
    assert "--torchrun: there is no torchrun on your PATH; activate the environment that has PyTorch" in done.err


# -- the manifest ----------------------------------------------------------------------------------------------------


def test_what_is_printed_is_valid_and_runs(process: Workspace) -> None:
    script(process, RING)
    printed = process.run("run", "--replicas", "3", "--image", "python:3.12", "--print", "--", "python3", "train.py")
    assert (printed.code, printed.err) == (0, "")
    file = process.folder / "job.yaml"
    file.write_text(printed.out)

    assert process.run("validate", "--strict", str(file)).code == 0
    done = process.run("run", "--timeout", "100s", str(file))
    assert done.code == 0, done.said
    assert done.out.count("all-reduce 14") == 3
    assert not process.work.joinpath("state").exists()
    (process.work / "train.py").unlink()


def test_what_is_printed_has_the_changes_that_were_asked_for(process: Workspace) -> None:
    change = "spec.replicaSpecs[worker].template.spec.nodeSelector={zone: a}"
    words = ("run", "-n", "lab", "--set", change, "--image", "x", "--print", "--", "true")
    done = process.run(*words)

    assert (done.code, done.err) == (0, "")
    assert re.search(r"nodeSelector:\n +zone: a\n", done.out)
    assert "  namespace: lab\n" in done.out
    assert "namespace" not in process.run("run", "--image", "x", "--print", "--", "true").out
    refused = process.run("run", "--name", "A_b", "--print", "--", "true")
    assert (refused.code, refused.out) == (2, "")


def test_a_second_run_of_the_script_needs_a_name(process: Workspace) -> None:
    first = process.start("run", "--", "sleep", "60")
    first.until("worker-0  Running")
    second = process.run("run", "--", "sleep", "60")
    first.signal(signal.SIGINT)

    assert (second.code, second.out) == (2, "")
    assert re.search(
        r"default/sleep already runs in process .*; or give this job another name with --name$", second.err, re.M
    )
    assert first.end().code == 130


def test_a_secret_is_not_printed(process: Workspace) -> None:
    done = process.run("run", "--env", "TOKEN", "--image", "x", "--print", "--", "true", env={"TOKEN": "sesame"})

    assert done.code == 0
    assert "sesame" not in done.said
    assert "the manifest does not contain --env" in done.err


WRONG = {
    "no dashes": (["python3", "train.py"], r"python3: no such file; .*: trainwright run .* -- python3 train.py$"),
    "no dashes, and an option": (
        ["--replicas", "2", "python3", "train.py", "--lr", "1"],
        r"trainwright run --runtime process --replicas 2 -- python3 train.py --lr 1$",
    ),
    "a script": (["train.py"], r"train.py is a program, not a manifest; .* -- python3 train.py$"),
    "both": (["job.yaml", "--", "true"], r"give either files or a command after `--`, not both; found job.yaml before"),
    "no command": (["--"], r"there is no command after `--`"),
    "nothing": ([], r"give a FILE or a command to run, such as: trainwright run -- python3 train.py"),
    "for a command": (["--replicas", "2", "job.yaml"], r"--replicas works only with a command after `--`; .*--set"),
    "python with torchrun": (["--torchrun", "--", "python3.11", "train.py"], r"run --torchrun -- train.py$"),
    "processes without torchrun": (["--nproc-per-node", "2", "--", "true"], r"--nproc-per-node works only with"),
    "a name": (["--name", "A_b", "--", "true"], r"^trainwright: error: --name: 'A_b' becomes part of object names"),
    "an amount": (["--memory-per-replica", "8GB", "--", "true"], r"^\S+ error: --memory-per-replica: expected .*'8GB'"),
    "more than there is": (
        ["--gpus", "1", "--replicas", "2", "--gpus-per-replica", "1", "--", "true"],
        r"^trainwright: error: --gpus-per-replica and --replicas: can never fit: gang needs 2 pods at once: "
        r"nvidia.com/gpu: needs 2 together, all nodes have 1",
    ),
    "more than there is for one": (
        ["--cpus-per-replica", "9999", "--", "true"],
        r"\A\S+ error: --cpus-per-replica: can never fit: .*\ntrainwright: nothing was started: this machine .*\n\Z",
    ),
    "a rank": (["--env", "RANK=1", "--", "true"], r"--env RANK: `trainwright run` sets this variable for each replica"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_meant_is_refused(process: Workspace, name: str) -> None:
    words, expected = WRONG[name]
    script(process, "")
    done = process.run("run", *words)

    assert (done.code, done.out) == (2, "")
    assert re.search(expected, done.err, re.M), done.err
    assert "Traceback" not in done.err
    assert not process.state.exists(), "nothing was run, so nothing is kept"
    (process.work / "train.py").unlink()


def test_ctrl_c_and_the_other_commands_reach_it_by_its_name(process: Workspace) -> None:
    run = process.start("run", "--replicas", "2", "--name", "mine", "--", "sleep", "60")
    until(lambda: "2 of 2 running" in run.said)

    assert "mine" in process.run("get").out
    assert process.run("exec", "mine", "worker-1", "--", "sh", "-c", "echo $RANK").out == "1\n"
    run.process.send_signal(signal.SIGINT)
    assert run.end().code == 130
    assert Path(process.folder_of("mine"), "status.yaml").exists()
