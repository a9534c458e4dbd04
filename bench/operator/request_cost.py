# SPDX-License-Identifier: Apache-2.0
"""Measures what single requests cost the API server: formats of creates, verbs and schemas of status writes.

The variants run in turn in small batches, so that all of them see the same machine. Allocated bytes hardly vary from
run to run and also predict the cost of garbage collection; CPU time varies by a third on a shared machine.

Run: python bench/operator/request_cost.py [ROUNDS]
"""

import asyncio
import copy
import json
import re
import ssl
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

sys.path += [str(Path(__file__).resolve().parents[2] / name) for name in ("tests/cluster", "tests")]

import aiohttp
from cluster_plane import ControlPlane
from shapes import SHAPES, TIME

from trainwright.crd.schema import crd, schema
from trainwright.kinds.tfjob import TFJOB

Body = dict[str, Any]
#: Requests of one variant in one round.
BATCH = 60
AT_ONCE = 8
PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
NAME = "y00000000000000"
OWNER = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": "job", "uid": "0" * 36, "controller": True}
LABELS = {f"trainwright.dev/{name}": "0" for name in ("kind", "job-uid", "role", "index", "attempt")} | {
    f"training.kubeflow.org/{name}": "0" for name in ("job-name", "job-role", "operator-name", "replica-index")
}


def objects() -> dict[str, Body]:
    """Return a pod, a service and an event as large as those that the operator creates for a TFJob."""
    meta = {"name": NAME, "namespace": "default", "labels": LABELS, "ownerReferences": [OWNER]}
    container = {"name": "tensorflow", "image": "none", "env": [{"name": "TF_CONFIG", "value": "x" * 230}]}
    ports = [{"name": "tfjob-port", "port": 2222}]
    about = {key: OWNER[key] for key in ("apiVersion", "kind", "name", "uid")} | {"namespace": "default"}
    return {
        "pods": {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}},
        "services": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"clusterIP": "None", "selector": LABELS, "ports": ports},
        },
        "events": {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": NAME, "namespace": "default"},
            "involvedObject": about,
            "reason": "TFJobSucceeded",
            "message": "TFJob default/job successfully completed.",
            "type": "Normal",
            "firstTimestamp": TIME,
            "lastTimestamp": TIME,
            "count": 1,
        },
    }


class Server:
    """The API server, and what it has used so far."""

    def __init__(self, plane: ControlPlane, session: aiohttp.ClientSession) -> None:
        self._pid, self._session = plane.processes["kube-apiserver"].pid, session

    async def send(
        self, method: str, path: str, body: bytes | None = None, kind: str = JSON, answer: str = JSON
    ) -> bytes:
        headers = {"Content-Type": kind, "Accept": answer}
        async with self._session.request(method, path, data=body, headers=headers) as response:
            data = await response.read()
            assert response.status < 300, (method, path, response.status, data[:300])
            return data

    async def used(self) -> tuple[float, float]:
        """Return milliseconds of CPU and KiB of allocations."""
        text = (await self.send("GET", "/metrics", answer="*/*")).decode()
        found = re.search(r"^go_memstats_alloc_bytes_total (\S+)$", text, re.MULTILINE)
        assert found is not None
        times = [one.read_text() for one in Path(f"/proc/{self._pid}/task").glob("*/schedstat")]
        return sum(int(one.split()[0]) for one in times) / 1e6, float(found[1]) / 1024

    async def measured(self, do: Callable[[int], Awaitable[object]]) -> tuple[float, float]:
        """Return the CPU and the allocations of one request."""
        numbers = iter(range(BATCH))

        async def work() -> None:
            for number in numbers:
                await do(number)

        before = await self.used()
        await asyncio.gather(*[work() for _ in range(AT_ONCE)])
        after = await self.used()
        return (after[0] - before[0]) / BATCH, (after[1] - before[1]) / BATCH


# -- protobuf ----------------------------------------------------------------------------------------------------------


def fields(data: bytes) -> list[tuple[int, int, Any]]:
    """Split a message into its fields: number, wire type and value. Only varints and bytes occur here."""
    found, at = list[tuple[int, int, Any]](), 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = varint()
        value: Any = size
        if key & 7 == 2:
            value, at = data[at : at + size], at + size
        found.append((key >> 3, key & 7, value))
    return found


def joined(parts: list[tuple[int, int, Any]]) -> bytes:
    """Return the message that consists of these fields."""

    def varint(value: int) -> bytes:
        low = bytes([value & 127 | (128 if value > 127 else 0)])
        return low + varint(value >> 7) if value > 127 else low

    return b"".join(
        varint(number << 3 | wire) + (varint(len(value)) + value if wire == 2 else varint(value))
        for number, wire, value in parts
    )


def creatable(stored: bytes, plural: str) -> bytes:
    """Return a stored object in protobuf without what the server has added: UID, versions, times, managers, status."""
    envelope = fields(stored[4:])
    whole = fields(next(value for number, _, value in envelope if number == 2))
    meta = joined([one for one in fields(whole[0][2]) if one[0] not in (5, 6, 7, 8, 17)])
    parts = [(1, 2, meta), *(one for one in whole[1:] if one[0] != 3 or plural == "events")]
    return stored[:4] + joined([(n, wire, joined(parts) if n == 2 else value) for n, wire, value in envelope])


# -- what is compared --------------------------------------------------------------------------------------------------


class Variant(NamedTuple):
    """A format of a create: the body with the name `NAME`, its media type, and the media type of the answer."""

    body: bytes
    kind: str
    answer: str


async def creates(server: Server, rounds: int) -> None:
    """Compare the formats of creates."""
    for plural, body in objects().items():
        path = f"/api/v1/namespaces/default/{plural}"
        text = json.dumps(body).encode()
        await server.send("POST", path, text)
        binary = creatable(await server.send("GET", f"{path}/{NAME}", answer=PROTOBUF), plural)
        variants = {
            "JSON": Variant(text, JSON, JSON),
            "JSON, answer: metadata": Variant(text, JSON, METADATA),
            "protobuf, answer: JSON": Variant(binary, PROTOBUF, JSON),
            "protobuf, answer: metadata": Variant(binary, PROTOBUF, METADATA),
            "protobuf, answer: protobuf": Variant(binary, PROTOBUF, PROTOBUF),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for turn in range(rounds + 1):
            for place, (name, variant) in enumerate(variants.items()):
                cost = await server.measured(partial(_create, server, path, variant, f"x{turn:03}{place}"))
                if turn:
                    found[name].append(cost)
            await server.send("DELETE", f"{path}?gracePeriodSeconds=0")
        show(f"create {plural}", found)


async def _create(server: Server, path: str, variant: Variant, prefix: str, number: int) -> None:
    body = variant.body.replace(NAME.encode(), f"{prefix}{number:010}".encode())
    await server.send("POST", path, body, variant.kind, variant.answer)


def definitions() -> dict[str, Body]:
    """Return CRDs to compare, each in a group of its own."""
    closed = copy.deepcopy(crd(TFJOB))
    for version in closed["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["status"] = schema(TFJOB.wire)["properties"]["status"]
    one_version = copy.deepcopy(crd(TFJOB))
    one_version["spec"]["versions"] = [one for one in one_version["spec"]["versions"] if one["storage"]]
    no_rules = copy.deepcopy(crd(TFJOB))
    for version in no_rules["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"].pop("x-kubernetes-validations", None)
    made = {"ours": crd(TFJOB), "closed": closed, "one-version": one_version, "no-rules": no_rules}
    for name, definition in made.items():
        definition["spec"]["group"] = f"{name}.example.com"
        definition["metadata"] = {"name": f"tfjobs.{name}.example.com"}
    return made


class Jobs:
    """The jobs of one definition in one round, as the server last returned them."""

    def __init__(self, server: Server, definition: str, turn: int) -> None:
        self._server, self._api, self._turn = server, f"{definition}.example.com/v1", turn
        self.path = f"/apis/{self._api}/namespaces/default/tfjobs"
        self._jobs: dict[int, Body] = {}

    async def create(self, number: int) -> None:
        body = {**SHAPES["tfjob"].manifest(f"job-{self._turn}-{number}", 4, "5"), "apiVersion": self._api}
        self._jobs[number] = json.loads(await self._server.send("POST", self.path, json.dumps(body).encode()))

    async def write(self, verb: str, status: Body, number: int) -> None:
        before = self._jobs[number]
        meta = {key: before["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
        path = f"{self.path}/{meta['name']}/status"
        if verb == "patch":
            text = json.dumps({"metadata": meta, "status": status}).encode()
            answer = await self._server.send("PATCH", path, text, "application/merge-patch+json")
        else:
            text = json.dumps({**before, "metadata": meta, "status": status}).encode()
            answer = await self._server.send("PUT", path, text)
        self._jobs[number] = json.loads(answer)


async def statuses(server: Server, rounds: int) -> None:
    """Compare verbs and schemas of status writes: to Running, and to Succeeded."""
    made = definitions()
    for definition in made.values():
        body = json.dumps(definition).encode()
        await server.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    await asyncio.sleep(10)
    verbs = ("create", "patch", "put")
    found: dict[str, list[tuple[float, float]]] = {f"{name}, {verb}": [] for name in made for verb in verbs}
    for turn in range(rounds + 1):
        for name in made:
            jobs = Jobs(server, name, turn)
            costs = {"create": await server.measured(jobs.create)}
            await server.measured(partial(jobs.write, "put", status_of("Running")))
            for verb, phase in (("patch", "Succeeded"), ("put", "Running")):
                costs[verb] = await server.measured(partial(jobs.write, verb, status_of(phase)))
            if turn:
                for verb, cost in costs.items():
                    found[f"{name}, {verb}"].append(cost)
            await server.send("DELETE", jobs.path)
    show("TFJob, by definition and verb", found)


def status_of(phase: str) -> Body:
    """Return a status as large as our operator's."""
    times = dict.fromkeys(("accepted", "started", "running"), TIME)
    attempt = {"number": 1, "start": TIME, "running": TIME, "end": TIME, "lost": 93, "nodes": ["fake-0", "fake-1"]}
    history = {"attempts": [attempt], "begun": TIME, "lost": {"Start": 93}, "productive": 2015, "until": TIME}
    ledger = {"phase": phase, "generation": 1, "roles": [{"name": "Worker", "reached": 4}], "times": times}
    return {**SHAPES["tfjob"].status(phase, ["a"] * 4), "trainwright": {**ledger, "history": history}}


def show(title: str, found: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\n| {title} | KiB allocated | CPU, mean [range] |\n|---|---|---|")
    for name, costs in found.items():
        times = [cpu for cpu, _ in costs]
        kilobytes = mean(size for _, size in costs)
        print(f"| {name} | {kilobytes:.0f} | {mean(times):.2f} ms [{min(times):.2f} to {max(times):.2f}] |", flush=True)


async def main(plane: ControlPlane, rounds: int) -> None:
    context = ssl.create_default_context(cafile=str(plane.authority))
    context.check_hostname = False
    headers = {"Authorization": f"Bearer {plane.tokens['admin']}", "User-Agent": "trainwright"}
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    async with aiohttp.ClientSession(plane.server, connector=connector, headers=headers) as session:
        server = Server(plane, session)
        await creates(server, rounds)
        await statuses(server, rounds)


if __name__ == "__main__":
    with ControlPlane(controllers=False, scheduler=False) as started:
        asyncio.run(main(started, int(sys.argv[1]) if len(sys.argv) > 1 else 20))
