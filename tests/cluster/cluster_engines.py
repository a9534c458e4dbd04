# SPDX-License-Identifier: Apache-2.0
"""The embedded engine and a control plane as two places that run the same jobs, with the same few operations.

The nodes have the same names in both places, and their agents are real processes of this machine.
"""

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from cluster_client import until
from cluster_plane import ControlPlane
from cluster_process import Process

from trainwright.cli.runs import latest
from trainwright.errors import NotFoundError
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import find as find_kind
from trainwright.local.sockets.blocking import BlockingClient
from trainwright.model.meta import Key

Body = dict[str, Any]
#: The Python interpreter itself comes before a shim such as pyenv, which would be a process of its own.
PATH = {"PATH": os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ.get("PATH", os.defpath)])}


def find_process(*words: str) -> int:
    """Wait for the one process whose arguments contain all these words, and return its id."""
    until(lambda: len(_processes(words)) == 1, f"one process with {words}: {_processes(words)}")
    return _processes(words)[0]


def _processes(words: Sequence[str]) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [int(entry.name)] if all(word in arguments for word in words) else []
    return found


def _kind(body: Body) -> Kind:
    found = find_kind(body["apiVersion"], body["kind"])
    assert found is not None
    return found


class Machine:
    """`trainwright run` of all these jobs."""

    name = "here"

    def __init__(self, folder: Path, bodies: Iterable[Body], *options: str) -> None:
        self._folder = folder
        texts = [json.dumps(body) for body in bodies]
        self._key = Key("default", json.loads(texts[0])["metadata"]["name"])
        (folder / "all.yaml").write_text("\n---\n".join(texts))
        env = {"TRAINWRIGHT_STATE": str(folder / "state"), "TRAINWRIGHT_LEASES": str(folder), **PATH}
        words = [sys.executable, "-m", "trainwright", "run", "--no-logs", *options, str(folder / "all.yaml")]
        self.process = Process("run", words, folder / "run.log", env)

    def close(self) -> None:
        """End the run, however it is."""
        self.process.kill()
        if "_client" in self.__dict__:
            self._client.__exit__()

    @cached_property
    def _client(self) -> BlockingClient:
        def socket() -> Path | None:
            run = latest(self._folder / "state", self._key)
            return run.socket if run is not None and run.live and run.socket.exists() else None

        return BlockingClient(until(socket, "the run has a socket"))

    def ledger(self, body: Body) -> Body:
        """What `status.trainwright` of a job is now."""
        kind, found = _kind(body), Body()
        with suppress(NotFoundError):
            found = self._client.get(f"{kind.plural}.{kind.group}", ("default", body["metadata"]["name"]))
        return (found.get("status") or {}).get("trainwright") or {}

    def pods(self, job: str) -> list[Body]:
        """The pods of a job."""
        return [pod for pod in self._client.list("pods")[0] if pod["metadata"]["name"].startswith(f"{job}-")]

    def delete(self, pod: Body) -> None:
        """Delete a pod as a user does."""
        grace = pod["spec"]["terminationGracePeriodSeconds"]
        self._client.delete("pods", ("default", pod["metadata"]["name"]), grace=grace)

    def kill_node(self, node: str) -> None:
        """Kill the agent of a node; its pods die with it."""
        os.kill(find_process("trainwright.local.agent_main", str(self._folder), f'"node":"{node}"'), signal.SIGKILL)

    def ledgers(self) -> dict[str, Body]:
        """What `status.trainwright` of each job was at the end of the run, by name."""
        run = latest(self._folder / "state", self._key)
        assert run is not None, self.process.tail()
        documents = yaml.safe_load_all((run.folder / "status.yaml").read_text())
        return {one["metadata"]["name"]: one["status"]["trainwright"] for one in documents}


class Cluster:
    """A namespace of a control plane whose nodes are node agents."""

    name = "there"

    def __init__(self, plane: ControlPlane, namespace: str, agents: dict[str, Process]) -> None:
        self.plane, self._agents = plane, agents
        self._namespace = namespace
        self._path = f"/api/v1/namespaces/{namespace}"

    def submit(self, body: Body) -> None:
        """Create a job."""
        self.plane.call("POST", self._jobs(body), body)

    def ledger(self, body: Body) -> Body:
        """What `status.trainwright` of a job is now."""
        found = self.plane.find(f"{self._jobs(body)}/{body['metadata']['name']}") or {}
        return (found.get("status") or {}).get("trainwright") or {}

    def _jobs(self, body: Body) -> str:
        return f"/apis/{body['apiVersion']}/namespaces/{self._namespace}/{_kind(body).plural}"

    def pods(self, job: str) -> list[Body]:
        """The pods of a job."""
        items = self.plane.call("GET", f"{self._path}/pods")["items"]
        return [pod for pod in items if pod["metadata"]["name"].startswith(f"{job}-")]

    def create(self, kind: str, body: Body) -> None:
        """Create an object of this namespace."""
        self.plane.call("POST", f"{self._path}/{kind}", body)

    def delete(self, pod: Body) -> None:
        """Delete a pod as a user does."""
        self.plane.call("DELETE", f"{self._path}/pods/{pod['metadata']['name']}")

    def kill_node(self, node: str) -> None:
        """Kill the agent of a node; its pods die with it."""
        self._agents[node].kill()
