# SPDX-License-Identifier: Apache-2.0
"""`trainwright preflight` as a process, against the embedded store behind HTTP: what it shows, and how it ends."""

import asyncio
import json
import os
import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from kube_store import StoreServer, api, status

from closed_crds import close_status, ledger_of, status_of
from trainwright.kinds.base import Kind
from trainwright.kinds.registry import KINDS
from trainwright.kinds.tfjob import TFJOB
from trainwright.kube.survey import _counts
from trainwright.model.job import Body
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS

TFJOBS = JOBS["tfjob"]
NAME = "tfjobs.kubeflow.org"


class Done(NamedTuple):
    code: int | None
    out: str
    err: str

    @property
    def found(self) -> Any:
        return json.loads(self.out)


async def preflight(folder: Path, address: str, *words: str) -> Done:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "namespace": "lab"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://{address}"}}],
    }
    (folder / "config").write_text(json.dumps(config))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "TRAINWRIGHT"))}
    argv = ["-m", "trainwright", "preflight", "--kubeconfig", str(folder / "config"), *words]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=clean
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return Done(process.returncode, out.decode(), err.decode())


def begun(server: StoreServer, name: str, said: Body | None, namespace: str = "lab") -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
    head = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name, "namespace": namespace}}
    server.store.create(TFJOBS, head | {"spec": {"tfReplicaSpecs": {"Worker": {"template": template}}}})
    if said is not None:
        server.store.patch(TFJOBS, Key(namespace, name), {"status": said}, status=True)


def conditions(*types: str) -> Body:
    return {"conditions": [{"type": one, "status": "True"} for one in types]}


async def test_a_cluster_with_our_own_definitions_has_nothing_in_the_way(tmp_path: Path) -> None:
    async with api() as server:
        begun(server, "mine", conditions("Created", "Running") | {"trainwright": {"phase": "Running"}})
        begun(server, "new", None)
        begun(server, "done", conditions("Created", "Succeeded"))
        done = await preflight(tmp_path, server.address)
        as_json = await preflight(tmp_path, server.address, "-o", "json", "--kinds", "tfjob")
        asked = [line.split()[0] for line in server.asked]

    assert (done.code, done.err) == (0, "")
    assert "Nothing that you may read prevents an install." in done.out
    assert re.search(r"^TFJob +3 +2 +1 +from this version \(", done.out, re.MULTILINE)
    assert "Unfinished TFJobs: 1 of nobody yet, 1 of trainwright" in done.out
    (one,) = as_json.found["kinds"]
    assert (one["kind"], one["definition"]["origin"], one["jobs"]["running"]) == ("TFJob", "current", 1)
    assert (as_json.code, as_json.found["decisions"], as_json.found["notPermitted"]) == (0, [], [])
    assert set(asked) == {"GET"}


async def test_the_jobs_of_another_controller_are_something_to_decide(tmp_path: Path) -> None:
    async with api() as server:
        begun(server, "theirs", conditions("Created", "Running"))
        done = await preflight(tmp_path, server.address)

    assert done.code == 1
    assert "Decide before you install:" in done.out
    assert "1. 1 unfinished TFJob of another controller: lab/theirs." in done.out
    assert "`kubectl annotate tfjob.kubeflow.org NAME -n NAMESPACE trainwright.dev/adopt=true`" in done.out


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "odd", [{"conditions": 7}, {"conditions": [7, {"type": 1}]}, {"phase": 7}, {"phase": {"a": 1}}, ["x"]], ids=str
)
def test_a_status_that_cannot_be_read_is_another_controllers(kind: Kind, odd: Any) -> None:
    counts = _counts(kind, [{"metadata": {"name": "a"}, "spec": {}, "status": odd}])

    assert (counts.unfinished, counts.running, counts.foreign) == (1, 0, ("default/a",))


def _other(server: StoreServer) -> None:
    body = server._definitions[NAME]
    body["metadata"] = {"name": NAME, "annotations": {"controller-gen.kubebuilder.io/version": "v0.16.5"}}
    body["metadata"]["managedFields"] = [{"manager": "kubectl-client-side-apply"}]
    close_status(TFJOB, body)
    for version in body["spec"]["versions"]:
        del status_of(version)["properties"]["trainwright"]


def _older(server: StoreServer) -> None:
    body = server._definitions[NAME]
    close_status(TFJOB, body)
    for version in body["spec"]["versions"]:
        del ledger_of(version)["properties"]["roles"]["items"]["properties"]["retries"]


def _whole(server: StoreServer) -> None:
    """A definition of the previous version, which describes every field of the status."""
    close_status(TFJOB, server._definitions[NAME])


def _newer(server: StoreServer) -> None:
    """A definition that describes a field of the ledger that this version does not know."""
    _whole(server)
    for version in server._definitions[NAME]["spec"]["versions"]:
        ledger_of(version)["properties"]["newer"] = {"type": "string"}


def _newer_spec(server: StoreServer) -> None:
    """A definition that describes a field of the spec that this version does not know."""
    for version in server._definitions[NAME]["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["newer"] = {"type": "string"}


def _stored_elsewhere(server: StoreServer) -> None:
    body = server._definitions[NAME]
    old = deepcopy(body["spec"]["versions"][0]) | {"name": "v1beta2", "storage": False}
    body["spec"]["versions"].append(old)
    body["status"] = {"storedVersions": ["v1beta2", "v1"]}


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            _other,
            f"{NAME} is another owner's (generated by controller-gen v0.16.5, applied by kubectl-client-side-apply)",
        ),
        (
            _older,
            "the operator would refuse to start: tfjobs.kubeflow.org would drop or refuse parts of the durable state",
        ),
        (
            _newer_spec,
            f"{NAME} is of a newer Trainwright (version 0.1.0), and an install would drop spec.newer",
        ),
        (_stored_elsewhere, f"objects of {NAME} are stored as v1beta2, which our definition does not have"),
    ],
)
async def test_a_definition_that_is_not_this_versions(tmp_path: Path, prepare: Any, said: str) -> None:
    async with api() as server:
        prepare(server)
        done = await preflight(tmp_path, server.address, "--kinds", "tfjobs")

    assert done.code == 1
    assert f"1. {said}" in done.out


@pytest.mark.parametrize("prepare", [_whole, _newer])
async def test_a_definition_of_another_version_that_knows_the_whole_ledger_is_nothing_to_decide(
    tmp_path: Path, prepare: Any
) -> None:
    """The operator starts with it, and an install drops nothing: our own definition keeps every field of a status."""
    async with api() as server:
        prepare(server)
        done = await preflight(tmp_path, server.address, "--kinds", "tfjobs")

    assert done.code == 0
    assert "from another version of Trainwright (0.1.0)" in done.out


async def test_what_is_absent_is_nothing_to_decide(tmp_path: Path) -> None:
    async def before(request: web.Request) -> web.Response | None:
        return status(404, "NotFound", "no") if "customresource" in request.path else None

    async with api() as server:
        server.before = before
        done = await preflight(tmp_path, server.address)

    assert done.code == 0
    assert done.out.count("not installed") == len(KINDS)


async def test_what_may_not_be_read_is_shown_as_such_and_is_no_failure(tmp_path: Path) -> None:
    """An ordinary user: no CRDs, nothing of other namespaces, no roles at all."""

    async def before(request: web.Request) -> web.Response | None:
        allowed = "/namespaces/lab/" in request.path and "roles" not in request.path
        return None if allowed else status(403, "Forbidden", "you may not")

    async with api() as server:
        begun(server, "theirs", conditions("Created"))
        begun(server, "hidden", conditions("Created"), namespace="other")
        server.before = before
        done = await preflight(tmp_path, server.address, "-o", "json")
        text = await preflight(tmp_path, server.address)

    (one,) = [kind for kind in done.found["kinds"] if kind["kind"] == "TFJob"]
    assert (one["definition"]["origin"], one["jobs"]["foreign"]) == ("unknown", ["lab/theirs"])
    assert {
        "get customresourcedefinitions tfjobs.kubeflow.org",
        "list tfjobs.kubeflow.org in all namespaces: only lab was read",
        "list clusterroles.rbac.authorization.k8s.io",
        "list roles.rbac.authorization.k8s.io",
    } < set(done.found["notPermitted"])
    assert "Not permitted (the report does not include these):" in text.out
    assert (done.code, text.code, text.err) == (1, 1, "")


async def test_nothing_may_be_read_at_all(tmp_path: Path) -> None:
    async def before(_: web.Request) -> web.Response | None:
        return status(403, "Forbidden", "you may not")

    async with api() as server:
        server.before = before
        done = await preflight(tmp_path, server.address)

    assert (done.code, done.err) == (0, "")
    assert re.search(r"^TFJob +\? +\? +\? +no permission to read it", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 3, "trainwright: "),
        (("--context", "hree"), 2, "there is no context 'hree'; did you mean 'here'?"),
        (("--kinds", "tfjbo"), 2, "there is no kind `tfjbo`; did you mean `TFJob`?"),
    ],
    ids=["nobody answers", "no such context", "no such kind"],
)
async def test_what_keeps_it_from_looking_is_told_in_a_line(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = await preflight(tmp_path, "127.0.0.1:1", *words)

    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
