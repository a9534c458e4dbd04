# SPDX-License-Identifier: Apache-2.0
"""Where a pod's volumes come from, and where its containers see them."""

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from trainwright.node.environment import PodFacts
from trainwright.node.sources import (
    CLAIM,
    CONFIG_MAP,
    SECRET,
    ContainerConfigError,
    Sources,
    in_projected_volumes,
    referenced_by,
    token_source,
)
from trainwright.node.supervisor.protocol import Mount
from trainwright.node.volumes import VolumeInput, mounts, rewrite_projected, shared_memory_size

FACTS = PodFacts("node-0", "10.1.2.3", "192.0.2.1", {"cpu": "4"})
CONTAINER = "spec.containers[0]"
SHM = "/dev/shm"  # noqa: S108 - a path inside the pod


def encoded(text: bytes) -> str:
    return b64encode(text).decode()


def room(folder: Path, *volumes: dict[str, Any], sources: Sources | None = None, sandboxed: bool = True) -> VolumeInput:
    pod = {
        "metadata": {"name": "pod", "namespace": "space"},
        "spec": {"volumes": list(volumes), "containers": [{"name": "main"}]},
    }
    return VolumeInput(pod, str(folder / "pod"), str(folder / "claims"), sandboxed, sources or {}, FACTS)


def mounted(given: VolumeInput, **wanted: Any) -> Mount:
    """The one mount of volume `v` at /data."""
    container = {"volumeMounts": [{"name": "v", "mountPath": "/data", **wanted}]}
    (found,) = mounts(given, container, CONTAINER, {"INDEX": "3"})
    return found


def refused(given: VolumeInput, **wanted: Any) -> str:
    with pytest.raises(ContainerConfigError) as refusal:
        mounted(given, **wanted)
    return str(refusal.value)


def files(mount: Mount) -> dict[str, str]:
    assert mount["source"] is not None
    root = Path(mount["source"])
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_an_empty_dir_is_a_folder_of_the_pod(tmp_path: Path) -> None:
    found = mounted(room(tmp_path, {"name": "v", "emptyDir": {}}))
    assert found == {"source": f"{tmp_path}/pod/volumes/v", "target": "/data", "readonly": False}
    assert Path(f"{tmp_path}/pod/volumes/v").is_dir()


def test_an_empty_dir_in_memory_is_of_the_size_that_is_asked_for(tmp_path: Path) -> None:
    given = room(tmp_path, {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    assert mounted(given) == {
        "source": f"{tmp_path}/pod/volumes/v",
        "target": "/data",
        "readonly": False,
        "tmpfs": 1 << 20,
    }
    assert "can only be mounted as a whole" in refused(given, subPath="part")


SHARED: dict[str, tuple[dict[str, Any], str, int | None]] = {
    "a size": ({"medium": "Memory", "sizeLimit": "2Gi"}, SHM, 2 << 30),
    "no size": ({"medium": "Memory"}, f"{SHM}/", 0),
    "elsewhere": ({"medium": "Memory"}, "/cache", None),
    "on disk": ({}, SHM, None),
}


@pytest.mark.parametrize(("empty", "path", "expected"), SHARED.values(), ids=SHARED.keys())
def test_shared_memory_is_the_pods(empty: dict[str, Any], path: str, expected: int | None) -> None:
    container = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": path}]}
    assert (
        shared_memory_size({"spec": {"volumes": [{"name": "v", "emptyDir": empty}], "containers": [container]}})
        == expected
    )


def test_shared_memory_needs_no_mount_of_its_own(tmp_path: Path) -> None:
    given = room(tmp_path, {"name": "v", "emptyDir": {"medium": "Memory"}})
    container = {"volumeMounts": [{"name": "v", "mountPath": SHM}]}
    assert mounts(given, container, CONTAINER, {}) == []


def test_the_keys_of_a_config_map_are_files(tmp_path: Path) -> None:
    sources = {(CONFIG_MAP, "c"): {"data": {"a": "1"}, "binaryData": {"b": encoded(b"2")}}}
    found = mounted(room(tmp_path, {"name": "v", "configMap": {"name": "c"}}, sources=sources))
    assert files(found) == {"a": "1", "b": "2"}
    assert found["readonly"]
    assert Path(str(found["source"]), "a").stat().st_mode & 0o777 == 0o644


def test_items_of_a_secret_are_put_where_they_belong(tmp_path: Path) -> None:
    sources = {(SECRET, "s"): {"data": {"key": encoded(b"x"), "other": encoded(b"y")}}}
    items = [{"key": "key", "path": "deep/er", "mode": 0o400}]
    volume = {"name": "v", "secret": {"secretName": "s", "defaultMode": 0o640, "items": items}}
    found = mounted(room(tmp_path, volume, sources=sources))
    assert files(found) == {"deep/er": "x"}
    assert Path(str(found["source"]), "deep/er").stat().st_mode & 0o777 == 0o400


def test_the_same_volume_can_be_made_again(tmp_path: Path) -> None:
    sources = {(SECRET, "s"): {"data": {"key": encoded(b"x")}}}
    given = room(tmp_path, {"name": "v", "secret": {"secretName": "s", "defaultMode": 0o400}}, sources=sources)
    assert mounted(given) == mounted(given)


def test_optional_sources_may_be_missing(tmp_path: Path) -> None:
    volume = {"name": "v", "secret": {"secretName": "s", "optional": True, "items": [{"key": "a", "path": "a"}]}}
    assert files(mounted(room(tmp_path, volume, sources={(SECRET, "s"): None}))) == {}


def test_a_claim_is_a_folder_that_outlives_the_run(tmp_path: Path) -> None:
    sources: Sources = {(CLAIM, "c"): {"spec": {}}}
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}
    assert mounted(room(tmp_path, volume, sources=sources)) == {
        "source": f"{tmp_path}/claims/c",
        "target": "/data",
        "readonly": False,
    }
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}
    assert mounted(room(tmp_path, volume, sources=sources))["readonly"]


def test_a_host_path_is_mounted_as_it_is(tmp_path: Path) -> None:
    assert mounted(room(tmp_path, {"name": "v", "hostPath": {"path": "/etc"}}), readOnly=True) == {
        "source": "/etc",
        "target": "/data",
        "readonly": True,
    }


TYPES = {
    "DirectoryOrCreate": ("new/folder", os.path.isdir),
    "FileOrCreate": ("new-file", os.path.isfile),
    "Directory": ("folder", os.path.isdir),
    "File": ("file", os.path.isfile),
}


@pytest.mark.parametrize(("kind", "name", "test"), [(k, *v) for k, v in TYPES.items()], ids=TYPES.keys())
def test_types_of_host_paths(tmp_path: Path, kind: str, name: str, test: Any) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    path = str(tmp_path / name)
    assert mounted(room(tmp_path, {"name": "v", "hostPath": {"path": path, "type": kind}}))["source"] == path
    assert test(path)


def test_a_part_of_a_volume(tmp_path: Path) -> None:
    given = room(tmp_path, {"name": "v", "emptyDir": {}})
    assert mounted(given, subPath="a/b")["source"] == f"{tmp_path}/pod/volumes/v/a/b"
    assert Path(tmp_path, "pod/volumes/v/a/b").is_dir()
    assert mounted(given, subPathExpr="run-$(INDEX)")["source"] == f"{tmp_path}/pod/volumes/v/run-3"


def test_one_file_of_a_config_map(tmp_path: Path) -> None:
    given = room(tmp_path, {"name": "v", "configMap": {"name": "c"}}, sources={(CONFIG_MAP, "c"): {"data": {"a": "1"}}})
    assert Path(str(mounted(given, subPath="a")["source"])).read_text() == "1"
    assert refused(given, subPath="b").startswith(f"{CONTAINER}.volumeMounts[0].subPath: the volume has no 'b'")


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "no such secret": (
        {"secret": {"secretName": "s"}},
        "spec.volumes[0].secret.secretName: there is no Secret 's' in namespace 'space'",
    ),
    "no such config map": (
        {"configMap": {"name": "absent"}},
        "spec.volumes[0].configMap.name: there is no ConfigMap 'absent'",
    ),
    "no such key": (
        {"configMap": {"name": "c", "items": [{"key": "ab", "path": "x"}]}},
        "spec.volumes[0].configMap.items[0].key: there is no key 'ab'; it has abc; did you mean `abc`?",
    ),
    "an item that leads out": (
        {"configMap": {"name": "c", "items": [{"key": "abc", "path": "../x"}]}},
        "spec.volumes[0].configMap.items[0].path: expected a path below the volume, found '../x'",
    ),
    "no such claim": (
        {"persistentVolumeClaim": {"claimName": "absent"}},
        "spec.volumes[0].persistentVolumeClaim.claimName: there is no PersistentVolumeClaim 'absent'",
    ),
    "a missing host path": (
        {"hostPath": {"path": "/no/such/place"}},
        "spec.volumes[0].hostPath.path: there is no /no/such/place on this machine; `type: DirectoryOrCreate` makes it",
    ),
    "a file that is a folder": (
        {"hostPath": {"path": "/etc", "type": "File"}},
        "spec.volumes[0].hostPath.path: /etc is not a file, as its type File asks",
    ),
    "an unknown type": (
        {"hostPath": {"path": "/etc", "type": "Directry"}},
        "spec.volumes[0].hostPath.type: 'Directry' is not known",
    ),
    "a relative host path": (
        {"hostPath": {"path": "etc"}},
        "spec.volumes[0].hostPath.path: expected an absolute path, found 'etc'",
    ),
    "another kind": (
        {"nfs": {"server": "s", "path": "/"}},
        "spec.volumes[0]: nfs is not supported here; expected one of emptyDir, hostPath, configMap, secret,"
        " persistentVolumeClaim",
    ),
    "no kind at all": ({}, "spec.volumes[0]: nothing is not supported here"),
}


@pytest.mark.parametrize(("volume", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_cannot_be_mounted_is_refused_with_its_path(tmp_path: Path, volume: dict[str, Any], text: str) -> None:
    sources: Sources = {(CONFIG_MAP, "c"): {"data": {"abc": "1"}}}
    assert refused(room(tmp_path, {"name": "v", **volume}, sources=sources)).startswith(text)


def test_a_mount_of_an_unknown_volume_names_the_nearest(tmp_path: Path) -> None:
    container = {"volumeMounts": [{"name": "vol", "mountPath": "/data"}]}
    with pytest.raises(ContainerConfigError) as refusal:
        mounts(room(tmp_path, {"name": "volume", "emptyDir": {}}), container, CONTAINER, {})
    assert str(refusal.value) == (
        f"{CONTAINER}.volumeMounts[0].name: there is no volume 'vol'; the pod has volume; did you mean `volume`?"
    )


def test_no_way_out_of_a_volume(tmp_path: Path) -> None:
    given = room(tmp_path, {"name": "v", "emptyDir": {}})
    mounted(given)
    Path(tmp_path, "pod/volumes/v/link").symlink_to("/etc")
    assert "leads out of the volume" in refused(given, subPath="link")
    assert "expected a path below the volume" in refused(given, subPath="../x")


def test_the_process_runtime_takes_what_is_there_anyway(tmp_path: Path) -> None:
    volumes = [
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "account", "projected": {}},
    ]
    container = {
        "volumeMounts": [
            {"name": "host", "mountPath": f"{tmp_path}/"},
            {"name": "shm", "mountPath": SHM},
            {"name": "account", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ]
    }
    assert mounts(room(tmp_path, *volumes, sandboxed=False), container, CONTAINER, {}) == []


@pytest.mark.parametrize("volume", [{"emptyDir": {}}, {"hostPath": {"path": "/etc"}}, {"configMap": {"name": "c"}}])
def test_the_process_runtime_refuses_the_rest_and_names_the_way_out(tmp_path: Path, volume: dict[str, Any]) -> None:
    text = refused(room(tmp_path, {"name": "v", **volume}, sandboxed=False))
    assert text.startswith(f"{CONTAINER}.volumeMounts[0].mountPath: nothing can be mounted at /data in the process")
    assert '"--runtime sandbox"' in text
    assert not (tmp_path / "pod").exists()


TOKENED = {"path": "token", "expirationSeconds": 3607}
ACCOUNT = {
    "name": "kube-api-access-x",
    "projected": {
        "defaultMode": 0o640,
        "sources": [
            {"serviceAccountToken": TOKENED},
            {"configMap": {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"secret": {"name": "maybe", "optional": True}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ],
    },
}


def mounting(name: str) -> dict[str, Any]:
    return {"volumeMounts": [{"name": name, "mountPath": "/at"}]}


def test_a_projected_volume_has_all_its_sources(tmp_path: Path) -> None:
    found: Sources = {
        token_source(TOKENED): {"token": "abc"},
        (CONFIG_MAP, "ca"): {"data": {"ca.crt": "PEM", "more": "x"}},
    }
    one = room(tmp_path, ACCOUNT, sources={**found, (SECRET, "maybe"): None})
    (mount,) = mounts(one, mounting("kube-api-access-x"), CONTAINER, {})

    folder = Path(mount["source"] or "")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "token": "abc",
        "ca.crt": "PEM",
        "namespace": "space",
    }
    assert (folder / "token").stat().st_mode & 0o777 == 0o640
    assert mount["readonly"]
    assert referenced_by(one.pod, mounting("kube-api-access-x")) == {*found, (SECRET, "maybe")}


def test_a_token_is_renewed_where_it_lies(tmp_path: Path) -> None:
    found: Sources = {token_source(TOKENED): {"token": "old"}, (CONFIG_MAP, "ca"): {"data": {"ca.crt": "PEM"}}}
    one = room(tmp_path, ACCOUNT, sources=found)
    (mount,) = mounts(one, mounting("kube-api-access-x"), CONTAINER, {})
    rewrite_projected(replace(one, sources={**found, token_source(TOKENED): {"token": "new"}}))

    assert Path(mount["source"] or "", "token").read_text() == "new"
    assert in_projected_volumes(one.pod) == {*found, (SECRET, "maybe")}


def test_the_process_runtime_leaves_out_what_api_servers_put_into_every_pod(tmp_path: Path) -> None:
    assert mounts(room(tmp_path, ACCOUNT, sandboxed=False), mounting("kube-api-access-x"), CONTAINER, {}) == []


def test_without_service_accounts_the_token_is_left_out(tmp_path: Path) -> None:
    found: Sources = {token_source(TOKENED): None, (CONFIG_MAP, "ca"): {"data": {"ca.crt": "PEM"}}}
    (mount,) = mounts(room(tmp_path, ACCOUNT, sources=found), mounting("kube-api-access-x"), CONTAINER, {})

    assert {path.name for path in Path(mount["source"] or "").iterdir()} == {"ca.crt", "namespace"}


def test_a_pod_can_read_about_itself_in_files(tmp_path: Path) -> None:
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
    ]
    one = room(tmp_path, {"name": "about", "downwardAPI": {"items": items}})
    one.pod["metadata"]["labels"] = {"b": 'say "x"', "a": "1"}
    (mount,) = mounts(one, mounting("about"), CONTAINER, {})

    folder = Path(mount["source"] or "")
    assert (folder / "labels").read_text() == 'a="1"\nb="say \\"x\\""'
    assert (folder / "cpu").read_text() == "4"


@pytest.mark.parametrize(
    ("volume", "text"),
    [
        (None, "claim 'data' is not bound to a volume yet"),
        (
            {"spec": {"nfs": {}}},
            "claim 'data' has a volume that cannot be mounted here; expected one of hostPath or local",
        ),
    ],
    ids=["unbound", "elsewhere"],
)
def test_a_claim_of_a_cluster_that_cannot_be_had(tmp_path: Path, volume: Any, text: str) -> None:
    claimed = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    with pytest.raises(ContainerConfigError, match=text):
        mounts(room(tmp_path, claimed, sources={(CLAIM, "data"): {"volume": volume}}), mounting("v"), CONTAINER, {})


@pytest.mark.parametrize("kind", ["hostPath", "local"])
def test_a_claim_of_a_cluster_is_where_its_volume_is(tmp_path: Path, kind: str) -> None:
    claimed = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    found: Sources = {(CLAIM, "data"): {"volume": {"spec": {kind: {"path": str(tmp_path)}}}}}

    (mount,) = mounts(room(tmp_path, claimed, sources=found), mounting("v"), CONTAINER, {})
    assert mount["source"] == str(tmp_path)
