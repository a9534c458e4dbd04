# SPDX-License-Identifier: Apache-2.0
"""What a pod is on its machine: a network, names, a host name and processes of its own, or an address at least."""

import json
import re
import socket

from e2e_jobs import job, python, role, shell, worker
from e2e_traces import space
from e2e_workspace import EXAMPLES, Workspace

pytest_plugins = ["e2e_fixtures"]

FORMS = ("", ".default", ".default.svc", ".default.svc.cluster.local")


def test_two_replicas_listen_on_one_port_and_find_each_other_under_all_names(sandbox: Workspace) -> None:
    done = sandbox.run("run", str(EXAMPLES / "local/ports.yaml"))

    assert done.code == 0, done.said
    for rank, other in ((0, 1), (1, 0)):
        for form in FORMS:
            peer = f"ports-peer-{other}"
            answer = rf"^peer-{rank} \| {peer}{form} is 10\.[\d.]+ and says: peer {other} on {peer}$"
            assert re.search(answer, done.out, re.MULTILINE), answer


def test_every_pod_knows_itself_too(sandbox: Workspace) -> None:
    program = """
import json, os, socket
me = socket.gethostname()
forms = ["", ".default", ".default.svc", ".default.svc.cluster.local"]
print(json.dumps({
  "host": me,
  "at": sorted({socket.gethostbyname(me + form) for form in forms}),
  "known": socket.gethostbyname("localhost"),
  "ids": [int(one) for one in os.listdir("/proc") if one.isdigit()],
}))
"""
    done = sandbox.run("run", "-o", "json", job(role("worker", python(program), replicas=3), port=2222))

    assert done.code == 0, done.said
    said = [json.loads(item["text"]) for item in done.items if item["type"] == "log"]
    assert sorted(one["host"] for one in said) == [f"e2e-worker-{rank}" for rank in range(3)]
    assert len({one["at"][0] for one in said}) == 3
    for one in said:
        assert len(one["at"]) == 1
        assert one["known"] == "127.0.0.1"
        assert max(one["ids"]) < 20  # nobody else's processes


def test_a_restarted_replica_keeps_its_address(sandbox: Workspace) -> None:
    program = "import socket, sys; print(socket.gethostbyname(socket.gethostname())); sys.exit(1)"
    done = sandbox.run("run", "-o", "json", job(role("worker", python(program), restarts=1), port=2222))

    assert done.code == 1
    said = [item["text"] for item in done.items if item["type"] == "log"]
    assert len(said) == 2
    assert said[0] == said[1]


def test_names_of_another_job_of_the_run_resolve(sandbox: Workspace) -> None:
    # What is asked for too early goes to the machine's name server, which may take its time.
    ask = "until grep two-worker-0 /etc/hosts; do sleep 0.1; done; getent ahostsv4 two-worker-0.default.svc"
    asked = sandbox.work / "asked"
    one = job(role("worker", shell(f"{ask} && touch {asked}")), name="one", port=2222)
    two = job(role("worker", shell(f"until [ -e {asked} ]; do sleep 0.1; done")), name="two", port=2222)

    done = sandbox.run("run", "--timeout", "100", sandbox.write(one, two))

    assert done.code == 0, done.said


def test_host_network_is_this_machines(sandbox: Workspace) -> None:
    tell = "readlink /proc/self/ns/net; readlink /proc/self/ns/pid"
    done = sandbox.run("run", "-o", "json", worker(tell, hostNetwork=True))

    said = [item["text"] for item in done.items if item["type"] == "log"]
    assert done.code == 0, done.said
    assert said[0] == space("net")
    assert said[1].startswith("pid:")
    assert said[1] != space("pid")


def test_plain_processes_have_an_address_each(process: Workspace) -> None:
    talk = """
import socket, time
server = socket.create_server(("$(service.%s[0].host)", $(service.port[talk])))
print(server.getsockname())
time.sleep(0.7)
"""
    roles = [role(name, python(talk % name)) for name in ("a", "b")]  # variables do not nest, so one role each
    done = process.run("run", "-o", "json", job(*roles, port=free()))

    assert done.code == 0, done.said
    said = {item["text"] for item in done.items if item["type"] == "log"}
    assert len(said) == 2
    assert all(one.startswith("('127.") for one in said)


def free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_taken_port_in_the_process_runtime_names_the_sandbox(process: Workspace) -> None:
    listen = f"""
import socket, time
time.sleep(0.3 * $(rank))
server = socket.create_server(("0.0.0.0", {free()}))
time.sleep(60)
"""
    done = process.run("run", job(role("worker", python(listen), replicas=2), cleanUpPolicy="All"))

    assert done.code == 1, done.said
    assert "Address already in use" in done.out
    assert "with `--runtime sandbox` each replica has its own network" in done.out.splitlines()[-2]
