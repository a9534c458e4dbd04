# SPDX-License-Identifier: Apache-2.0
"""GenericJobs for a real control plane, and what becomes of them, seen as people see it: through the API and kubectl.

Pods run on fake nodes as their annotations say (`cluster_pods.Script`).
"""

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_client import until
from cluster_plane import ControlPlane
from cluster_pods import PREFIX

from patience import PATIENCE

Body = dict[str, Any]
API = "batch.tensorstack.dev/v1beta1"
ENDS = ("Succeeded", "Failed")


def role(
    name: str = "worker",
    replicas: int = 1,
    *,
    limit: int = 0,
    policy: str = "OnFailure",
    pod: Body | None = None,
    **script: str,
) -> Body:
    """Replicas whose pods fake nodes play so: `exit="1,0"`, `runs="forever"`."""
    container = {"name": "main", "image": "none", "command": ["true"]}
    notes = {"annotations": {PREFIX + key: value for key, value in script.items()}} if script else {}
    template = {"metadata": notes, "spec": {"containers": [container], **(pod or {})}}
    return {
        "type": name,
        "replicas": replicas,
        "restartPolicy": {"policy": policy, "limit": limit},
        "template": template,
    }


def job(name: str, *roles: Body, **spec: Any) -> Body:
    """A GenericJob; of one worker, if no roles are said."""
    metadata = {"name": name}
    return {
        "apiVersion": API,
        "kind": "GenericJob",
        "metadata": metadata,
        "spec": {"replicaSpecs": [*(roles or (role(),))], **spec},
    }


class Jobs:
    """The jobs of one namespace, and what belongs to them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.path = f"/apis/{API}/namespaces/{namespace}/genericjobs"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> str:
        """What it says, in this namespace."""
        done = self.plane.kubectl("-n", self.namespace, *words, given=given, check=check)
        return done.stdout + ("" if check else done.stderr)

    def apply(self, *bodies: Body) -> None:
        """As people do."""
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))

    def make(self, body: Body) -> Body:
        """At once."""
        return self.plane.call("POST", self.path, body)

    def find(self, name: str) -> Body:
        """The job, or nothing."""
        return self.plane.find(f"{self.path}/{name}") or {}

    def status(self, name: str) -> Body:
        """Its status, or nothing."""
        found = self.find(name).get("status")
        return found if isinstance(found, dict) else {}

    def phase(self, name: str) -> str:
        """Its phase."""
        return str(self.status(name).get("phase", ""))

    def until(self, name: str, *phases: str, patience: float = PATIENCE) -> Body:
        """Wait for one of these phases; the status."""
        until(lambda: self.phase(name) in phases, f"{name} is {phases}: {self.status(name)}", patience)
        return self.status(name)

    def condition(self, name: str, kind: str = "ReplicaFailure") -> str:
        """The message of a condition that is true, or nothing."""
        found = self.status(name).get("conditions") or ()
        return "".join(one["message"] for one in found if (one["type"], one["status"]) == (kind, "True"))

    def until_told(self, name: str, text: str, patience: float = PATIENCE) -> None:
        """Wait until the status says so, and an event does."""
        until(lambda: text in self.condition(name), f"{text!r} of {name}: {self.status(name)}", patience)
        until(lambda: any(text in said for said in self.events(name)), f"{text!r}: {self.events(name)}", patience)

    def events(self, name: str) -> list[str]:
        """What was told of it: `Running demo is running.`, in order."""
        about = f"involvedObject.kind=GenericJob,involvedObject.name={name}"
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector={about}"
        found = sorted(self.plane.call("GET", path)["items"], key=lambda one: int(one["metadata"]["resourceVersion"]))
        return [f"{one['reason']} {one['message']}" for one in found]

    def pods(self, name: str = "") -> dict[str, Body]:
        """All pods, or those of one job, by name."""
        items = self.plane.call("GET", self.pods_path)["items"]
        found = {one["metadata"]["name"]: one for one in items}
        return {key: one for key, one in found.items() if key.startswith(f"{name}-") or not name}

    def until_pods(self, number: int, name: str = "", phase: str = "") -> dict[str, Body]:
        """Wait for so many pods, in that phase."""

        def there() -> bool:
            found = self.pods(name).values()
            return len(found) == number and all(one["status"].get("phase") == phase or not phase for one in found)

        until(there, f"{number} pods of {name or 'all'} {phase}: {list(self.pods(name))}")
        return self.pods(name)


@contextmanager
def pods_born(jobs: Jobs, log: Path) -> Iterator[Callable[[], Counter[str]]]:
    """Every pod that ever was from now on, by name: how many of different UIDs.

    The API server ends a watch whose reader is slow, as on a loaded machine: it is resumed where it was.
    """
    first = jobs.plane.call("GET", jobs.pods_path)["metadata"]["resourceVersion"]
    log.write_text("")
    over = threading.Event()
    running: list[subprocess.Popen[bytes]] = []

    def watch() -> None:
        while not over.is_set():
            since = next((meta["resourceVersion"] for meta in reversed(_metas(log))), first)
            path = f"{jobs.pods_path}?watch=1&resourceVersion={since}&timeoutSeconds=3600"
            words = [jobs.plane.binaries["kubectl"], f"--kubeconfig={jobs.plane.kubeconfig()}", "get", "--raw", path]
            with log.open("ab") as out:
                running.append(subprocess.Popen(words, stdout=out))
                running[-1].wait()
            whole = log.read_bytes()
            log.write_bytes(whole[: whole.rfind(b"\n") + 1])  # not the line in which it broke off

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        until(lambda: running, "the watch begins")
        yield lambda: Counter(name for name, _ in {(meta["name"], meta["uid"]) for meta in _metas(log)})
    finally:
        over.set()
        while thread.is_alive():
            running[-1].kill()
            thread.join(0.1)


def _metas(log: Path) -> list[Body]:
    whole = log.read_text().rpartition("\n")[0].splitlines()
    changes = [json.loads(line) for line in whole]
    return [change["object"]["metadata"] for change in changes if change["type"] != "ERROR"]
