# SPDX-License-Identifier: Apache-2.0
"""Small manifests of all kinds, and `trainwright simulate` on them."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainwright.cli.main import run

Body = dict[str, Any]


def template(container: str) -> Body:
    return {"spec": {"containers": [{"name": container, "image": "busybox", "command": ["train"]}]}}


def generic(workers: int = 2, *, limit: int = 3, policy: str = "OnFailure", **spec: Any) -> Body:
    role = {"type": "worker", "replicas": workers, "restartPolicy": {"policy": policy, "limit": limit}}
    return _job(
        "batch.tensorstack.dev/v1beta1", "GenericJob", replicaSpecs=[role | {"template": template("main")}], **spec
    )


def tensorflow(policy: str = "ExitCode", **spec: Any) -> Body:
    types = {
        name: {"replicas": count, "restartPolicy": policy, "template": template("tensorflow")}
        for name, count in (("PS", 1), ("Worker", 2))
    }
    return _job("kubeflow.org/v1", "TFJob", tfReplicaSpecs=types, **spec)


def paddle(workers: int = 3, *, elastic: bool = True, **spec: Any) -> Body:
    bounds = {"requests": 2, "limits": 4} if elastic else {}
    worker = {"replicas": workers, "template": template("paddle"), **bounds}
    return _job("batch.paddlepaddle.org/v1", "PaddleJob", worker=worker, **({"elastic": 1} if elastic else {}), **spec)


def training(scope: str = "All", policy: str = "OnNodeFail", **more: Any) -> Body:
    roles = {
        name: {
            "replicas": count,
            "restartPolicy": policy,
            "restartScope": scope,
            "restartLimit": 2,
            "template": template(f"aitj-{name}"),
            **(more if name == "trainer" else {}),
        }
        for name, count in (("pserver", 1), ("trainer", 2))
    }
    return _job("elasticdeeplearning.ai/v1", "AITrainingJob", replicaSpecs=roles)


def _job(api: str, kind: str, **spec: Any) -> Body:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "demo"}, "spec": spec}


class Simulated:
    """The command in a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = folder / "job.yaml", capsys

    def __call__(self, manifest: Body, *options: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._file.write_text(json.dumps(manifest))
        code = run(["simulate", str(self._file), *options])
        return code, *self._capsys.readouterr()

    def json(self, manifest: Body, *options: str) -> Body:
        code, out, err = self(manifest, "-o", "json", *options)
        assert (code, err) == (0, "")
        found: Body = json.loads(out)
        return found

    def lines(self, manifest: Body, *options: str) -> list[str]:
        """The lines of the timeline from the first fault on: time, what, text."""
        entries = self.json(manifest, *options)["timeline"]
        begin = next((place for place, one in enumerate(entries) if one["what"] == "fault"), 0)
        return [f"{one['at']:g} {one['what']}: {one['text']}" for one in entries[begin:] if one["what"] != "event"]
