# SPDX-License-Identifier: Apache-2.0
"""What the background engine does with jobs on request: create a job, and end everything that is unfinished."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from trainwright.cli.background.protocol import SubmitRequest, SubmitResult
from trainwright.errors import AlreadyExistsError, InvalidError, NotFoundError, UnavailableError
from trainwright.kinds.registry import KINDS
from trainwright.kinds.registry import find as find_kind
from trainwright.local.run_ids import new_run_id
from trainwright.local.scheduling.cache import finished
from trainwright.model.job import Body
from trainwright.model.meta import RUN, Key
from trainwright.node import submission
from trainwright.node.submission import Submission
from trainwright.runtime.ports import (
    CLAIMS,
    CONFIG_MAPS,
    PODS,
    SECRETS,
    Clock,
    Cluster,
    Propagation,
    Resource,
    jobs_of,
)

_BESIDE = {resource.kind: resource for resource in (SECRETS, CONFIG_MAPS, CLAIMS)}
_POLL_SECONDS = 0.05

#: A job or a pod: its resource, its key and its UID.
JobOrPod = tuple[Resource, Key, str]


def is_over(job: Body) -> bool:
    """Whether the job has its outcome."""
    return bool(((job.get("status") or {}).get("trainwright") or {}).get("outcome"))


async def submit(cluster: Cluster, clock: Clock, folder: Path, request: SubmitRequest) -> SubmitResult:
    """Create a job with the objects that it needs. A finished job of the same name is replaced.

    The folder of the job is written first: its pods may start as soon as the job is stored.
    """
    job = request["job"]
    kind = find_kind(str(job.get("apiVersion", "")), str(job.get("kind", "")))
    if kind is None:
        raise InvalidError(f"{job.get('kind')} is not a kind of job")
    given = msgspec.convert(request["submission"], Submission)
    key = Key(job["metadata"]["namespace"], job["metadata"]["name"])
    await _replace_finished(cluster, key)
    run = new_run_id(clock.now())
    place = Path(submission.job_folder(str(folder), run))
    try:
        place.mkdir(mode=0o700, parents=True)
        submission.write(place, given)
        for body in request.get("beside") or ():
            await _put(cluster, body)
        annotations = {**(job["metadata"].get("annotations") or {}), RUN: run}
        stored = await cluster.create(
            jobs_of(kind), {**job, "metadata": {**job["metadata"], "annotations": annotations}}
        )
    except UnavailableError:
        raise  # the job may be stored as soon as the disk has space; the next engine removes a folder without a job
    except OSError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise UnavailableError(f"{place}: {error.strerror or error}; the job is not submitted") from None
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return {"job": stored, "run": run, "folder": str(place)}


async def _replace_finished(cluster: Cluster, key: Key) -> None:
    """Remove a finished job of this name. Raises AlreadyExistsError if a job of this name has not finished."""
    for kind in KINDS:
        with suppress(NotFoundError):
            body = await cluster.get(jobs_of(kind), key)
            if not is_over(body):
                raise AlreadyExistsError(f"{key} already runs in the engine; `trainwright delete {key}` ends it")
            await cluster.delete(jobs_of(kind), key, uid=body["metadata"]["uid"], propagation=Propagation.FOREGROUND)
            await _until_gone(cluster, [(jobs_of(kind), key, body["metadata"]["uid"])])


async def _put(cluster: Cluster, body: Body) -> None:
    """Create a Secret, a ConfigMap or a claim, or change an existing one to the given content."""
    resource, key = _BESIDE[body["kind"]].whole(), Key(body["metadata"]["namespace"], body["metadata"]["name"])
    try:
        await cluster.create(resource, body)
    except AlreadyExistsError:
        stored = await cluster.get(resource, key)
        await cluster.patch(resource, key, {**body, **_without_old_keys(stored, body)})


def _without_old_keys(stored: Body, new: Body) -> Body:
    """The data of a Secret or ConfigMap as a merge patch that also removes the keys which the new object lacks."""
    given = {**(new.get("data") or {}), **(new.get("stringData") or {}), **(new.get("binaryData") or {})}
    found: Body = {}
    for part in ("data", "binaryData"):
        gone = {key: None for key in stored.get(part) or () if key not in given}
        if gone or part in new:
            found[part] = {**gone, **(new.get(part) or {})}
    return found


async def unfinished_bodies(cluster: Cluster) -> list[Body]:
    """The jobs without an outcome, as they are stored."""
    return [body for kind in KINDS for body in (await cluster.list(jobs_of(kind))).items if not is_over(body)]


async def unfinished(cluster: Cluster) -> list[JobOrPod]:
    """The jobs without an outcome."""
    found: list[JobOrPod] = []
    for body in await unfinished_bodies(cluster):
        kind, meta = find_kind(str(body["apiVersion"]), str(body["kind"])), body["metadata"]
        if kind is not None:
            found.append((jobs_of(kind), Key(meta["namespace"], meta["name"]), meta["uid"]))
    return found


async def any_unfinished(cluster: Cluster) -> bool:
    """Whether a job is unfinished, or a pod runs that the clean-up policy of a finished job keeps."""
    if await unfinished_bodies(cluster):
        return True
    return any(not finished(pod) for pod in (await cluster.list(PODS.whole())).items)


async def pods_without_job(cluster: Cluster) -> list[JobOrPod]:
    """The pods that have not ended and belong to no job, such as the pods of `kubectl run`."""
    found: list[JobOrPod] = []
    for pod in (await cluster.list(PODS.whole())).items:
        meta = pod["metadata"]
        if not finished(pod) and not any(map(_is_job, meta.get("ownerReferences") or ())):
            found.append((PODS.whole(), Key(meta["namespace"], meta["name"]), meta["uid"]))
    return found


def _is_job(owner: Body) -> bool:
    return find_kind(str(owner.get("apiVersion")), str(owner.get("kind"))) is not None


async def end_all(cluster: Cluster, objects: list[JobOrPod], grace: float | None) -> None:
    """Delete jobs and pods, and wait until all pods have ended. After `grace` seconds, kill the pods that still run."""
    for resource, key, uid in objects:
        with suppress(NotFoundError):
            await cluster.delete(resource, key, uid=uid, propagation=Propagation.FOREGROUND)
    try:
        async with asyncio.timeout(grace):
            await _until_gone(cluster, objects)
    except TimeoutError:
        for pod in (await cluster.list(PODS.whole())).items:
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                with suppress(NotFoundError):
                    await cluster.delete(PODS.whole(), Key(meta["namespace"], meta["name"]), uid=meta["uid"], grace=0)
        await _until_gone(cluster, objects)


async def _until_gone(cluster: Cluster, objects: list[JobOrPod]) -> None:
    left = list(objects)
    while left:
        left = [one for one in left if await _exists(cluster, *one)]
        if left:
            await asyncio.sleep(_POLL_SECONDS)


async def _exists(cluster: Cluster, resource: Resource, key: Key, uid: str) -> bool:
    try:
        body = await cluster.get(resource, key)
    except NotFoundError:
        return False
    return bool(body["metadata"]["uid"] == uid)
