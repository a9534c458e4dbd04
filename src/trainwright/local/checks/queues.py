# SPDX-License-Identifier: Apache-2.0
"""Queues that a manifest names and that a local run does not have. Pure.

A cluster holds a job back until its queue admits it, and counts what the job uses against the queue's quota. Here
nothing does either.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from trainwright.kinds.gangs import T9K_QUEUE_LABEL
from trainwright.kinds.paths import under
from trainwright.kinds.template import templates
from trainwright.model.job import Body
from trainwright.model.problem import Problem

#: Fields that name a queue: GenericJob; TFJob and PaddleJob; PaddleJob.
_FIELDS = (
    ("spec", "scheduler", "t9kScheduler", "queue"),
    ("spec", "runPolicy", "schedulingPolicy", "queue"),
    ("spec", "schedulingPolicy", "queue"),
)
#: Labels and annotations by which Kueue, Volcano and the T9k scheduler know the queue of a job or a pod.
_NAMES = (
    "kueue.x-k8s.io/queue-name",
    "scheduling.volcano.sh/queue-name",
    "volcano.sh/queue-name",
    T9K_QUEUE_LABEL,
)
_IGNORED = "`trainwright run` ignores queues: the job starts as soon as its replicas fit, and no quota is counted"


def check(document: Body) -> Iterator[Problem]:
    """One warning for a job that names queues, however often it does."""
    for path, queue in _named(document):
        yield Problem(path, f"queue {queue!r}: {_IGNORED}", warning=True)
        return


def _named(document: Body) -> Iterator[tuple[str, str]]:
    for way in _FIELDS:
        found: Any = document
        for key in way:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found:
            yield ".".join(way), found
    yield from _in_metadata(document, "metadata")
    for path, template in templates(document.get("spec"), "spec"):
        yield from _in_metadata(template, f"{path}.metadata")


def _in_metadata(body: Body, path: str) -> Iterator[tuple[str, str]]:
    meta = body.get("metadata") or {}
    for part in ("labels", "annotations"):
        given = meta.get(part) or {}
        yield from ((under(f"{path}.{part}", name), given[name]) for name in _NAMES if given.get(name))
