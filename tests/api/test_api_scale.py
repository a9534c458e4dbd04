# SPDX-License-Identifier: Apache-2.0
"""The scale subresource of jobs, as kubectl and autoscalers use it."""

from typing import Any

import pytest
from api_server import JSON_PATCH, MERGE, ServedStore

from trainwright.model.job import Body

JOBS = "/apis/kubeflow.org/v1/namespaces/default/{}"
#: Plural -> kind, name of its replica specs, name of its container.
KINDS = {
    "pytorchjobs": ("PyTorchJob", "pytorchReplicaSpecs", "pytorch"),
    "jaxjobs": ("JAXJob", "jaxReplicaSpecs", "jax"),
    "paddlejobs": ("PaddleJob", "paddleReplicaSpecs", "paddle"),
}
each = pytest.mark.parametrize("plural", KINDS)


def job(plural: str, **types: int | None) -> Body:
    kind, field, container = KINDS[plural]
    template = {"spec": {"containers": [{"name": container, "image": "x"}]}}
    specs = {
        name: {"template": template} | ({} if replicas is None else {"replicas": replicas})
        for name, replicas in (types or {"Worker": 2}).items()
    }
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "a"}, "spec": {field: specs}}


async def made(api: ServedStore, plural: str, **types: int | None) -> str:
    """The path of the scale of a new job."""
    path = JOBS.format(plural)
    await api.make(path, job(plural, **types))
    return f"{path}/a/scale"


async def workers(api: ServedStore, plural: str) -> Any:
    body = (await api.ask("GET", f"{JOBS.format(plural)}/a")).body
    return body["spec"][KINDS[plural][1]]["Worker"].get("replicas")


@each
async def test_a_scale_is_read(api: ServedStore, plural: str) -> None:
    path = await made(api, plural)
    stored = (await api.ask("GET", f"{JOBS.format(plural)}/a")).body["metadata"]
    scale = await api.ask("GET", path)

    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    assert scale.code == 200
    assert scale.body == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: stored[name] for name in shown},
        "spec": {"replicas": 2},
        "status": {"replicas": 0},
    }


async def test_a_scale_has_the_count_and_the_selector_of_the_status(api: ServedStore) -> None:
    path = await made(api, "jaxjobs")
    status = {"status": {"replicaStatuses": {"Worker": {"active": 2, "selector": "a=b"}}}}
    await api.ask("PATCH", path.replace("/scale", "/status"), status, kind=MERGE)

    assert (await api.ask("GET", path)).body["status"] == {"replicas": 2, "selector": "a=b"}


async def test_replicas_that_are_not_written_are_one(api: ServedStore) -> None:
    path = await made(api, "pytorchjobs", Worker=None)

    assert (await api.ask("GET", path)).body["spec"] == {"replicas": 1}


@each
@pytest.mark.parametrize(
    ("patch", "kind"),
    [
        ({"spec": {"replicas": 3}}, MERGE),
        ([{"op": "replace", "path": "/spec/replicas", "value": 3}], JSON_PATCH),
    ],
    ids=["merge", "json"],
)
async def test_a_patch_scales(api: ServedStore, plural: str, patch: Any, kind: str) -> None:
    path = await made(api, plural)
    answer = await api.ask("PATCH", path, patch, kind=kind)

    assert (answer.code, answer.body["kind"], answer.body["spec"]) == (200, "Scale", {"replicas": 3})
    assert await workers(api, plural) == 3


@each
async def test_an_update_scales_unless_the_job_has_changed(api: ServedStore, plural: str) -> None:
    path = await made(api, plural)
    scale = (await api.ask("GET", path)).body
    scale["spec"]["replicas"] = 4
    assert (await api.ask("PUT", path, scale)).code == 200
    assert await workers(api, plural) == 4

    scale["spec"]["replicas"] = 5
    stale = await api.ask("PUT", path, scale)
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert await workers(api, plural) == 4


async def test_a_dry_run_scales_nothing(api: ServedStore) -> None:
    path = await made(api, "jaxjobs")
    answer = await api.ask("PATCH", f"{path}?dryRun=All", {"spec": {"replicas": 3}}, kind=MERGE)

    assert (answer.code, answer.body["spec"]) == (200, {"replicas": 3})
    assert await workers(api, "jaxjobs") == 2


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("PATCH", {"spec": {"replicas": 0}}, 422),  # a PyTorchJob with a type Worker has at least one worker
        ("PATCH", {"spec": {"replicas": -1}}, 422),
        ("PATCH", {"spec": {"replicas": "x"}}, 400),
        ("PATCH", {"spec": {"replicas": True}}, 400),
        ("PATCH", {"metadata": {"name": "z"}}, 400),
        ("PATCH", {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 3}}, 409),
        ("PATCH", {"kind": "X"}, 400),
        ("PUT", {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": 3}}, 400),  # no name
        ("PUT", {}, 400),
        ("DELETE", None, 405),
        ("POST", {}, 405),
    ],
    ids=str,
)
async def test_a_wrong_scale_is_refused(api: ServedStore, method: str, body: Any, code: int) -> None:
    path = await made(api, "pytorchjobs")
    more = {"kind": MERGE} if method == "PATCH" else {}
    answer = await api.ask(method, path, body, **more)

    assert answer.code == code, answer.body
    assert await workers(api, "pytorchjobs") == 2


async def test_a_job_without_workers_has_no_scale(api: ServedStore) -> None:
    path = await made(api, "pytorchjobs", Master=1)
    read, written = await api.ask("GET", path), await api.ask("PATCH", path, {"spec": {"replicas": 2}}, kind=MERGE)

    assert (read.code, written.code) == (500, 422)
    assert '".spec.pytorchReplicaSpecs.Worker.replicas" does not exist' in read.body["message"]
    assert "spec.pytorchReplicaSpecs.Worker.replicas: Required value" in written.body["message"]


async def test_other_kinds_have_no_scale(api: ServedStore) -> None:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "x"}]}}
    spec = {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
    path = JOBS.format("tfjobs")
    await api.make(path, {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "a"}, "spec": spec})

    assert (await api.ask("GET", f"{path}/a/scale")).code == 404


@pytest.mark.parametrize(("role", "read", "write"), [("viewer", 200, 403), ("user", 200, 200), ("admin", 200, 200)])
async def test_who_may_scale(api: ServedStore, role: str, read: int, write: int) -> None:
    path = await made(api, "jaxjobs")

    assert (await api.ask("GET", path, role=role)).code == read
    assert (await api.ask("PATCH", path, {"spec": {"replicas": 3}}, kind=MERGE, role=role)).code == write
