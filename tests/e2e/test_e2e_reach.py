# SPDX-License-Identifier: Apache-2.0
"""A live run from another terminal: exec, logs, get, annotate, scale, suspend, resume, delete."""

import json
import os
import re
import signal
import time

from e2e_jobs import Body, job, role, shell, worker
from e2e_workspace import EXAMPLES, RunningCommand, Workspace, until
from test_e2e_views import Screen, until_seen

from patience import PATIENCE

pytest_plugins = ["e2e_fixtures"]


def sleeper(workspace: Workspace, replicas: int = 2) -> RunningCommand:
    waiting = "trap 'echo leaving; exit 0' TERM; echo up $(rank) of $(replicas[worker]); while :; do sleep 0.05; done"
    live = workspace.start("run", job(role("worker", shell(waiting), replicas=replicas)))
    until(lambda: live.said.count(" | up ") == replicas, "all are up")
    return live


def end(live: RunningCommand) -> None:
    live.signal(signal.SIGINT)
    assert live.end().code == 130


def test_a_command_in_a_replica_sees_what_the_replica_sees(workspace: Workspace) -> None:
    live = sleeper(workspace)

    words = "echo $HOSTNAME; pwd; hostname; ls /proc | grep -c '^[0-9]'"
    tell = workspace.run("exec", "e2e", "worker-1", "--", "sh", "-c", words)
    assert tell.code == 0, tell.said
    name, where, host, processes = tell.out.split()
    assert (name, where) == ("e2e-worker-1", str(workspace.work))
    assert workspace.runtime == "process" or (host == "e2e-worker-1" and int(processes) < 12)
    assert workspace.run("exec", "e2e", "worker-1", "--", "sh", "-c", "exit 7").code == 7
    assert workspace.run("exec", "e2e", "e2e-worker-0", "--", "sh", "-c", "kill -9 $$").code == 137
    piped = workspace.run("exec", "e2e", "worker-0", "--", "sh", "-c", "sort; echo bad >&2", given="b\na\n")
    assert (piped.code, piped.out, piped.err) == (0, "a\nb\n", "bad\n")
    much = workspace.run("exec", "e2e", "worker-0", "--", "cat", given="x" * 1_000_000)
    assert len(much.out) == 1_000_000
    end(live)


def test_a_command_that_is_not_found_exits_as_in_a_shell(process: Workspace) -> None:
    live = sleeper(process, 1)
    missing = process.run("exec", "e2e", "worker-0", "--", "no-such-program")
    end(live)

    assert "no-such-program" in missing.err
    assert missing.code == 127


def test_a_command_has_a_terminal_if_there_is_one(workspace: Workspace) -> None:
    live = sleeper(workspace, 1)
    words = workspace.words("exec", "e2e", "worker-0", "--", "sh", "-c", "tty; stty size; read x; echo got $x; exit 5")
    screen = Screen(["setsid", "--ctty", *words], cwd=workspace.work, env=workspace.env | {"TERM": "xterm"})
    until_seen(screen, "30 100")
    os.write(screen.master, b"word\n")
    screen.read(PATIENCE)

    assert screen.process.wait(PATIENCE) == 5
    assert "got word" in screen.text
    assert "not a tty" not in screen.text
    screen.close()
    end(live)


def test_a_command_whose_client_is_gone_is_ended(workspace: Workspace) -> None:
    live = sleeper(workspace, 1)
    client = workspace.start("exec", "e2e", "worker-0", "--", "sh", "-c", "sleep 303 & sleep 303")
    until(lambda: len([one for one in workspace.pids("sleep 303").values() if one.startswith("sleep")]) == 2)

    client.process.kill()
    client.end()

    until(lambda: not workspace.pids("sleep 303"))
    end(live)


def test_a_worker_is_killed_from_inside_as_the_quickstart_says(sandbox: Workspace) -> None:
    """By the number that it prints itself, which is that of its own PID space."""
    env = "spec.replicaSpecs[coordinator].template.spec.containers[train].env[PACE]"
    run = sandbox.start("run", "--set", f"{env}.value='0.15'", str(EXAMPLES / "quickstart.yaml"))
    run.until("worker-1 | worker 1 has")
    run.until("step  2/40")
    (number,) = re.findall(r"worker-1 \| worker 1 has \d+ samples, and the process id (\d+)", run.said)

    assert sandbox.run("exec", "quickstart", "worker-1", "--", "kill", "-9", number).code in (0, 137)
    run.until("worker 1 is gone")
    done = run.end()
    assert done.code == 0, done.said


def test_logs_follow_and_stay(process: Workspace) -> None:
    go = process.work / "go"
    tick = f"for i in 1 2 3 4 5; do echo tick $i; sleep 0.1; done; until [ -e {go} ]; do sleep 0.05; done; echo tick 6"
    live = process.start("run", worker(tick, replicas=2))
    live.until("| tick 1")
    follow = process.start("logs", "-f", "e2e")

    now = process.run("logs", "e2e", "worker-0")
    assert now.out.startswith("tick 1\n")
    assert "tick 6" not in now.out
    go.touch()
    done, followed = live.end(), follow.end()

    assert done.code == 0, done.said
    assert followed.code == 0, followed.said
    for replica in ("worker-0", "worker-1"):
        assert re.findall(rf"^{replica} \| tick (\d)$", followed.out, re.M) == list("123456")
    assert process.run("logs", "--tail", "1", "e2e", "worker-1").out == "tick 6\n"


def test_get_shows_the_job_its_replicas_and_how_it_ended(workspace: Workspace) -> None:
    live = sleeper(workspace)

    table = workspace.run("get", "e2e")
    assert re.search(r"^default +e2e +GenericJob +Running +2/2", table.out, re.M), table.out
    assert re.search(r"^worker-1 +Running +node-0", table.out, re.M)
    assert re.search(r"default +e2e", workspace.run("get").out)
    body = json.loads(workspace.run("get", "-o", "json", "e2e").out)
    assert body["status"]["phase"] == "Running"
    assert workspace.run("get", "-o", "name").out.strip().endswith("e2e")
    end(live)

    after = workspace.run("get", "e2e")
    assert after.code == 0
    assert "e2e was interrupted after" in after.out
    assert "e2e" not in workspace.run("get").out
    assert "e2e" in workspace.run("get", "-a").out


def test_annotations_come_and_go(process: Workspace) -> None:
    live = sleeper(process, 1)

    assert process.run("annotate", "e2e", "a.b/note=hello there").code == 0
    assert annotations(process) == {"a.b/note": "hello there"}
    again = process.run("annotate", "e2e", "a.b/note=other")
    assert again.code != 0
    assert "--overwrite" in again.err
    assert process.run("annotate", "--overwrite", "e2e", "a.b/note=other").code == 0
    assert process.run("annotate", "e2e", "a.b/note-").code == 0
    assert annotations(process) == {}
    end(live)


def annotations(workspace: Workspace) -> Body:
    body: Body = json.loads(workspace.run("get", "-o", "json", "e2e").out)
    return dict(body["metadata"].get("annotations") or {})


def test_a_job_is_scaled_up_and_down(process: Workspace) -> None:
    live = sleeper(process, 1)

    up = process.run("scale", "e2e", "worker=3")
    assert up.code == 0, up.said
    until(lambda: "worker-2 | up" in live.said)
    down = process.run("scale", "e2e", "worker=1")
    assert down.code == 0, down.said
    until(lambda: "worker-2" not in process.run("get", "e2e").out)
    assert "worker-2 | leaving" in live.said
    assert "worker-0 | leaving" not in live.said
    bad = process.run("scale", "e2e", "wroker=2")
    assert bad.code == 2
    assert "worker" in bad.err
    end(live)


def test_a_job_that_is_suspended_has_no_pods_and_goes_on(workspace: Workspace) -> None:
    live = workspace.start("run", worker(f"echo up; until [ -e {workspace.work}/go ]; do sleep 0.05; done", replicas=2))
    until(lambda: live.said.count("| up") == 2)

    held = workspace.run("suspend", "e2e")
    assert held.code == 0, held.said
    until(lambda: not workspace.pids("until ["))
    assert "Paused" in workspace.run("get", "e2e").out
    time.sleep(0.3)
    assert live.process.poll() is None
    on = workspace.run("resume", "e2e")
    assert on.code == 0, on.said
    until(lambda: live.said.count("| up") == 4)
    (workspace.work / "go").touch()

    done = live.end()
    assert done.code == 0, done.said


def test_a_job_is_deleted_as_its_replicas_wish_to_be_ended(workspace: Workspace) -> None:
    live = sleeper(workspace)

    gone = workspace.run("delete", "e2e")
    assert gone.code == 0, gone.said
    done = live.end()

    assert done.code == 1
    assert done.out.count("| leaving") == 2
    assert "the job was deleted before it ended" in done.out


def test_names_that_are_wrong_are_told_with_the_nearest(process: Workspace) -> None:
    live = sleeper(process, 1)
    commands = {
        "exec": ("worker-0", "--", "true"),
        "logs": (),
        "get": (),
        "annotate": ("a=b",),
        "scale": ("worker=2",),
        "suspend": (),
        "resume": (),
        "delete": (),
    }
    for command, more in commands.items():
        done = process.run(command, "e3e", *more)
        assert done.code in (2, 3), (command, done.said)
        assert "e2e" in done.err, (command, done.err)
        assert "Traceback" not in done.err
    for words in (["exec", "e2e", "wroker-0", "--", "true"], ["logs", "e2e", "wroker-0"]):
        done = process.run(*words)
        assert done.code == 2, done.said
        assert "worker-0" in done.err, done.err
    end(live)


def test_without_a_run_all_say_so(process: Workspace) -> None:
    done = process.run("exec", "e2e", "worker-0", "--", "true")

    assert done.code in (2, 3)
    assert done.err.startswith("trainwright: ")
    assert process.run("get").code == 0


def test_the_socket_is_private(process: Workspace) -> None:
    live = sleeper(process, 1)
    folder = process.folder_of()

    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "engine.sock").is_socket()
    end(live)


def test_debug_mode_waits_to_be_entered(process: Workspace) -> None:
    live = process.start("run", str(EXAMPLES / "local/debug.yaml"))
    live.until("2 of 2 running")

    done = process.run("exec", "debug", "worker-1", "--", "sh", "-c", 'python3 -c "$PROGRAM"')

    assert done.out.startswith("training as worker 1 of 2 with ['127."), done.said
    end(live)


def test_a_job_that_begins_paused_is_resumed_and_goes_on_from_where_it_was(process: Workspace) -> None:
    """With a folder of our own: the example's is everybody's."""
    text = (EXAMPLES / "local/pause.yaml").read_text()
    file = process.folder / "pause.yaml"
    file.write_text(text.replace("/var/tmp", str(process.work)))  # noqa: S108 - as it is written there
    live = process.start("run", str(file))
    live.until("Paused")
    assert process.run("resume", "pause").code == 0
    live.until("trainer-0 | step   2/100")

    assert process.run("suspend", "pause").code == 0
    live.until("asked to leave, saved step")
    assert process.run("resume", "pause").code == 0

    live.until("| resumed from step")
    end(live)
