# SPDX-License-Identifier: Apache-2.0
"""Devices of one machine and several runs: no device is ever given twice, and who waits is told for whom."""

import json
import os
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from e2e_jobs import Body, container, job, role, shell
from e2e_workspace import RunningCommand, Workspace, until

pytest_plugins = ["e2e_fixtures"]

GPU = "nvidia.com/gpu"
NPU = "huawei.com/Ascend910"
HELD = r"held by \S+ \(run (\S+), job default/first\) since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def asks(script: str, count: int, name: str, resource: str = GPU, **more: int) -> Body:
    """A job whose replicas each need so many devices."""
    return job(role("worker", shell(script, resources={"limits": {resource: count}}), **more), name=name)


def leases(workspace: Workspace) -> list[dict[str, str]]:
    """What `get --all-users` tells."""
    items: list[dict[str, str]] = json.loads(workspace.run("get", "--all-users", "-o", "json").out)["items"]
    return items


def waiting(workspace: Workspace, go: str = "go") -> str:
    return f"echo has $CUDA_VISIBLE_DEVICES; until [ -e {workspace.work}/{go} ]; do sleep 0.05; done"


def test_a_second_run_waits_and_says_who_holds_which_device_since_when(workspace: Workspace) -> None:
    first = workspace.start("run", "--gpus", "8", asks(waiting(workspace), 4, "first"))
    first.until("has 0,1,2,3")
    second = workspace.start("run", "--gpus", "8", asks("echo has $CUDA_VISIBLE_DEVICES", 5, "second"))
    second.until("0-3 held by")
    shown = workspace.run("get", "--all-users").out
    (workspace.work / "go").touch()
    done = second.end()

    assert first.end().code == 0
    assert done.code == 0, done.said
    (run,) = set(re.findall(rf"{re.escape(GPU)}: needs 5, 4 of 8 are free; 0-3 {HELD}", done.out))
    assert run == workspace.folder_of("first").name
    assert re.search(rf"{re.escape(GPU)} +0 +\S+ +default/first +first-worker-0 +{run} +\d+ +\d+s +held\n", shown)
    assert len(shown.splitlines()) == 5
    assert "no device of this machine is leased" in workspace.run("get", "--all-users").err


def test_runs_share_the_devices_that_are_free(process: Workspace) -> None:
    """Each run leases what its pods use, not all that it could."""
    runs = [process.start("run", "--gpus", "4", asks(waiting(process), 1, name, replicas=2)) for name in ("a", "b")]
    until(lambda: sum(run.said.count("| has ") for run in runs) == 4, "all have a device")
    assert sorted(one["device"] for one in leases(process)) == ["0", "1", "2", "3"]
    (process.work / "go").touch()
    done = [run.end() for run in runs]

    assert [one.code for one in done] == [0, 0]
    assert sorted(re.findall(r"\| has (\S*)", done[0].out + done[1].out)) == ["0", "1", "2", "3"]


def test_two_gangs_that_need_all_devices_run_one_after_the_other(process: Workspace) -> None:
    """Neither keeps half of them and waits for the other half."""
    taken = f"for one in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do %s {process.work}/taken-$one; done"
    script = f"{taken % 'mkdir'} || exit 1; echo has $CUDA_VISIBLE_DEVICES; sleep 0.5; {taken % 'rmdir'}"
    ask = {"limits": {GPU: 2}}
    gangs = [
        job(role("worker", shell(script, resources=ask), replicas=4), name=name, scheduler={"t9kScheduler": {}})
        for name in ("a", "b")
    ]
    runs = [process.start("run", "--gpus", "8", "-o", "json", gang) for gang in gangs]
    done = [run.end() for run in runs]

    assert [one.code for one in done] == [0, 0], done[0].said + done[1].said
    for one in done:
        texts = [item["text"] for item in one.items if item["type"] == "log"]
        assert sorted(",".join(texts).replace("has ", "").split(",")) == list("01234567")


def test_an_elastic_job_is_as_large_as_the_devices_that_other_runs_leave(process: Workspace) -> None:
    first = process.start("run", "--gpus", "4", asks(waiting(process), 2, "first"))
    first.until("| has ")
    second = process.start("run", "--gpus", "4", elastic(waiting(process, "stop")))
    second.until("trainer is scaled from 4 to 2 replicas")
    (process.work / "go").touch()
    assert first.end().code == 0
    second.until("trainer is scaled from 2 to 4 replicas: there is room for 2 more")
    until(lambda: sorted({one["device"] for one in leases(process)}) == ["0", "1", "2", "3"], "it has them all")
    (process.work / "stop").touch()

    assert second.end().code == 0, second.said


def elastic(script: str) -> Body:
    """An AITrainingJob of two to four trainers, each with a device."""
    main = shell(script, name="aitj-trainer", resources={"limits": {GPU: 1}})
    sizes = {"replicas": 4, "minReplicas": 2, "maxReplicas": 4, "edlPolicy": "Auto"}
    policies = {"completePolicy": "All", "failPolicy": "Any", "restartPolicy": "Always", "restartLimit": 30}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
    trainer = {**sizes, **policies, "template": {"spec": spec}}
    return {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": "elastic"},
        "spec": {"replicaSpecs": {"trainer": trainer}},
    }


def test_nodes_of_two_runs_share_devices_too(process: Workspace) -> None:
    """Node-0 of each run has the even ones."""
    first = process.start("run", "--nodes", "2", "--gpus", "4", asks(waiting(process), 2, "first"))
    first.until("| has ")
    (ids,) = re.findall(r"\| has (\S+)", first.said)
    late = asks(waiting(process, "stop"), 2, "second", replicas=2)
    second = process.start("run", "--nodes", "2", "--gpus", "4", late)
    second.until("| has ")
    second.until(f"{ids} held by")
    (process.work / "go").touch()
    assert first.end().code == 0
    until(lambda: second.said.count("| has ") == 2, "both have devices")
    (process.work / "stop").touch()

    assert second.end().code == 0
    assert sorted(re.findall(r"\| has (\S+)", second.said)) == ["0,2", "1,3"]


def test_a_pod_that_names_its_node_itself_waits_for_devices_too(process: Workspace) -> None:
    first = process.start("run", "--gpus", "2", asks(waiting(process), 1, "first"))
    first.until("| has 0")
    pods = [shell("echo has $CUDA_VISIBLE_DEVICES", resources={"limits": {GPU: count}}) for count in (1, 2)]
    roles = [role(f"asks-{index}", one, nodeName="node-0") for index, one in enumerate(pods, 1)]
    second = process.start("run", "--gpus", "2", job(*roles, name="second"))
    second.until("asks-1-0 | has 1")
    second.until("the requested devices (2 of 2 nvidia.com/gpu) are not free")
    (process.work / "go").touch()

    assert first.end().code == 0
    done = second.end()
    assert done.code == 0, done.said
    assert "asks-2-0 | has 0,1" in done.out


def test_a_killed_engine_keeps_its_devices_until_its_pods_have_ended(process: Workspace) -> None:
    """Engine and supervisor die at once: nobody ends the pod, so nobody else gets its device before it ends."""
    stop = process.work / "stop"
    stubborn = f"echo has $CUDA_VISIBLE_DEVICES; until [ -e {stop} ]; do sleep 0.05; done"
    first = process.start("run", "--gpus", "1", asks(stubborn, 1, "first"))
    first.until("| has 0")
    os.kill(first.pid, signal.SIGSTOP)  # it cannot clear up after its supervisor
    os.kill(process.pid("supervisor.main"), signal.SIGKILL)
    os.kill(first.pid, signal.SIGKILL)
    first.end()
    second = process.start("run", "--gpus", "1", asks("echo has $CUDA_VISIBLE_DEVICES", 1, "second"))
    second.until("0 held by")
    (left,) = leases(process)
    assert (left["job"], left["state"]) == ("default/first", "ending")
    stop.touch()
    done = second.end()

    assert done.code == 0, done.said
    assert "| has 0" in done.out
    assert leases(process) == []


def test_a_restarted_replica_has_its_devices_back(process: Workspace) -> None:
    """Another run that waits for any device does not get it in between."""
    once = (
        f"echo has $CUDA_VISIBLE_DEVICES; mkdir {process.work}/tried-$(rank) && sleep 1 && exit 1; {waiting(process)}"
    )
    first = process.start("run", "--gpus", "2", asks(once, 1, "first", replicas=2, restarts=3))
    until(lambda: first.said.count("| has ") >= 2, "both have started")
    second = process.start("run", "--gpus", "2", asks("echo got $CUDA_VISIBLE_DEVICES", 1, "second"))
    second.until("held by")
    until(lambda: len(re.findall(r"\| has ", first.said)) == 6, "both have restarted")
    assert "| got" not in second.said
    (process.work / "go").touch()

    assert second.end().code == 0
    done = first.end()
    assert done.code == 0, done.said
    for rank in ("0", "1"):
        assert len(set(re.findall(rf"worker-{rank} \| has (\S+)", done.out))) == 1


def test_any_resource_can_be_given_devices(workspace: Workspace) -> None:
    show = "echo npu=$ASCEND_RT_VISIBLE_DEVICES amd=$ROCR_VISIBLE_DEVICES mine=$MY_DEVICES"
    config = workspace.folder / "devices.yaml"
    config.write_text("example.com/fpga:\n  devices: [left, right]\n  env: MY_DEVICES\n")
    ask = {"limits": {NPU: 2, "amd.com/gpu": 1, "example.com/fpga": 2}}
    body = job(role("worker", shell(f"{show}; sleep 0.3", resources=ask)))
    words = ["--device", f"{NPU}=4", "--device", "amd.com/gpu=1", "--device-config", str(config)]
    done = workspace.run("run", *words, body)

    assert done.code == 0, done.said
    assert "| npu=0,1 amd=0 mine=left,right" in done.out


def test_a_process_that_is_not_ours_on_a_gpu_is_warned_of(process: Workspace) -> None:
    """Once; and not of our own pods, of which the driver tells as well."""
    programs = process.folder / "bin"
    programs.mkdir()
    driver = programs / "nvidia-smi"
    driver.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--query-gpu*) printf "0, GPU-aa\\n1, GPU-bb\\n2, GPU-cc\\n";;\n'
        '*) printf "GPU-bb, %s, python train.py\\nGPU-cc, %s, other\\nGPU-aa, %s, sh\\n" '
        f"{os.getpid()} {os.getpid()} $(cat {process.work}/pid);;\n"
        "esac\n"
    )
    driver.chmod(0o755)
    script = f"echo $$ > {process.work}/pid; {waiting(process)}"
    env = process.env | {"PATH": f"{programs}{os.pathsep}{process.env['PATH']}"}
    run = process.start("run", asks(script, 2, "first"), env=env)
    run.until("| has 0,1")
    run.until("is in use by process")
    (process.work / "go").touch()
    done = run.end()

    assert done.code == 0, done.said
    assert re.findall(r"GPU (\d) is in use by process (\d+) \((.*?)\)", done.out) == [
        ("1", str(os.getpid()), "python train.py")
    ]


# -- two users, and processes that are killed at random ---------------------------------------------------------------

USERS = (65534, 54321)
RUNS_EACH = 2
KILLS = 12
PODS = 24
MOST_SECONDS = 240.0

#: Locks a file for each of its devices, apart from everything of ours, for as long as it lives.
WITNESS = """
import fcntl, os, random, time
held = []
for device in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
    file = open(f"{witness}/{device}", "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(os.open("{witness}/twice", os.O_WRONLY | os.O_APPEND), f"{device} {os.getuid()}\\n".encode())
    held.append(file)
os.write(os.open("{witness}/given", os.O_WRONLY | os.O_APPEND), f"{os.getuid()} {len(held)}\\n".encode())
time.sleep(random.uniform(0.1, 0.6))
"""


#: Becomes another user. Where they cannot enter a folder on the way to this Python, it is opened in a mount namespace.
BECOME = """
import os, sys
uid = int(sys.argv[1])
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
os.execv(sys.argv[2], sys.argv[2:])
"""
OPEN = """
set -e
mount --bind "$1" "$2"
mount -t tmpfs -o mode=755 none "$3"
mkdir -p "$1"
mount --bind "$2" "$1"
shift 3
exec "$@"
"""


def become(uid: int, spare: Path) -> list[str]:
    """The words before a command that make it that user's. `spare`: an empty folder."""
    words = [sys.executable, "-c", BECOME, str(uid)]
    above = Path(sys.base_prefix).resolve().parents
    closed = [folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return words
    return ["unshare", "--mount", "sh", "-c", OPEN, "sh", sys.base_prefix, str(spare), str(closed[-1]), *words]


class Users:
    """Two users of one machine, who share eight GPUs and a folder in which their pods watch each other."""

    def __init__(self, folder: Path) -> None:
        self.chance = random.Random()  # noqa: S311 - no secret
        self.witness, self.leases, spare = folder / "witness", folder / "leases", folder / "spare"
        for one in (self.witness, self.leases, spare):
            one.mkdir()
        self.leases.chmod(0o1777)
        for name in (*map(str, range(8)), "twice", "given"):
            (self.witness / name).touch()
            (self.witness / name).chmod(0o666)
        self.workspaces = {uid: self._workspace(folder / str(uid), uid, spare) for uid in USERS}
        self.killed: Counter[str] = Counter()
        self._live: dict[tuple[int, int], RunningCommand] = {}

    def _workspace(self, folder: Path, uid: int, spare: Path) -> Workspace:
        folder.mkdir()
        made = Workspace(folder, "process")
        made.env["TRAINWRIGHT_LEASES"] = str(self.leases)
        made.before = become(uid, spare)
        made.state.mkdir()
        for path in (folder, made.state, made.work, made.home, made.tmp):
            os.chown(path, uid, uid)
        return made

    @property
    def given(self) -> list[str]:
        """A line for every pod that was given devices: whose it was, and how many they were."""
        return (self.witness / "given").read_text().splitlines()

    def keep_running(self) -> None:
        """Start a run in the place of each that has ended."""
        for uid, slot in ((uid, slot) for uid in USERS for slot in range(RUNS_EACH)):
            live = self._live.get((uid, slot))
            if live is None or live.process.poll() is not None:
                self._live[uid, slot] = self._start(uid, slot)

    def _start(self, uid: int, slot: int) -> RunningCommand:
        program = container("python3", "-uSc", WITNESS.replace("{witness}", str(self.witness)))
        ask = {"limits": {GPU: self.chance.choice([1, 2, 3, 4, 8])}}
        replicas = self.chance.choice([1, 2])
        body = job(role("worker", {**program, "resources": ask}, replicas=replicas, restarts=2), name=f"job-{slot}")
        return self.workspaces[uid].start("run", "--gpus", "8", "--timeout", "120", body)

    def kill_one(self) -> None:
        """An engine, a supervisor or a pod of either user, if there is one."""
        kind = self.chance.choice(["-m trainwright run", "supervisor.main", "python3 -uSc"])
        found = [*self.workspaces[self.chance.choice(USERS)].pids(kind)]
        if found:
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(found), signal.SIGKILL)
                self.killed[kind] += 1

    def end(self) -> None:
        """Kill all engines, and wait until everything has ended."""
        for run in self._live.values():
            run.process.kill()
        until(lambda: not any(workspace.pids() for workspace in self.workspaces.values()), "every process has ended")


@pytest.fixture
def users() -> Iterator[Users]:
    """In a folder that every user may enter, unlike a test's own."""
    if os.geteuid():
        pytest.skip("only root can be two users")
    folder = Path(tempfile.mkdtemp(prefix="trainwright-users-"))
    folder.chmod(0o755)
    made = Users(folder)
    yield made
    for workspace in made.workspaces.values():
        workspace.close()
    shutil.rmtree(folder, ignore_errors=True)


def test_two_users_and_kill_9_at_random_never_get_one_device_twice(
    users: Users, record_property: Callable[[str, object], None]
) -> None:
    """Eight GPUs; engines, supervisors and pods of both users die at any moment."""
    deadline = time.monotonic() + MOST_SECONDS
    while time.monotonic() < deadline and (users.killed.total() < KILLS or len(users.given) < PODS):
        users.keep_running()
        time.sleep(users.chance.uniform(0.05, 0.3))
        if users.chance.random() < 0.5:
            users.kill_one()
    users.end()

    assert (users.witness / "twice").read_text() == ""
    assert {line.split()[0] for line in users.given} == set(map(str, USERS)), users.given
    assert len(users.given) >= PODS, users.killed
    assert leases(users.workspaces[USERS[0]]) == []
    record_property(
        "figure", f"{len(users.given)} pods of two users had GPUs, none twice; killed: {dict(users.killed)}"
    )


def test_one_user_waits_for_the_devices_of_another(users: Users) -> None:
    first, second = (users.workspaces[uid] for uid in USERS)
    held = first.start("run", "--gpus", "8", asks(waiting(first), 6, "first"))
    held.until("| has 0,1,2,3,4,5")
    run = second.start("run", "--gpus", "8", asks("echo has $CUDA_VISIBLE_DEVICES", 8, "second"))
    run.until("0-5 held by nobody (run ")
    assert {one["user"] for one in leases(second)} == {"nobody"}
    (first.work / "go").touch()
    done = run.end()

    assert held.end().code == 0
    assert done.code == 0, done.said
    assert "| has 0,1,2,3,4,5,6,7" in done.out
