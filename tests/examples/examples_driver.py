# SPDX-License-Identifier: Apache-2.0
"""An example's pods, started by hand as plain subprocesses: what the process runtime does, without an engine.

The operator spells the pods, as it would for an engine; each gets a loopback address of its own, which stands where a
name would. Mount paths become folders of the test. Tests of `tests/examples` start, kill and start again.
"""

import os
import re
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from patience import PATIENCE
from trainwright.kinds.base import load
from trainwright.kinds.genericjob import GENERICJOB
from trainwright.model.job import Body
from trainwright.model.site import Site
from trainwright.testing.factories import UID
from trainwright.testing.world import World

EXAMPLES = Path(__file__).parents[2] / "examples"
#: No more than a container gets.
PASSED = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


def address(number: int) -> str:
    """A loopback address that no other test process hands out."""
    own = os.getpid()
    return f"127.{16 + own % 200}.{own // 200 % 250}.{number + 1}"


class ExampleProcesses:
    """One example and the processes started for it. `hosts` tells where its replicas are."""

    def __init__(self, path: Path, folder: Path, changes: dict[str, str] | None = None) -> None:
        text = path.read_text(encoding="utf-8")
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        documents = list(yaml.safe_load_all(text))
        self.folder = folder
        self.beside = {body["kind"]: body for body in documents[:-1]}
        self.hosts: dict[str, str] = {}
        self.pods = self._made(documents[-1])
        self.started: list[subprocess.Popen[bytes]] = []

    def _made(self, manifest: Body) -> dict[str, Body]:
        """The pods that the operator makes of it, by `type-rank`, with addresses for names."""
        loaded = load(GENERICJOB, manifest | {"metadata": manifest["metadata"] | {"uid": UID}})
        assert loaded.problems == ()
        job = loaded.job
        names = [f"{job.key.name}-{role.name}-{rank}" for role in job.roles for rank in range(role.replicas)]
        self.hosts = {name: address(number) for number, name in enumerate(names)}
        hosts = {(job.key, name): host for name, host in self.hosts.items()}
        world = World(job, site=Site(names_resolve=False, hosts=hosts))
        world.settle()
        if job.lifecycle.suspended:
            world.edit(lifecycle=replace(job.lifecycle, suspended=False))
            world.settle()
        bodies = [create.body for plan in world.plans for create in plan.creates if create.body["kind"] == "Pod"]
        return {body["metadata"]["name"].removeprefix(f"{job.key.name}-"): body for body in bodies}

    # -- a pod's process -------------------------------------------------------------------------------------------

    def start(self, name: str, *, before: str = "", **env: str) -> subprocess.Popen[bytes]:
        """Run the pod's container; its output is added to what it wrote before. `before` goes ahead of its program."""
        pod = self.pods[name]
        (container,) = pod["spec"]["containers"]
        known = self._environment(pod, container) | env
        words = [_expanded(word, known) for word in [*container["command"], *container.get("args", ())]]
        for mount in container.get("volumeMounts", ()):
            words = [word.replace(mount["mountPath"], str(self._volume(pod, mount))) for word in words]
        if before:
            words[2] = before + words[2]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(words, env=PASSED | known, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.started.append(process)
        return process

    def _environment(self, pod: Body, container: Body) -> dict[str, str]:
        known: dict[str, str] = {}
        for _ in container.get("envFrom", ()):
            known |= self.beside["ConfigMap"]["data"]
        for entry in container.get("env", ()):
            value = entry["value"] if "value" in entry else self._taken(pod, container, entry["valueFrom"])
            known[entry["name"]] = _expanded(value, known)
        return known

    def _taken(self, pod: Body, container: Body, source: dict[str, Any]) -> str:
        match source:
            case {"fieldRef": {"fieldPath": path}}:
                return str(pod["metadata"][path.removeprefix("metadata.")])
            case {"secretKeyRef": {"key": key}}:
                return str(self.beside["Secret"]["stringData"][key])
            case {"resourceFieldRef": {"resource": path, "divisor": unit}}:
                group, resource = path.split(".")
                return str(container["resources"][group][resource]).removesuffix(unit[1:])
        raise AssertionError(source)

    def _volume(self, pod: Body, mount: Body) -> Path:
        """The folder that stands for a volume, filled with what belongs into it."""
        folder = self.folder / str(mount["name"])
        folder.mkdir(exist_ok=True)
        (volume,) = (volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
        files: dict[str, str] = {}
        if "configMap" in volume:
            files = self.beside["ConfigMap"]["data"]
        elif "secret" in volume:
            files = self.beside["Secret"]["stringData"]
        for key, content in files.items():
            (folder / key).write_text(content)
        return folder

    # -- looking on ------------------------------------------------------------------------------------------------

    def output(self, name: str) -> str:
        """All that the replica has written, over its restarts."""
        return (self.folder / f"{name}.log").read_text()

    def until(self, name: str, text: str) -> None:
        """Wait until the replica has written that."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.output(name):
            assert time.monotonic() < deadline, f"{text!r} is not in: {self.output(name)}"
            time.sleep(0.01)

    def connection(self, name: str, port: int) -> socket.socket:
        """Connect to a replica once it listens."""
        (host,) = (host for known, host in self.hosts.items() if known.endswith(name))
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(ConnectionRefusedError):
                return socket.create_connection((host, port))
            time.sleep(0.01)
        raise AssertionError(f"{name} does not listen: {self.output(name)}")

    def close(self) -> None:
        """End what is left."""
        for process in self.started:
            process.kill()
            process.wait()


def _expanded(text: str, known: dict[str, str]) -> str:
    """`$(NAME)` as the kubelet expands it."""
    return re.sub(r"\$\(([A-Z_]+)\)", lambda match: known.get(match[1], match[0]), text)
