# SPDX-License-Identifier: Apache-2.0
"""Who an object is, as the wire has it."""

import msgspec
import pytest

from trainwright.model import meta
from trainwright.model.meta import Key, Meta, ObjectMeta, Owner


def test_our_labels_and_annotations_have_their_published_names() -> None:
    names = (meta.KIND, meta.JOB_UID, meta.ROLE, meta.INDEX, meta.ATTEMPT, meta.DIGEST)

    assert names == (
        "trainwright.dev/kind",
        "trainwright.dev/job-uid",
        "trainwright.dev/role",
        "trainwright.dev/index",
        "trainwright.dev/attempt",
        "trainwright.dev/digest",
    )


def test_a_key_reads_as_namespace_and_name() -> None:
    assert str(Key("team", "job")) == "team/job"


@pytest.mark.parametrize(
    ("name", "role", "index", "expected"),
    [
        pytest.param("job", "worker", 0, "job-worker-0", id="plain"),
        pytest.param("job", "worker", 12, "job-worker-12", id="two digits"),
        pytest.param("MyJob", "PS", 1, "MyJob-ps-1", id="only the role in lower case"),
    ],
)
def test_a_replica_is_called_job_role_index(name: str, role: str, index: int, expected: str) -> None:
    assert Key("default", name).replica_name(role, index) == expected


def test_keys_sort_by_namespace_first() -> None:
    assert [Key("a", "z"), Key("b", "a"), Key("b", "b")] == sorted([Key("b", "b"), Key("b", "a"), Key("a", "z")])


@pytest.mark.parametrize(
    ("owners", "expected"),
    [
        pytest.param(None, None, id="null"),
        pytest.param((), None, id="none"),
        pytest.param((Owner(uid="1"),), None, id="an owner that does not control"),
        pytest.param((Owner(uid="1", controller=False),), None, id="an owner that says so"),
        pytest.param(
            (Owner(uid="1"), Owner(uid="2", controller=True)), Owner(uid="2", controller=True), id="one of two"
        ),
    ],
)
def test_the_controller_is_the_one_owner_that_controls(
    owners: tuple[Owner, ...] | None, expected: Owner | None
) -> None:
    assert expected == Meta(owner_references=owners).controller


def test_an_owner_is_written_in_the_words_of_the_api() -> None:
    owner = Owner("example.com/v1", "Example", "job", "1", controller=True, block_owner_deletion=True)

    assert msgspec.to_builtins(owner) == {
        "apiVersion": "example.com/v1",
        "kind": "Example",
        "name": "job",
        "uid": "1",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_narrow_metadata_leaves_annotations_where_they_are() -> None:
    text = b'{"name":"a","annotations":{"x":"y"},"managedFields":[{"manager":"kubectl"}],"resourceVersion":"7"}'

    assert Meta("a", resource_version="7") == msgspec.json.decode(text, type=Meta)


def test_object_metadata_reads_what_a_job_needs() -> None:
    text = b'{"name":"a","generation":3,"annotations":{"x":"y"},"finalizers":["f"]}'

    assert ObjectMeta("a", generation=3, annotations={"x": "y"}, finalizers=("f",)) == msgspec.json.decode(
        text, type=ObjectMeta
    )
