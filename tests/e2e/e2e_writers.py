# SPDX-License-Identifier: Apache-2.0
"""Clients that write through the Kubernetes API of the engine without a pause, so that a kill hits writes on their way.

Each writer has ConfigMaps of its own and remembers what the engine has acknowledged. After each lost connection it
compares, before its next write: the ConfigMaps are as acknowledged, or as after the one write that got no answer.
"""

import random
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from trainwright.errors import TrainwrightError, UnavailableError
from trainwright.kube.blocking import ClusterClient, engine_client

_RESOURCE, _LABEL, _NAMESPACE = "configmaps", "soak-writer", "default"
_ANSWER_SECONDS, _PAUSE_SECONDS = 60.0, 0.02
#: A writer has at most this many ConfigMaps at the same time.
_MOST = 4
#: The ConfigMaps of a writer: the value of each name.
Values = dict[str, str]


class ApiWriter:
    """One client with a thread of its own: it creates, patches and deletes ConfigMaps."""

    def __init__(self, socket: Path, name: str, seed: int) -> None:
        self._socket, self._name = socket, name
        self._random = random.Random(seed)  # noqa: S311 - a test, no secret
        self._values: Values = {}
        self._number = 0
        #: The values after the write that has no answer; None: every write has one.
        self._unanswered: Values | None = None
        self._stopping = Event()
        #: The time of the last kill of the engine.
        self.killed = 0.0
        #: The number of writes with an answer, and of those without one that a kill has hit.
        self.acknowledged = self.interrupted = 0
        #: What the engine did wrong.
        self.fault = ""
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join()

    def compare(self) -> None:
        """Compare once more, after `stop`."""
        with engine_client(self._socket, _ANSWER_SECONDS) as client:
            self._compare(client)

    def _run(self) -> None:
        while not self._stopping.is_set() and not self.fault:
            try:
                with engine_client(self._socket, _ANSWER_SECONDS) as client:
                    self._compare(client)
                    while not self._stopping.wait(self._random.uniform(0, _PAUSE_SECONDS)) and not self.fault:
                        self._write(client)
            except UnavailableError:  # the engine is killed, or starts
                self._stopping.wait(_PAUSE_SECONDS)
            except TrainwrightError as error:
                self.fault = f"{self._name}: {error}"

    def _compare(self, client: ClusterClient) -> None:
        found, _ = client.list(_RESOURCE, namespace=_NAMESPACE, labels=f"{_LABEL}={self._name}")
        values = {one["metadata"]["name"]: one["data"]["value"] for one in found}
        if values not in (self._values, self._unanswered):
            self.fault = f"{self._name}: {values}; acknowledged are {self._values}, on their way {self._unanswered}"
        self._values, self._unanswered = values, None

    def _write(self, client: ClusterClient) -> None:
        """One write. If it raises UnavailableError, nobody knows whether the engine has made it."""
        send, after = self._next(client)
        self._unanswered, began = after, monotonic()
        try:
            send()
        except UnavailableError:
            if began < self.killed:
                self.interrupted += 1
            raise
        self._values, self._unanswered = after, None
        self.acknowledged += 1

    def _next(self, client: ClusterClient) -> tuple[Callable[[], object], Values]:
        """A random write, and the values after it."""
        self._number += 1
        value, names = str(self._number), sorted(self._values)
        verbs = ["patch"] * 3 * len(names) + ["create"] * (_MOST - len(names)) + ["delete"] * len(names)
        verb = self._random.choice(verbs)
        if verb == "create":
            name = f"{self._name}-{value}"
            metadata = {"name": name, "namespace": _NAMESPACE, "labels": {_LABEL: self._name}}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}
            return lambda: client.create(_RESOURCE, body), {**self._values, name: value}
        name = self._random.choice(names)
        if verb == "patch":
            change = {"data": {"value": value}}
            return lambda: client.patch(_RESOURCE, (_NAMESPACE, name), change), {**self._values, name: value}
        kept = {other: old for other, old in self._values.items() if other != name}
        return lambda: client.delete(_RESOURCE, (_NAMESPACE, name)), kept


class ApiWriters:
    """Several writers at the same time."""

    def __init__(self, socket: Path, count: int, seed: int) -> None:
        self._writers = [ApiWriter(socket, f"writer-{number}", seed + number) for number in range(count)]

    def before_kill(self) -> None:
        """Call this before the engine is killed, so that the writers know which of their writes the kill has hit."""
        for one in self._writers:
            one.killed = monotonic()

    def check(self) -> None:
        """Fail if the engine did something wrong."""
        faults = [one.fault for one in self._writers if one.fault]
        assert not faults, faults

    def stop(self) -> None:
        """End the threads."""
        for one in self._writers:
            one.stop()

    def compare(self) -> None:
        """Compare the ConfigMaps of all writers once more, after `stop`."""
        for one in self._writers:
            one.compare()
        self.check()

    def report(self) -> str:
        """One line for people."""
        acknowledged = sum(one.acknowledged for one in self._writers)
        interrupted = sum(one.interrupted for one in self._writers)
        return f"{acknowledged} writes through the API, and {interrupted} on their way at a kill"
