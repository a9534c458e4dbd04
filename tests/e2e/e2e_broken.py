# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S108 - paths inside pods
"""Broken jobs, and what the first line of `trainwright explain` must name. Every fault is real: nothing is replayed.

All jobs of `BROKEN` end by themselves, so one `trainwright run` can run all of them at the same time. The other faults
come from outside; `test_e2e_broken_jobs` has a test for each.
"""

from typing import Any

from e2e_jobs import Body, container, job, python, role, shell
from msgspec import Struct

from trainwright.model.verdict import FailureClass as Class

_ONE_MI = {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}


class BrokenJob(Struct, frozen=True):
    """A job that fails, the class of its failure, and the words that the first line of the explanation contains."""

    body: Body
    failure_class: Class
    words: tuple[str, ...]
    #: Why the process runtime cannot show this fault; empty if it can.
    sandbox: str = ""


def _broken(body: Body, failure_class: Class, *words: str, sandbox: str = "") -> BrokenJob:
    return BrokenJob(body, failure_class, words, sandbox)


def _worker(main: Body, replicas: int = 1, **more: Any) -> Body:
    return job(role("worker", main, replicas=replicas, **more))


def _named(name: str, main: Body) -> Body:
    return {**main, "name": name}


def tfjob(policy: Body, **roles: Body) -> Body:
    """A TFJob of these roles."""
    spec = {"runPolicy": policy, "tfReplicaSpecs": roles}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "tf"}, "spec": spec}


def tensorflow(main: Body, replicas: int = 1, restart: str = "Never") -> Body:
    """A role of a TFJob."""
    spec = {"terminationGracePeriodSeconds": 2, "containers": [_named("tensorflow", main)]}
    return {"replicas": replicas, "restartPolicy": restart, "template": {"spec": spec}}


def paddlejob(main: Body, replicas: int = 1, **policy: Any) -> Body:
    """A PaddleJob with workers."""
    spec = {"terminationGracePeriodSeconds": 2, "containers": [_named("paddle", main)]}
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "paddle"},
        "spec": {"runPolicy": policy, "worker": {"replicas": replicas, "template": {"spec": spec}}},
    }


def aitrainingjob(main: Body, replicas: int = 1, policies: Body | None = None, **spec: Any) -> Body:
    """An AITrainingJob with trainers."""
    pod = {"terminationGracePeriodSeconds": 2, "restartPolicy": "Never", "containers": [_named("aitj-trainer", main)]}
    trainer = {"replicas": replicas, "template": {"spec": pod}, **(policies or {"failPolicy": "Any"})}
    return {
        "apiVersion": "elasticdeeplearning.ai/v1",
        "kind": "AITrainingJob",
        "metadata": {"name": "ai"},
        "spec": {**spec, "replicaSpecs": {"trainer": trainer}},
    }


#: Worker 2 fails, and its peers then fail because they lose it.
_FIRST_OF_FOUR = """
import os, socket, time
rank, path = $(rank), "{work}/first-of-four"
if rank == 2:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    peers = [server.accept()[0] for _ in range(3)]
    dict(image=1)["label"]
peer = socket.socket(socket.AF_UNIX)
while True:
    try:
        peer.connect(path)
        break
    except OSError:
        time.sleep(0.02)
peer.send(b"gradient")
if not peer.recv(1):
    raise ConnectionResetError(104, "Connection reset by peer")
"""
_MAPPED = """
import mmap
file = open("{path}", "w+b")
file.truncate(1 << 23)
memory = mmap.mmap(file.fileno(), 1 << 23)
{then}
memory[:] = bytes(1 << 23)
"""
_TWO_SERVERS = """
import asyncio
async def serve():
    for _ in range(2):
        await asyncio.start_server(print, "127.0.0.1", {port})
asyncio.run(serve())
"""
_CHAIN = """
try:
    open("/no/such/labels.csv")
except OSError as error:
    raise RuntimeError("cannot load the data set") from error
"""
_WHILE_HANDLED = """
try:
    dict(image=1)["label"]
finally:
    None.close()
"""
_PROGRESS = r"""
import sys
for step in range(5):
    print(f"\r{step * 20}%|####      | {step}/5 [00:01<00:04]", end="", file=sys.stderr)
raise ZeroDivisionError("no samples left")
"""
_NOISE = """
import atexit, sys
class Loader:
    def __del__(self):
        raise AttributeError("'NoneType' object has no attribute 'close'")
loader = Loader()
atexit.register(print, "saving the last metrics ... done")
raise ValueError("loss is nan at step 12")
"""
_LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "raise KeyError('learning_rate')"], check=True)
"""
#: A launcher of two ranks, which puts the rank before each line as PyTorch does. Rank 1 fails, and rank 0 loses it.
_TWO_RANKS = """
python3 -Sc "dict(image=1)['label']" 2>&1 | sed 's/^/[rank1]: /'
python3 -Sc "raise ConnectionResetError(104, 'Connection reset by peer')" 2>&1 | sed 's/^/[rank0]: /'
exit 1
"""
_POOL = """
import concurrent.futures
def load(index):
    return [1, 2, 3][index]
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        print(list(pool.map(load, [0, 7])))
"""
_GREEDY = "x = bytearray(300 << 20); x[::4096] = b'y' * len(x[::4096])"
_LIMITED = {"limits": {"memory": "64Mi"}}


def broken(work: str) -> dict[str, BrokenJob]:
    """Return the table. The programs use files in the folder `work`."""
    return _programs(work) | _signals(work) | _places(work) | _rules(work)


def _programs(work: str) -> dict[str, BrokenJob]:
    """Programs that end themselves."""
    return {
        "uncaught-exception": _broken(
            _worker(python("raise ValueError('loss is nan at step 3')")),
            Class.PROGRAM_ERROR,
            "worker-0",
            "ValueError: loss is nan at step 3",
        ),
        "first-of-four": _broken(
            _worker(python(_FIRST_OF_FOUR.replace("{work}", work)), 4),
            Class.PROGRAM_ERROR,
            "worker-2",
            "KeyError: 'label'",
        ),
        "missing-module": _broken(
            tfjob({}, Worker=tensorflow(python("import numpy_of_tomorrow"))),
            Class.IMPORT_ERROR,
            "Worker-0",
            "'numpy_of_tomorrow'",
        ),
        "missing-submodule": _broken(
            paddlejob(python("import json.fast")), Class.IMPORT_ERROR, "worker-0", "'json.fast'"
        ),
        "missing-name": _broken(
            _worker(python("from json import fast_loads")), Class.IMPORT_ERROR, "cannot import name 'fast_loads'"
        ),
        "missing-main-module": _broken(
            aitrainingjob(container("python3", "-m", "no_such_trainer")),
            Class.IMPORT_ERROR,
            "trainer-0",
            "no_such_trainer",
        ),
        "syntax-error": _broken(
            _worker(container("python3", f"{work}/bad_syntax.py")),
            Class.PROGRAM_ERROR,
            "SyntaxError",
            "was never closed",
        ),
        "missing-script": _broken(
            _worker(container("python3", "no_such_train.py")), Class.COMMAND_NOT_FOUND, "no_such_train.py"
        ),
        "missing-command": _broken(
            tfjob({}, Chief=tensorflow(container("no-such-trainer")), Worker=tensorflow(shell("exec sleep 600"))),
            Class.COMMAND_NOT_FOUND,
            "Chief-0",
            "no-such-trainer",
        ),
        "missing-command-in-shell": _broken(
            _worker(shell("no-such-trainer --epochs 3")), Class.COMMAND_NOT_FOUND, "no-such-trainer: not found"
        ),
        "not-executable": _broken(
            _worker(container(f"{work}/not_executable.sh")), Class.COMMAND_NOT_FOUND, "not_executable.sh"
        ),
        "not-executable-in-shell": _broken(
            _worker(shell(f"{work}/not_executable.sh")), Class.COMMAND_NOT_FOUND, "not_executable.sh: Permission denied"
        ),
        "wrong-interpreter": _broken(
            _worker(container(f"{work}/wrong_interpreter.sh")), Class.COMMAND_NOT_FOUND, "/no/such/python"
        ),
        "missing-folder": _broken(
            _worker(container("true", workingDir="/no/such/folder")), Class.COMMAND_NOT_FOUND, "/no/such/folder"
        ),
        "code-only": _broken(_worker(shell("exit 3")), Class.PROGRAM_ERROR, "worker-0", "exited with code 3"),
        "last-words": _broken(
            _worker(python("import sys; sys.exit('the checkpoint of step 40 is damaged')")),
            Class.PROGRAM_ERROR,
            "the checkpoint of step 40 is damaged",
        ),
        "wrong-argument": _broken(
            _worker(
                python("import argparse; argparse.ArgumentParser('train').parse_args()", args=["--learning-rat", "1"])
            ),
            Class.PROGRAM_ERROR,
            "train: error: unrecognized arguments: --learning-rat 1",
        ),
        "missing-data": _broken(
            paddlejob(python("open('/no/such/train.csv')")),
            Class.PROGRAM_ERROR,
            "FileNotFoundError",
            "/no/such/train.csv",
        ),
        "shell-line": _broken(
            _worker(shell("set -e; cp /no/such/weights . ; echo never")),
            Class.PROGRAM_ERROR,
            "cp: ",
            "/no/such/weights",
        ),
        "cause-of-a-cause": _broken(
            _worker(python(_CHAIN)), Class.PROGRAM_ERROR, "cannot load the data set", "/no/such/labels.csv"
        ),
        "error-while-handled": _broken(_worker(python(_WHILE_HANDLED)), Class.PROGRAM_ERROR, "KeyError: 'label'"),
        "progress-bar": _broken(_worker(python(_PROGRESS)), Class.PROGRAM_ERROR, "ZeroDivisionError: no samples left"),
        "early-warning": _broken(
            aitrainingjob(
                shell("echo 'ERROR: cannot connect: Connection refused, retrying' >&2; echo step 1; python3 -c 'x[0]'")
            ),
            Class.PROGRAM_ERROR,
            "NameError: name 'x' is not defined",
        ),
        "late-noise": _broken(_worker(python(_NOISE)), Class.PROGRAM_ERROR, "ValueError: loss is nan at step 12"),
        "launcher": _broken(_worker(python(_LAUNCHER)), Class.PROGRAM_ERROR, "KeyError: 'learning_rate'"),
        "two-ranks": _broken(_worker(shell(_TWO_RANKS)), Class.PROGRAM_ERROR, "KeyError: 'label'"),
        "pool": _broken(
            _worker(container("python3", f"{work}/pool.py")), Class.PROGRAM_ERROR, "IndexError: list index out of range"
        ),
        "odd-bytes": _broken(
            _worker(shell(r"printf 'error: cannot read \377\376 as text\n'; exit 5")),
            Class.PROGRAM_ERROR,
            "error: cannot read",
            "code 5",
        ),
        "coloured": _broken(
            _worker(shell(r"printf '\033[1;31mRuntimeError: gradient overflow\033[0m\nbye\n'; exit 1")),
            Class.PROGRAM_ERROR,
            "RuntimeError: gradient overflow",
        ),
        "own-message": _broken(
            _worker(shell("echo 'epoch 3 diverged' > /dev/termination-log; echo bye; exit 1")),
            Class.PROGRAM_ERROR,
            "epoch 3 diverged",
            sandbox="there is no file for the termination message",
        ),
    }


def _signals(work: str) -> dict[str, BrokenJob]:
    """Memory, and signals that a program causes itself."""
    return {
        "memory-of-process": _broken(
            _worker(shell("ulimit -v 200000; exec python3 -Sc 'bytearray(1 << 30)'")),
            Class.OUT_OF_MEMORY,
            "out of memory",
            "MemoryError",
        ),
        "memory-of-container": _broken(
            tfjob({}, Worker=tensorflow({**python(_GREEDY + "; input()"), "resources": _LIMITED})),
            Class.OUT_OF_MEMORY,
            "Worker-0",
            "64Mi",
        ),
        "memory-of-child": _broken(
            _worker({**shell(f'python3 -Sc "{_GREEDY}"; exit $?'), "resources": _LIMITED}),
            Class.OUT_OF_MEMORY,
            "64Mi",
        ),
        "own-kill": _broken(
            paddlejob(python("import os; os.kill(os.getpid(), 9)")), Class.KILLED, "worker-0", "SIGKILL"
        ),
        "killed-child": _broken(
            _worker(shell("python3 -Sc 'import os; os.kill(os.getpid(), 9)'; exit $?")), Class.KILLED, "SIGKILL"
        ),
        "null-pointer": _broken(
            _worker(python("import ctypes; ctypes.string_at(0)")), Class.CRASHED, "worker-0", "SIGSEGV"
        ),
        "null-pointer-with-report": _broken(
            _worker(container("python3", "-X", "faulthandler", "-Sc", "import ctypes; ctypes.string_at(0)")),
            Class.CRASHED,
            "SIGSEGV",
            "Fatal Python error: Segmentation fault",
        ),
        "null-pointer-of-child": _broken(
            _worker(shell("python3 -Sc 'import ctypes; ctypes.string_at(0)'; exit $?")), Class.CRASHED, "SIGSEGV"
        ),
        "abort": _broken(aitrainingjob(python("import os; os.abort()")), Class.CRASHED, "trainer-0", "SIGABRT"),
        "short-file": _broken(
            _worker(python(_MAPPED.format(path=f"{work}/mapped", then="file.truncate(0)"))),
            Class.SHARED_MEMORY,
            "SIGBUS",
        ),
        "full-shared-memory": _broken(
            _worker(
                python(
                    _MAPPED.format(path="/dev/shm/big", then=""), volumeMounts=[{"name": "v", "mountPath": "/dev/shm"}]
                ),
                volumes=[_ONE_MI],
            ),
            Class.SHARED_MEMORY,
            "SIGBUS",
            "/dev/shm",
            sandbox="replicas share /dev/shm",
        ),
    }


def _places(work: str) -> dict[str, BrokenJob]:
    """Disk, network and names."""
    return {
        "full-disk": _broken(
            _worker(
                python(
                    "open('/data/checkpoint', 'wb').write(bytes(1 << 22))",
                    volumeMounts=[{"name": "v", "mountPath": "/data"}],
                ),
                volumes=[_ONE_MI],
            ),
            Class.DISK_FULL,
            "No space left on device",
            sandbox="nothing can be mounted",
        ),
        "too-large-file": _broken(
            _worker(shell(f"ulimit -f 8; exec python3 -Sc \"open('{work}/large', 'wb').write(bytes(1 << 20))\"")),
            Class.PROGRAM_ERROR,
            "File too large",
        ),
        "port-twice": _broken(_worker(python(_TWO_SERVERS.format(port=23471))), Class.PORT_IN_USE, "23471"),
        "unknown-host": _broken(
            _worker(python("import socket; socket.create_connection(('data.invalid', 80))")),
            Class.NAME_RESOLUTION,
            "worker-0",
        ),
        "refused-master": _broken(
            paddlejob(python("import socket; socket.create_connection(('127.0.0.1', 23472))"), 2),
            Class.RENDEZVOUS,
            "Connection refused",
        ),
        "absent-master": _broken(
            _worker(
                python(
                    "import socket; socket.create_server(('127.0.0.1', 0)).settimeout(1)\n"
                    "server = socket.create_server(('127.0.0.1', 0)); server.settimeout(0.5); server.accept()"
                )
            ),
            Class.RENDEZVOUS,
            "timed out",
        ),
    }


def _rules(work: str) -> dict[str, BrokenJob]:
    """Containers beside the program, probes, deadlines, limits and rules."""
    sick = {"exec": {"command": ["sh", "-c", "echo no heartbeat; false"]}, "periodSeconds": 1, "failureThreshold": 1}
    return {
        "init-container": _broken(
            _worker(shell("echo never"), initContainers=[shell("echo 'error: no data set'; exit 4", name="download")]),
            Class.PROGRAM_ERROR,
            "download",
            "error: no data set",
        ),
        "sidecar": _broken(
            job(role("worker", shell("echo trained"), python("raise OSError('cannot upload')", name="uploader"))),
            Class.PROGRAM_ERROR,
            "uploader",
            "OSError: cannot upload",
        ),
        "liveness": _broken(
            _worker(shell("exec sleep 600", livenessProbe=sick)), Class.KILLED, "liveness probe", "no heartbeat"
        ),
        "startup": _broken(
            _worker(shell("exec sleep 600", startupProbe=sick)), Class.KILLED, "startup probe", "no heartbeat"
        ),
        "deadline": _broken(
            tfjob({"activeDeadlineSeconds": 1}, Worker=tensorflow(shell("exec sleep 600"))), Class.DEADLINE, "1s"
        ),
        "time-limit": _broken(aitrainingjob(shell("exec sleep 600"), timeLimit=1), Class.DEADLINE, "1s"),
        "back-off-limit": _broken(
            tfjob(
                {"backoffLimit": 2},
                Worker=tensorflow(python("raise EOFError('no more data')"), restart="OnFailure"),
            ),
            Class.PROGRAM_ERROR,
            "EOFError: no more data",
        ),
        "restart-limit": _broken(
            aitrainingjob(
                python("raise EOFError('no more data')"),
                policies={"failPolicy": "Any", "restartPolicy": "OnFailure", "restartLimit": 1},
            ),
            Class.PROGRAM_ERROR,
            "trainer-0",
            "EOFError: no more data",
        ),
        "failure-rule": _broken(
            job(
                role("master", python("raise PermissionError('no licence')")),
                role("worker", shell("exec sleep 600")),
                successRules=[{"worker": [0]}],
                failureRules=[{"master": [0]}],
            ),
            Class.PROGRAM_ERROR,
            "master-0",
            "PermissionError: no licence",
        ),
        "no-success-left": _broken(
            job(
                role("master", shell("exec sleep 600")),
                role("worker", python("assert False, 'odd batch'")),
                successRules=[{"master": [0], "worker": [0]}],
            ),
            Class.PROGRAM_ERROR,
            "worker-0",
            "AssertionError: odd batch",
        ),
    }


def files() -> dict[str, tuple[str, int]]:
    """Return the files that the programs need in their folder: text and mode."""
    return {
        "bad_syntax.py": ("import os\nprint('epoch', (1\n", 0o644),
        "not_executable.sh": ("#!/bin/sh\necho never\n", 0o644),
        "wrong_interpreter.sh": ("#!/no/such/python\n", 0o755),
        "pool.py": (_POOL, 0o644),
    }
