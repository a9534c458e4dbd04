# SPDX-License-Identifier: Apache-2.0
"""The programs in the examples do what their first lines promise: real processes and sockets, no engine."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from examples_driver import EXAMPLES, ExampleProcesses

from patience import PATIENCE

QUICKSTART = ("worker-0", "worker-1", "worker-2", "coordinator-0")
OpenExample = Callable[..., ExampleProcesses]


@pytest.fixture
def example(tmp_path: Path) -> Iterator[OpenExample]:
    """Open an example, with some of its text changed: tests do not watch, so they need not wait."""
    opened: list[ExampleProcesses] = []

    def go(name: str, changes: dict[str, str] | None = None) -> ExampleProcesses:
        opened.append(ExampleProcesses(EXAMPLES / f"{name}.yaml", tmp_path, changes))
        return opened[-1]

    yield go
    for one in opened:
        one.close()


def ends(*processes: subprocess.Popen[bytes]) -> list[int]:
    """The exit codes, once all have ended."""
    return [process.wait(PATIENCE) for process in processes]


# -- the quickstart ------------------------------------------------------------------------------------------------


def losses(example: ExampleProcesses) -> list[float]:
    """What the coordinator printed, step by step."""
    return [
        float(loss) for loss in re.findall(r"^step +\d+/40  loss +([\d.]+) +#+$", example.output("coordinator-0"), re.M)
    ]


def test_the_quickstart_trains_whoever_comes_first(example: OpenExample) -> None:
    job = example("quickstart")

    assert ends(*(job.start(name, PACE="0.01") for name in QUICKSTART)) == [0, 0, 0, 0]
    assert len(losses(job)) == 40
    assert losses(job)[0] > 10
    assert losses(job)[-1] < 0.1
    assert re.search(r"^found y = (2.9\d|3.0\d) x \+ (1.9\d|2.0\d), true is y = 3 x \+ 2$", tail(job), re.M)
    assert [job.output(name).splitlines()[-1] for name in QUICKSTART[:3]] == ["done"] * 3


def tail(job: ExampleProcesses) -> str:
    """The last line of the coordinator."""
    return job.output("coordinator-0").splitlines()[-1]


@pytest.mark.parametrize("killed", [["worker-1"], ["worker-0", "worker-2"]], ids=["one", "two"])
def test_a_worker_killed_while_it_trains_joins_again(example: OpenExample, killed: list[str]) -> None:
    job = example("quickstart")
    running = {name: job.start(name, PACE="0.02") for name in QUICKSTART}
    job.until("coordinator-0", "step  5/40")

    for name in killed:
        running[name].kill()
    job.until("coordinator-0", f"{killed[0].replace('-', ' ')} is gone, waiting for it to be started again")
    assert len(losses(job)) < 40
    again = [job.start(name) for name in killed]

    assert ends(running["coordinator-0"], *again) == [0] * (1 + len(killed))
    assert len(losses(job)) == 40
    assert ends(*(running[name] for name in killed)) == [-signal.SIGKILL] * len(killed)


def test_a_worker_killed_before_there_is_a_coordinator_is_not_missed(example: OpenExample) -> None:
    job = example("quickstart")
    first = job.start("worker-0")
    job.until("worker-0", "worker 0 has 500 samples, and the process id ")
    first.kill()

    assert ends(*(job.start(name, PACE="0") for name in QUICKSTART)) == [0, 0, 0, 0]


@pytest.mark.parametrize("says", [b"", b"hello\n", b"9\n"], ids=["nothing", "nonsense", "a rank there is not"])
def test_a_visitor_does_not_disturb_the_training(example: OpenExample, says: bytes) -> None:
    job = example("quickstart")
    running = [job.start("coordinator-0", PACE="0")]
    with job.connection("coordinator-0", 29600) as visitor:
        visitor.sendall(says)
    job.until("coordinator-0", "turned a visitor away")

    running += [job.start(name) for name in QUICKSTART[:3]]

    assert ends(*running) == [0, 0, 0, 0]


def test_the_coordinator_fails_if_the_training_does_not_converge(example: OpenExample) -> None:
    job = example("quickstart", {"40, 0.05": "40, 0.001"})

    assert ends(*(job.start(name, PACE="0") for name in QUICKSTART)) == [0, 0, 0, 1]
    assert "true is y = 3 x + 2" in tail(job)


def test_a_port_that_is_taken_is_an_error_at_once(example: OpenExample) -> None:
    job = example("quickstart")
    job.start("coordinator-0")
    for name in QUICKSTART[:3]:
        job.start(name)
    job.until("coordinator-0", "step  1/40")

    assert ends(job.start("coordinator-0")) == [1]
    assert "Address already in use" in job.output("coordinator-0")


def test_more_workers_than_the_example_has_train_too(example: OpenExample) -> None:
    job = example("quickstart", {"replicas: 3": "replicas: 5"})

    assert len(job.pods) == 6
    assert ends(*(job.start(name, PACE="0") for name in job.pods)) == [0] * 6
    assert "turned a visitor away" not in job.output("coordinator-0")


# -- checkpoints and pauses ----------------------------------------------------------------------------------------


def test_a_crashed_training_goes_on_from_its_checkpoint(example: OpenExample) -> None:
    job = example("local/checkpoint", {"time.sleep(0.1)": "time.sleep(0)"})

    assert ends(job.start("trainer-0")) == [-signal.SIGKILL]
    assert job.output("trainer-0").splitlines()[0] == "no checkpoint, starting at step 0"
    assert job.output("trainer-0").splitlines()[-1] == "crashing on purpose"
    known = len(job.output("trainer-0"))

    assert ends(job.start("trainer-0")) == [0]
    lines = job.output("trainer-0")[known:].splitlines()
    assert lines[0] == "resumed from step 10"
    assert lines[1].startswith("step 11/30")
    assert lines[-1] == "trained: weight 3.00, true 3.00"
    assert list((job.folder / "checkpoints").iterdir()) == []


def test_a_suspended_training_saves_its_step_and_goes_on(example: OpenExample) -> None:
    job = example("local/pause", {"time.sleep(0.2)": "time.sleep(0.01)"})
    first = job.start("trainer-0")
    job.until("trainer-0", "step   7/100")
    first.terminate()

    assert ends(first) == [0]
    lines = job.output("trainer-0").splitlines()
    assert lines[0] == "starting at step 0"
    step = lines[-1].removeprefix("asked to leave, saved step ")
    assert int(step) >= 7

    assert ends(job.start("trainer-0")) == [0]
    lines = job.output("trainer-0").splitlines()[len(lines) :]
    assert lines[0] == f"resumed from step {step}"
    assert lines[-1] == "trained: weight 2.98, true 3.00"
    assert list((job.folder / "saved").iterdir()) == []


# -- the others ----------------------------------------------------------------------------------------------------


def test_the_failing_worker_says_why_and_the_other_goes_on(example: OpenExample) -> None:
    job = example("local/failure")
    other = job.start("worker-0")

    assert ends(job.start("reporter-0"), job.start("worker-1")) == [1, 3]
    assert job.output("worker-1").splitlines()[-2:] == [
        "step  6/50  loss inf",
        "the loss is not finite any more: the learning rate is too high, giving up",
    ]
    assert other.poll() is None


def test_debug_mode_waits_and_can_be_switched_off(example: OpenExample) -> None:
    assert [pod["spec"]["containers"][0]["command"] for pod in example("local/debug").pods.values()] == [
        ["sleep", "inf"],
        ["sleep", "inf"],
    ]

    job = example("local/debug", {"enabled: true": "enabled: false"})
    assert ends(job.start("worker-1")) == [0]
    hosts = [f"{host}:29601" for host in job.hosts.values()]
    assert job.output("worker-1") == f"training as worker 1 of 2 with {hosts}\n"


def test_a_worker_of_a_gang_knows_what_it_may_use(example: OpenExample) -> None:
    job = example("local/gang", {"time.sleep(2)": "time.sleep(0)"})

    assert ends(*(job.start(name) for name in job.pods)) == [0] * 4
    assert job.output("worker-3").endswith(": 100 millicores asked for, at most 64 MiB\n")


def test_settings_come_as_variables_and_as_files(example: OpenExample) -> None:
    job = example("local/settings")

    assert ends(job.start("trainer-0")) == [0]
    lines = job.output("trainer-0").splitlines()
    assert lines[0] == "settings-trainer-0: rate 0.3, 5 steps, a token of 16 letters"
    assert lines[-1].startswith("step 5/5  loss ")
    assert "not-a-real-token" not in job.output("trainer-0")


def test_settings_that_differ_are_an_error(example: OpenExample) -> None:
    job = example("local/settings")

    assert ends(job.start("trainer-0", RATE="9")) == [1]
    assert job.output("trainer-0") == f"RATE and {job.folder}/settings/RATE differ\n"


#: In place of the sandbox's hosts file: a name in any of its forms is the address it begins with.
RESOLVE = """\
import socket
resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more: resolve(host.partition(".default")[0], *more)
"""


def test_two_peers_find_each_other_under_all_four_names(example: OpenExample) -> None:
    # A port of its own: whoever runs the example itself takes 2222 on all addresses.
    changes = {"port: 2222": "port: 22220", '("0.0.0.0", port)': '(["HOST0", "HOST1"][$(rank)], port)'}
    job = example("local/ports", changes)
    hosts = list(job.hosts.values())
    for number, host in enumerate(hosts):
        for pod in job.pods.values():
            command = pod["spec"]["containers"][0]["command"]
            command[2] = command[2].replace(f"HOST{number}", host)

    assert ends(*(job.start(name, before=RESOLVE) for name in job.pods)) == [0, 0]
    said = [line for line in job.output("peer-0").splitlines() if " says: " in line]
    assert [line.split(" is ")[0].removeprefix(hosts[1]) for line in said] == [
        "",
        ".default",
        ".default.svc",
        ".default.svc.cluster.local",
    ]
    assert all(f"is {hosts[1]} and says: peer 1 on " in line for line in said)
