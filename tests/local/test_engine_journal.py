# SPDX-License-Identifier: Apache-2.0
"""An engine with a journal: it runs a job, and the file has the job and how it ended."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from trainwright.errors import EngineError
from trainwright.local.engine import Engine, EngineSettings
from trainwright.local.storage.store import Store
from trainwright.model.meta import Key
from trainwright.runtime.ports import JOBS, NODES, WallClock

JOB = JOBS["genericjob"]
KEY = Key("default", "demo")


def settings(folder: Path) -> EngineSettings:
    journal, volumes = folder / "state.db", folder / "volumes"
    return EngineSettings(folder=folder, volumes=volumes, working=folder, runtime="process", journal=journal)


def job() -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "command": ["true"]}], "restartPolicy": "Never"}}
    spec = {"replicaSpecs": [{"type": "worker", "replicas": 2, "template": template}]}
    return {"metadata": {"namespace": KEY.namespace, "name": KEY.name}, "spec": spec}


async def end_of(engine: Engine) -> dict[str, Any]:
    async for batch in engine.cluster.watch(JOB, since=""):
        for change in batch:
            outcome = ((change.item.get("status") or {}).get("trainwright") or {}).get("outcome")
            if outcome:
                return dict(outcome)
    raise AssertionError


async def test_the_file_has_the_job_and_its_end(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path))
    await engine.start()
    try:
        await engine.cluster.create(JOB, job())
        outcome = await asyncio.wait_for(end_of(engine), PATIENCE)
        with pytest.raises(EngineError, match="another engine"):
            Engine(settings(tmp_path))
    finally:
        await engine.stop()
    store = Store.open(WallClock(), tmp_path / "state.db")
    kept = store.get(JOB, KEY)
    assert kept["status"]["trainwright"]["outcome"] == outcome
    assert outcome["result"] == "Succeeded"
    assert len(store.list(NODES)[0]) <= 1
    store.close()
