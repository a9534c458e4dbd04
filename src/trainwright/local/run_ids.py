# SPDX-License-Identifier: Apache-2.0
"""Gives every job of the background engine the id of its run, and gives the same id to the pods of the job.

The id is the name of the job's folder, which has the logs and the record of the job. A job that is deleted and created
again under the same name gets a new id, so the logs of both jobs are kept.
"""

import secrets
from contextlib import suppress
from datetime import datetime

from trainwright.errors import NotFoundError
from trainwright.kinds.registry import KINDS
from trainwright.local.storage.store import Store
from trainwright.model.job import Body
from trainwright.model.meta import RUN, Key
from trainwright.node.submission import run_of
from trainwright.runtime.ports import PODS, Clock, jobs_of


def new_run_id(now: datetime) -> str:
    """A new id. Sorted ids are in the order of time, also if several jobs are created within one second."""
    return f"{now:%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"


def install(store: Store, clock: Clock) -> None:
    """Register the hooks that write the annotation `trainwright.dev/run` into jobs and pods."""

    def admit_job(before: Body | None, body: Body) -> Body:
        """Keep the id of a stored job, also if a user edits the annotation. A new job may bring its id."""
        known = _run(before) if before is not None else ""
        return _with_run(body, known or _run(body) or new_run_id(clock.now()))

    def admit_pod(before: Body | None, body: Body) -> Body:
        return body if before is not None else _with_run(body, _run_of_owner(store, body))

    for kind in KINDS:
        store.admit(jobs_of(kind), admit_job)
    store.admit(PODS, admit_pod)


def _run(body: Body) -> str:
    return run_of(body["metadata"].get("annotations"), RUN)


def _with_run(body: Body, run: str) -> Body:
    meta = body["metadata"]
    annotations = meta.get("annotations") or {}
    if annotations.get(RUN, "") == run:
        return body
    others = {key: value for key, value in annotations.items() if key != RUN}
    return {**body, "metadata": {**meta, "annotations": {**others, RUN: run} if run else others}}


def _run_of_owner(store: Store, pod: Body) -> str:
    """The run of the job that controls a new pod; empty if no job controls the pod."""
    meta = pod["metadata"]
    for owner in meta.get("ownerReferences") or ():
        kind = next((one for one in KINDS if one.name == owner.get("kind")), None)
        if owner.get("controller") and kind is not None:
            with suppress(NotFoundError):
                job = store.get(jobs_of(kind), Key(meta.get("namespace", ""), owner.get("name", "")))
                if job["metadata"]["uid"] == owner.get("uid"):
                    return _run(job)
    return ""
