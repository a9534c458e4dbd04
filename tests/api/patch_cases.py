# SPDX-License-Identifier: Apache-2.0
"""Patches and what they make of an object. `tests/cluster` holds the same cases against a real API server.

A case with a pod works there on a PodTemplate, because almost nothing in the spec of a pod can change.
"""

from typing import Any, NamedTuple

from trainwright.errors import BadRequestError, InvalidError

Body = dict[str, Any]


class PatchCase(NamedTuple):
    """`expected` is the object after the patch, or the error. `same_as_real` is false where ours is better."""

    name: str
    kind: str
    target: Body
    patch: Any
    expected: Body | type[Exception]
    same_as_real: bool = True


def config(**data: str) -> Body:
    return {"data": data}


def labelled(**labels: str) -> Body:
    return {"metadata": {"labels": labels}}


def final(*names: str) -> Body:
    return {"metadata": {"finalizers": [f"example.com/{name}" for name in names]}}


def spec(**members: Any) -> Body:
    return {"spec": members}


def containers(*given: Body, **members: Any) -> Body:
    return spec(containers=[{"image": "x", **one} for one in given], **members)


def env(**values: str) -> list[Body]:
    return [{"name": name, "value": value} for name, value in values.items()]


def ports(*numbers: int) -> list[Body]:
    return [{"name": f"p{number}", "port": number} for number in numbers]


def mount(path: str) -> Body:
    return {"name": "v", "mountPath": path}


A, B, C = ({"name": name} for name in "abc")
ENV = containers({**A, "env": env(one="1", two="2")})
OWNERS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": f"uid-{name}"} for name in "ab"]
NODE_NAME = {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}
VOLUME = {"name": "v", "emptyDir": {}}
TAINTS = [{"key": key, "effect": "NoSchedule"} for key in "ab"]
ORDER, DELETE = "$setElementOrder", "$deleteFromPrimitiveList"
DELETED = {"$patch": "delete"}
REPLACED = {"$patch": "replace"}

STRATEGIC = [
    # maps
    PatchCase("set a member", "ConfigMap", config(a="1"), config(b="2"), config(a="1", b="2")),
    PatchCase("remove a member", "ConfigMap", config(a="1", b="2"), {"data": {"a": None}}, config(b="2")),
    PatchCase("remove a member that is missing", "ConfigMap", config(a="1"), {"data": {"b": None}}, config(a="1")),
    PatchCase("remove a map", "ConfigMap", config(a="1"), {"data": None}, {}),
    PatchCase("nothing", "ConfigMap", config(a="1"), {}, config(a="1")),
    PatchCase("nulls in a new map", "ConfigMap", {}, {"data": {"a": "1", "b": None}}, config(a="1")),
    PatchCase("replace a map", "ConfigMap", config(a="1"), {"data": {**REPLACED, "b": "2"}}, config(b="2")),
    PatchCase("empty a map", "ConfigMap", config(a="1"), {"data": {**DELETED}}, {"data": {}}),
    PatchCase("a directive without a target", "ConfigMap", {}, {"data": {**REPLACED, "b": "2"}}, {}),
    PatchCase("a wrong directive", "ConfigMap", config(a="1"), {"data": {"$patch": "merge"}}, BadRequestError),
    PatchCase("secret data", "Secret", config(a="MQ=="), config(b="Mg=="), config(a="MQ==", b="Mg==")),
    PatchCase("no object", "ConfigMap", {}, [], BadRequestError),
    PatchCase(
        "retain keys", "ConfigMap", config(a="1", b="2", c="3"),
        {"data": {"$retainKeys": ["a", "d"], "d": "4"}}, config(a="1", d="4"),
    ),
    PatchCase(
        "retain keys without what is set", "ConfigMap", config(a="1"),
        {"data": {"$retainKeys": ["a"], "d": "4"}}, BadRequestError,
    ),
    PatchCase("retain keys is no list", "ConfigMap", config(a="1"), {"data": {"$retainKeys": "a"}}, BadRequestError),
    # sets of values
    PatchCase("finalizers are a set", "ConfigMap", final("a", "b"), final("b", "c"), final("a", "b", "c")),
    PatchCase("finalizers of the patch go first", "ConfigMap", final("a", "b"), final("b", "a"), final("b", "a")),
    PatchCase("a new set", "ConfigMap", {}, final("a"), final("a")),
    PatchCase("repeated values", "ConfigMap", final("a"), final("b", "b"), final("b", "a")),
    PatchCase("an empty set changes nothing", "ConfigMap", final("a"), final(), final("a")),
    PatchCase(
        "delete from a set", "ConfigMap", final("a", "b", "c"),
        {"metadata": {f"{DELETE}/finalizers": ["example.com/b", "example.com/x"]}}, final("a", "c"),
    ),
    PatchCase(
        "delete from no set", "ConfigMap", labelled(a="1"),
        {"metadata": {f"{DELETE}/finalizers": ["example.com/b"]}}, labelled(a="1"),
    ),
    PatchCase(
        "delete a whole set", "ConfigMap", final("a"), {"metadata": {f"{DELETE}/finalizers": None}}, {"metadata": {}},
    ),
    PatchCase(
        "order of a set", "ConfigMap", final("a", "b", "c"),
        {"metadata": {f"{ORDER}/finalizers": final("c", "a", "d")["metadata"]["finalizers"], **final("d")["metadata"]}},
        final("b", "c", "a", "d"),
    ),
    PatchCase(
        "order, delete and add, as kubectl apply sends it", "ConfigMap", final("a", "b"),
        {"metadata": {
            f"{ORDER}/finalizers": ["example.com/c", "example.com/b"],
            f"{DELETE}/finalizers": ["example.com/a"],
            **final("c")["metadata"],
        }},
        final("c", "b"),
    ),
    PatchCase("a set with a number", "ConfigMap", final("a"), {"metadata": {"finalizers": [1]}}, BadRequestError),
    PatchCase("a set with a list", "ConfigMap", final("a"), {"metadata": {"finalizers": [["a"]]}}, InvalidError),
    # lists with a merge key
    PatchCase(
        "owners by uid", "ConfigMap", {"metadata": {"ownerReferences": OWNERS}},
        {"metadata": {"ownerReferences": [{**DELETED, "uid": "uid-a"}, {"uid": "uid-b", "controller": True}]}},
        {"metadata": {"ownerReferences": [{**OWNERS[1], "controller": True}]}},
    ),
    PatchCase(
        "image of one container", "Pod", containers(A, B), spec(containers=[{"name": "b", "image": "y"}]),
        containers(A, {**B, "image": "y"}),
    ),
    PatchCase(
        "a new container comes first", "Pod", containers(A, B), spec(containers=[{"name": "c", "image": "x"}]),
        containers(C, A, B),
    ),
    PatchCase(
        "order of containers", "Pod", containers(A, B),
        spec(containers=[{"name": "c", "image": "x"}], **{f"{ORDER}/containers": [A, C]}), containers(A, C, B),
    ),
    PatchCase(
        "order alone", "Pod", containers(A, B, C), spec(**{f"{ORDER}/containers": [C, A]}), containers(B, C, A),
    ),
    PatchCase(
        "the order lacks an item", "Pod", containers(A), spec(containers=[B], **{f"{ORDER}/containers": [A]}),
        BadRequestError,
    ),
    PatchCase(
        "the patch has another order", "Pod", containers(A, B),
        spec(containers=[B, A], **{f"{ORDER}/containers": [A, B]}), BadRequestError,
    ),
    PatchCase("the order is no list", "Pod", containers(A), spec(**{f"{ORDER}/containers": "a"}), BadRequestError),
    PatchCase(
        "delete a container", "Pod", containers(A, B), spec(containers=[{**DELETED, "name": "a"}]), containers(B),
    ),
    PatchCase(
        "delete one that is missing", "Pod", containers(A), spec(containers=[{**DELETED, "name": "z"}]), containers(A),
    ),
    PatchCase(
        "new items take the places of deleted ones", "Pod", containers(A, B),
        spec(containers=[{"name": "c", "image": "x"}, {**DELETED, "name": "b"}], **{f"{ORDER}/containers": [C]}),
        containers(A, C),
    ),
    PatchCase("delete without a key", "Pod", containers(A), spec(containers=[DELETED]), BadRequestError),
    PatchCase("an item without its key", "Pod", containers(A), spec(containers=[{"image": "y"}]), BadRequestError),
    PatchCase("an item is a text", "Pod", containers(A), spec(containers=["a"]), BadRequestError),
    PatchCase(
        "a wrong directive of an item", "Pod", containers(A), spec(containers=[{**A, "$patch": "merge"}]),
        BadRequestError,
    ),
    PatchCase(
        "replace all containers", "Pod", containers(A, B),
        spec(containers=[REPLACED, {"name": "c", "image": "x"}]), containers(C),
    ),
    PatchCase(
        "environment by name", "Pod", ENV, spec(containers=[{**A, "env": env(two="3", four="4")}]),
        containers({**A, "env": env(one="1", two="3", four="4")}),
    ),
    PatchCase(
        "delete a variable", "Pod", ENV, spec(containers=[{**A, "env": [{**DELETED, "name": "one"}]}]),
        containers({**A, "env": env(two="2")}),
    ),
    PatchCase(
        "remove the environment", "Pod", ENV, spec(containers=[{**A, "env": None}]), containers(A),
    ),
    PatchCase(
        "another source of a variable", "Pod", ENV,
        spec(containers=[{**A, "env": [{"name": "one", "value": None, "valueFrom": NODE_NAME}]}]),
        containers({**A, "env": [{"name": "one", "valueFrom": NODE_NAME}, *env(two="2")]}),
    ),
    PatchCase(
        "arguments are replaced", "Pod", containers({**A, "args": ["1", "2"]}),
        spec(containers=[{**A, "args": ["3"]}]), containers({**A, "args": ["3"]}),
    ),
    PatchCase(
        "delete arguments", "Pod", containers({**A, "args": ["1", "2", "1"]}),
        spec(containers=[{**A, f"{DELETE}/args": ["1"]}]), containers({**A, "args": ["2"]}),
    ),
    PatchCase(
        "container ports by number", "Pod",
        containers({**A, "ports": [{"containerPort": 80}, {"containerPort": 81, "protocol": "TCP"}]}),
        spec(containers=[{**A, "ports": [{"containerPort": 81, "name": "web"}]}]),
        containers({**A, "ports": [{"containerPort": 80}, {"containerPort": 81, "protocol": "TCP", "name": "web"}]}),
    ),
    PatchCase(
        "resources are merged as maps", "Pod",
        containers({**A, "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
        spec(containers=[{**A, "resources": {"limits": {"cpu": "2"}}}]),
        containers({**A, "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}),
    ),
    PatchCase(
        "the source of a volume", "Pod",
        containers(A, volumes=[VOLUME]),
        spec(volumes=[{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/d", "type": ""}}]),
        containers(A, volumes=[{"name": "v", "hostPath": {"path": "/d", "type": ""}}]),
    ),
    PatchCase(
        "mounts by path", "Pod",
        containers({**A, "volumeMounts": [mount("/d")]}, volumes=[VOLUME]),
        spec(containers=[{**A, "volumeMounts": [mount("/e"), {"mountPath": "/d", "readOnly": True}]}]),
        containers({**A, "volumeMounts": [mount("/e"), {**mount("/d"), "readOnly": True}]}, volumes=[VOLUME]),
    ),
    PatchCase(
        "tolerations are replaced", "Pod",
        containers(A, tolerations=[{"key": "a", "operator": "Exists"}]),
        spec(tolerations=[{"key": "b", "operator": "Exists"}]),
        containers(A, tolerations=[{"key": "b", "operator": "Exists"}]),
    ),
    PatchCase(
        "a new item with directives and nulls", "Pod", containers(A),
        spec(containers=[{**B, "image": "x", "tty": None, "securityContext": {**REPLACED, "privileged": True}}]),
        containers({**B, "securityContext": {"privileged": True}}, A),
    ),
    PatchCase(
        "a directive in a new map", "Pod", containers(A),
        spec(containers=[{**A, "resources": {"limits": {**REPLACED, "cpu": "1"}}}]), containers({**A, "resources": {}}),
    ),
    PatchCase(
        "delete a map in a map", "Pod", containers({**A, "securityContext": {"privileged": True}}),
        spec(containers=[{**A, "securityContext": DELETED}]), containers({**A, "securityContext": {}}),
    ),
    PatchCase(
        "service ports by port, as kubectl apply sends it", "Service", spec(ports=ports(1, 2)),
        spec(ports=[*ports(3), {**DELETED, "port": 2}], **{f"{ORDER}/ports": [{"port": 1}, {"port": 3}]}),
        spec(ports=ports(1, 3)),
    ),
    PatchCase(
        "selector of a service", "Service", spec(ports=ports(1), selector={"a": "1"}),
        spec(selector={"b": "2"}), spec(ports=ports(1), selector={"a": "1", "b": "2"}),
    ),
    PatchCase("taints are replaced", "Node", spec(taints=TAINTS), spec(taints=TAINTS[1:]), spec(taints=TAINTS[1:])),
    PatchCase("remove taints", "Node", spec(taints=TAINTS), spec(taints=None), spec()),
    PatchCase("cordon", "Node", spec(taints=TAINTS), spec(unschedulable=True), spec(taints=TAINTS, unschedulable=True)),
]  # fmt: skip


def op(name: str, path: str, *value: Any, source: str = "", **more: Any) -> Body:
    """One operation of a JSON patch; `source` is its member `from`."""
    members = {"value": value[0]} if value else {"from": source} if source else {}
    return {"op": name, "path": path, **members, **more}


def on_data(
    name: str, target: Body, *operations: Any, to: Body | type[Exception], same_as_real: bool = True
) -> PatchCase:
    return PatchCase(name, "ConfigMap", target, list(operations), to, same_as_real)


F = "/metadata/finalizers"
JSON = [
    on_data("add a member", config(a="1"), op("add", "/data/b", "2"), to=config(a="1", b="2")),
    on_data("add over a member", config(a="1"), op("add", "/data/a", "2"), to=config(a="2")),
    on_data("add below nothing", {}, op("add", "/data/a", "2"), to=InvalidError),
    on_data("add a map and into it", {}, op("add", "/data", {}), op("add", "/data/a", "2"), to=config(a="2")),
    on_data("add below a text", config(a="1"), op("add", "/data/a/b", "2"), to=InvalidError),
    on_data("add the whole", config(a="1"), op("add", "", {}), to=InvalidError),
    on_data("add at the end", final("a"), op("add", f"{F}/-", "example.com/b"), to=final("a", "b")),
    on_data("add at an index", final("a"), op("add", f"{F}/0", "example.com/b"), to=final("b", "a")),
    on_data("add after the last", final("a"), op("add", f"{F}/1", "example.com/b"), to=final("a", "b")),
    on_data("add too far", final("a"), op("add", f"{F}/2", "example.com/b"), to=InvalidError),
    on_data("add from the end", final("a"), op("add", f"{F}/-1", "example.com/b"), to=final("a", "b")),
    on_data("add before the first", final("a"), op("add", f"{F}/-3", "example.com/b"), to=InvalidError),
    on_data("add at a text", final("a"), op("add", f"{F}/x", "example.com/b"), to=InvalidError),
    on_data("add null", config(a="1"), op("add", "/immutable", None), to=config(a="1")),
    on_data("escapes", {"metadata": {"annotations": {"a/b": "1"}}},
            op("replace", "/metadata/annotations/a~1b", "2"), to={"metadata": {"annotations": {"a/b": "2"}}}),
    on_data("remove", config(a="1", b="2"), op("remove", "/data/a"), to=config(b="2")),
    on_data("remove nothing", config(a="1"), op("remove", "/data/b"), to=InvalidError),
    on_data("remove an item", final("a", "b"), op("remove", f"{F}/0"), to=final("b")),
    on_data("remove the last item", final("a", "b"), op("remove", f"{F}/-1"), to=final("a")),
    on_data("remove too far", final("a"), op("remove", f"{F}/1"), to=InvalidError),
    on_data("remove the end", final("a"), op("remove", f"{F}/-"), to=InvalidError),
    on_data("replace", config(a="1"), op("replace", "/data/a", "2"), to=config(a="2")),
    on_data("replace what is missing", config(a="1"), op("replace", "/data/b", "2"), to=config(a="1", b="2")),
    on_data("replace an item", final("a", "b"), op("replace", f"{F}/1", "example.com/c"), to=final("a", "c")),
    on_data("replace too far", final("a"), op("replace", f"{F}/1", "example.com/c"), to=InvalidError),
    on_data("replace with null", {**config(a="1"), "immutable": False}, op("replace", "/immutable", None),
            to=config(a="1")),
    on_data("move", config(a="1"), op("move", "/data/b", source="/data/a"), to=config(b="1")),
    on_data("move into itself", config(a="1"), op("move", "/data/b", source="/data"), to=InvalidError),
    on_data("move nothing", config(a="1"), op("move", "/data/b", source="/data/c"), to=InvalidError),
    on_data("move without from", config(a="1"), op("move", "/data/b"), to=InvalidError),
    on_data("move an item", final("a", "b"), op("move", f"{F}/1", source=f"{F}/0"), to=final("b", "a")),
    on_data("copy", config(a="1"), op("copy", "/data/b", source="/data/a"), to=config(a="1", b="1")),
    on_data("copy a map, then change it", labelled(a="1"), op("copy", "/data", source="/metadata/labels"),
            op("add", "/data/b", "2"), to={**labelled(a="1"), **config(a="1", b="2")}),
    on_data("copy nothing", config(a="1"), op("copy", "/data/b", source="/data/c"), to=InvalidError,
            same_as_real=False),
    on_data("test", config(a="1"), op("test", "/data/a", "1"), op("add", "/data/b", "2"), to=config(a="1", b="2")),
    on_data("test fails", config(a="1"), op("add", "/data/b", "2"), op("test", "/data/a", "2"), to=InvalidError),
    on_data("test of a missing member", config(a="1"), op("test", "/data/b", "2"), to=InvalidError),
    on_data("test that a member is missing", config(a="1"), op("test", "/data/b", None), to=config(a="1")),
    on_data("test of a map", config(a="1", b="2"), op("test", "/data", {"b": "2", "a": "1"}), to=config(a="1", b="2")),
    on_data("test of a list", final("a", "b"), op("test", F, ["example.com/b", "example.com/a"]), to=InvalidError),
    on_data("test without a parent", config(a="1"), op("test", "/none/b", None), to=InvalidError),
    on_data("no operation", config(a="1"), to=config(a="1")),
    on_data("unknown operation", config(a="1"), op("merge", "/data/a", "2"), to=InvalidError),
    on_data("no path", config(a="1"), {"op": "remove"}, to=InvalidError),
    on_data("path is a number", config(a="1"), {"op": "remove", "path": 1}, to=InvalidError),
    on_data("path without a slash", config(a="1"), op("remove", "data/a"), to=InvalidError),
    on_data("other members", config(a="1"), op("add", "/data/b", "2", comment="why"), to=config(a="1", b="2")),
    on_data("an operation is a text", config(a="1"), "remove", to=BadRequestError),
    PatchCase("a map", "ConfigMap", config(a="1"), {"data": {}}, BadRequestError),
]  # fmt: skip
