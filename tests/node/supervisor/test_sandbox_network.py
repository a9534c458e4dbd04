# SPDX-License-Identifier: Apache-2.0
"""The network of pods: each has its own address, ports and name, and finds the others by name."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxed import SOURCE, SUBNET, Sandboxed, as_who, python

_SERVER = """
import socket
with socket.create_server(("0.0.0.0", {port})) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as one:
            one.sendall(socket.gethostname().encode())
"""
_CLIENT = "import socket; print(socket.create_connection(({host!r}, {port}), 5).makefile().read())"


def script(box: Sandboxed, code: str) -> list[str]:
    return [python(box.who) or "", "-S", "-c", code]


def serve(box: Sandboxed, pod: str, port: int = 2222) -> str:
    name, answer = box.attempt(script(box, _SERVER.format(port=port)), pod)
    assert answer.get("ok"), answer
    box.hears(name, "listening")
    return name


def ask(box: Sandboxed, pod: str, host: str, port: int = 2222) -> str:
    name, answer = box.attempt(script(box, _CLIENT.format(host=host, port=port)), pod)
    assert answer.get("ok"), answer
    box.event("ended", container=name)
    return box.said(name).strip()


def test_two_pods_listen_on_one_port_and_find_each_other_by_name(box: Sandboxed, folder: Path) -> None:
    hosts = folder / "hosts"
    hosts.touch()
    addresses = {name: box.open(name, hosts=str(hosts)) for name in ("worker-0", "worker-1")}
    hosts.write_text("".join(f"{address} {name}.job.svc\n" for name, address in addresses.items()))
    for name in addresses:
        serve(box, name)
    assert ask(box, "worker-0", "worker-1.job.svc") == "worker-1"
    assert ask(box, "worker-1", "worker-0.job.svc") == "worker-0"
    assert ask(box, "worker-0", "worker-0.job.svc") == "worker-0"


def test_a_hosts_file_that_is_rewritten_in_place_is_seen_by_pods_that_run(box: Sandboxed, folder: Path) -> None:
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 before\n")
    box.open(hosts=str(hosts))
    name = box.start("cat /etc/hosts; until grep after /etc/hosts; do sleep 0.01; done")
    box.hears(name, "before")
    hosts.write_text("127.0.0.1 after\n")
    assert box.event("ended", container=name)["code"] == 0


def test_the_containers_of_a_pod_share_its_network_and_name(box: Sandboxed) -> None:
    box.open("web")
    serve(box, "web")
    assert ask(box, "web", "localhost") == "web"
    assert box.run("hostname", "web") == "web\n"


def test_a_long_name_is_cut_to_what_a_host_name_may_be(box: Sandboxed) -> None:
    box.open(host="a" * 70)
    assert box.run("hostname") == "a" * 63 + "\n"


def test_peers_are_never_looked_for_by_arp(box: Sandboxed) -> None:
    """All pods share one neighbour table of the kernel; forty pods that all talk to each other would overflow it."""
    box.open("a")
    address = box.open("b")
    serve(box, "b")
    assert ask(box, "a", address) == "b"
    entries = box.run("cat /proc/net/arp", "a").splitlines()[1:]
    assert [entry.split()[::2][:2] for entry in entries] == [["10.200.0.1", "0x6"]]  # permanent


def test_an_address_that_nobody_has_yet_drops_what_is_sent_to_it(box: Sandboxed) -> None:
    """A connection to a pod that starts a little later must succeed, and not be refused."""
    box.open()
    code = "import socket; socket.create_connection(('10.200.9.9', 1), 0.2)"
    name, _ = box.attempt(script(box, code))
    box.event("ended", container=name)
    assert "TimeoutError" in box.said(name)


_LOOK_UP = """
import socket, time
began = time.monotonic()
for name in ["no-such-name"] * 20:
    try:
        socket.gethostbyname(name)
    except socket.gaierror:
        pass
assert socket.gethostbyname("peer.job.svc") == "10.200.0.9"
assert socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect_ex(("203.0.113.53", 53)) == 101
print(time.monotonic() - began)
"""


def test_without_a_way_out_names_that_nobody_has_are_missed_at_once(box: Sandboxed, folder: Path) -> None:
    """The pod itself reports ENETUNREACH: the kernel limits ICMP errors of the gateway, resolvers would wait."""
    (folder / "hosts").write_text("10.200.0.9 peer.job.svc\n")
    (folder / "resolv.conf").write_text("nameserver 203.0.113.53\n")
    resolver = [{"source": str(folder / "resolv.conf"), "target": "/etc/resolv.conf"}]
    names = []
    for pod in ("a", "b", "c"):
        box.open(pod, hosts=str(folder / "hosts"))
        names.append(box.attempt(script(box, _LOOK_UP), pod, mounts=resolver)[0])
    for name in names:
        assert box.event("ended", container=name)["code"] == 0, box.said(name)
        assert float(box.said(name)) < 50  # 20 names; each that waits takes 5 seconds


def test_a_pod_can_have_the_address_of_one_that_has_just_gone(box: Sandboxed) -> None:
    box.open("peer")
    for round_ in range(5):
        address = box.open(f"pod-{round_}", address="10.200.7.7")
        serve(box, f"pod-{round_}")
        assert ask(box, "peer", address) == f"pod-{round_}"
        box.call("close", pod=f"pod-{round_}")


def test_a_pod_on_the_hosts_network_sees_its_links(box: Sandboxed) -> None:
    box.open(network="host")
    box.open("own")
    links = "cut -d: -f1 /proc/net/dev | tail -n +3 | xargs"
    assert sorted(box.run(links).split()) == sorted(path.name for path in Path("/sys/class/net").iterdir())
    assert sorted(box.run(links, "own").split()) == ["eth0", "lo"]


def test_who_is_not_root_may_listen_on_low_ports_too(box: Sandboxed) -> None:
    box.open("web")
    serve(box, "web", 80)
    assert ask(box, "web", "127.0.0.1", 80) == "web"


@pytest.fixture
def holder(who: str) -> Iterator[dict[str, int]]:
    """A network that several supervisors share, held by a separate process."""
    # In a network without a connection to the outside, so that the tests do not change this machine's network.
    alone = ["unshare", "--net"] if who == "root" else []
    command = [*alone, *as_who(who), python(who) or "", "-m", "trainwright.node.supervisor.outside", SUBNET]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/") as process:
        assert process.stdout is not None
        paths = json.loads(process.stdout.readline())
        fds = {name: os.open(path, os.O_RDONLY) for name, path in paths.items() if path}
        yield fds
        for fd in fds.values():
            os.close(fd)


def test_supervisors_can_share_a_network(who: str, folder: Path, holder: dict[str, int]) -> None:
    boxes = [Sandboxed(folder / name, who, holder=holder) for name in ("node-0", "node-1")]
    try:
        for box in boxes:
            box.ready()
        address = boxes[0].open("a", address="10.200.1.1")
        boxes[1].open("b", address="10.200.1.2")
        serve(boxes[0], "a")
        assert ask(boxes[1], "b", address) == "a"
    finally:
        for box in boxes:
            box.end()
