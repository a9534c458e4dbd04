# SPDX-License-Identifier: Apache-2.0
"""Replica → the objects to create."""

from typing import Any

import pytest
from passes import Bare, Grouped

from trainwright.core import render
from trainwright.model.job import Body, Replica
from trainwright.model.meta import Key
from trainwright.model.plan import Create
from trainwright.model.site import Site
from trainwright.testing.factories import UID, PlainDialect, job, role

OWNERS = [
    {
        "apiVersion": "example.com/v1",
        "kind": "Example",
        "name": "job",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }
]
LABELS = {
    "trainwright.dev/kind": "example",
    "trainwright.dev/job-uid": UID,
    "trainwright.dev/role": "worker",
    "trainwright.dev/index": "3",
}
REPLICA = Replica(role(), 3, 2, "job-worker-3")


def test_a_pod_has_its_name_owner_labels_and_attempt() -> None:
    assert render.pod(job(), REPLICA, Site()) == Create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "job-worker-3",
                "namespace": "default",
                "labels": {"job": "job", **LABELS, "trainwright.dev/attempt": "2"},
                "ownerReferences": OWNERS,
            },
            "spec": {"containers": [{"name": "main", "image": "busybox"}]},
        }
    )


SITE = Site(names_resolve=False, hosts={(Key("default", "job"), "job-worker-3"): "127.0.0.4"})


def test_a_pod_of_a_dialect_without_metadata() -> None:
    assert render.pod(job(dialect=Bare()), REPLICA, SITE) == Create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "job-worker-3",
                "namespace": "default",
                "labels": LABELS | {"trainwright.dev/attempt": "2"},
                "ownerReferences": OWNERS,
            },
            "spec": {"host": "127.0.0.4"},
        }
    )


class Loud(PlainDialect, frozen=True):
    metadata: Any = None

    def pod(self, job: Any, replica: Replica, site: Site) -> Body:  # noqa: ARG002 - a protocol
        return {"metadata": self.metadata, "spec": {}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"annotations": {"a": "b"}}, {"annotations": {"a": "b"}}, id="annotations"),
        pytest.param({"finalizers": ["f"]}, {"finalizers": ["f"]}, id="finalizers"),
        pytest.param({"annotations": {}, "finalizers": None}, {}, id="empty ones are left out"),
        pytest.param({"name": "mine", "namespace": "other", "uid": "x"}, {}, id="name and place are ours"),
        pytest.param({"labels": {"trainwright.dev/index": "9"}}, {}, id="our labels win"),
    ],
)
def test_of_a_templates_metadata_annotations_and_finalizers_are_kept(given: Body, expected: Body) -> None:
    body = render.pod(job(dialect=Loud(given)), REPLICA, Site()).body

    assert body["metadata"] == {
        "name": "job-worker-3",
        "namespace": "default",
        "labels": LABELS | {"trainwright.dev/attempt": "2"},
        "ownerReferences": OWNERS,
        **expected,
    }


def test_a_service_is_headless_and_known_before_its_pod_is_ready() -> None:
    assert render.service(job(), REPLICA, Site()) == Create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "job-worker-3",
                "namespace": "default",
                "labels": LABELS,
                "ownerReferences": OWNERS,
            },
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"name": "job-worker-3"}},
        }
    )


def test_a_dialect_has_the_last_word_on_a_service() -> None:
    body = render.service(job(dialect=Bare()), REPLICA, SITE).body

    assert body["spec"] == {"clusterIP": "127.0.0.4", "publishNotReadyAddresses": True}
    assert body["metadata"]["annotations"] == {"a": "b"}


def test_an_extra_is_named_like_the_job_and_carries_its_digest() -> None:
    (body,) = Grouped().extras(job(), None, Site())  # type: ignore[arg-type]

    assert render.extra(job(), body) == Create(
        {
            "apiVersion": "gang/v1",
            "kind": "PodGroup",
            "metadata": {
                "name": "job",
                "namespace": "default",
                "labels": {"trainwright.dev/kind": "example", "trainwright.dev/job-uid": UID},
                "ownerReferences": OWNERS,
                "annotations": {"trainwright.dev/digest": render.digest(body)},
            },
            "spec": {"minMember": 2},
        }
    )


def test_an_extra_keeps_a_name_labels_and_annotations_of_its_own() -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hosts", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    }

    metadata = render.extra(job(), body).body["metadata"]

    assert metadata["name"] == "hosts"
    assert metadata["labels"]["a"] == "b"
    assert metadata["annotations"] == {"c": "d", "trainwright.dev/digest": render.digest(body)}
    assert body["metadata"] == {"name": "hosts", "labels": {"a": "b"}, "annotations": {"c": "d"}}


def test_a_digest_is_of_the_content_whatever_its_order() -> None:
    assert render.digest({"a": 1, "b": {"c": 2, "d": 3}}) == render.digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert render.digest({"a": 1}) != render.digest({"a": 2})
    # Stored on objects that exist: a change of the way it is made touches every one of them.
    assert render.digest({"a": 1}) == "1f8c00645b7df6ce"
