# SPDX-License-Identifier: Apache-2.0
"""Calls of the official Python client for built-in kinds, and what they return.

`python_main` runs these with an interpreter that has the clients. Nothing of Trainwright is imported here.
"""

import json
import time
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

Result = dict[str, Any]
_SCRIPT = "for i in 1 2 3; do echo line $i; done; sleep 1; echo end"


def refusal(error: ApiException) -> list[Any]:
    """The code and the reason of an answer that is an error. A refused WebSocket has only a text with both."""
    if error.body is None:
        return [str(error.reason).partition(" -+-+- ")[0]]
    return [error.status, json.loads(error.body)["reason"]]


def refused(call: Any, *words: Any, **more: Any) -> Any:
    """How a call fails."""
    try:
        return f"accepted: {call(*words, **more)}"
    except ApiException as error:
        return refusal(error)


def pod(name: str, script: str, node: str) -> client.V1Pod:
    """A pod that runs a line of shell on that node. As users of the client do, neither apiVersion nor kind is set."""
    main = client.V1Container(
        name="main", image="trainwright.test/busybox:1", image_pull_policy="Never", command=["sh", "-c", script]
    )
    spec = client.V1PodSpec(
        containers=[main],
        restart_policy="Never",
        termination_grace_period_seconds=1,
        node_selector={"kubernetes.io/hostname": node},
        automount_service_account_token=False,
    )
    return client.V1Pod(metadata=client.V1ObjectMeta(name=name, labels={"app": name}), spec=spec)


def wait_for_phase(core: client.CoreV1Api, namespace: str, name: str, phase: str) -> None:
    """Watch a pod until it has this phase."""
    follower = watch.Watch()
    where = {"namespace": namespace, "field_selector": f"metadata.name={name}", "timeout_seconds": 30}
    for event in follower.stream(core.list_namespaced_pod, **where):
        if event["object"].status.phase == phase:
            follower.stop()
            return
    raise AssertionError(f"{name} is not {phase}")


def pods(namespace: str) -> Result:
    """Create a pod, watch it, follow its log, list, patch and delete it."""
    core = client.CoreV1Api()
    made = core.create_namespaced_pod(namespace, pod("talker", _SCRIPT, "node-1"))
    wait_for_phase(core, namespace, "talker", "Running")
    lines = watch.Watch().stream(core.read_namespaced_pod_log, name="talker", namespace=namespace)
    followed = list(lines)
    wait_for_phase(core, namespace, "talker", "Succeeded")
    read = core.read_namespaced_pod_log
    ended = core.read_namespaced_pod("talker", namespace)
    patched = core.patch_namespaced_pod("talker", namespace, {"metadata": {"labels": {"team": "blue"}}})
    listed = core.list_namespaced_pod(namespace, label_selector="team=blue,app in (talker,other)")
    anywhere = core.list_pod_for_all_namespaces(field_selector="metadata.name=talker,status.phase=Succeeded")
    found = {
        "made": [made.kind, made.metadata.name, made.metadata.namespace, made.status.phase],
        "followed": followed,
        "log": read("talker", namespace),
        "tail": read("talker", namespace, tail_lines=1, container="main"),
        "limit": read("talker", namespace, limit_bytes=6, since_seconds=3600),
        "times": read("talker", namespace, timestamps=True, tail_lines=2).splitlines(),
        "previous": refused(read, "talker", namespace, previous=True),
        "other container": refused(read, "talker", namespace, container="other"),
        "state": ended.status.container_statuses[0].state.terminated.reason,
        "labels": patched.metadata.labels,
        "listed": [listed.kind, listed.api_version, [one.metadata.name for one in listed.items]],
        "anywhere": [one.metadata.name for one in anywhere.items],
        "absent": refused(core.read_namespaced_pod, "absent", namespace),
        "invalid": refused(core.create_namespaced_pod, namespace, {"metadata": {"name": "Bad_Name"}}),
        "text": refused(core.list_namespaced_pod, namespace, field_selector="spec.nothing=1"),
    }
    gone = core.delete_namespaced_pod("talker", namespace)
    return {**found, "gone": [type(gone).__name__, gone.metadata.name]}


def commands(namespace: str) -> Result:
    """Run commands in a pod over a WebSocket: output, standard input, a terminal, exit codes."""
    core = client.CoreV1Api()
    core.create_namespaced_pod(namespace, pod("shell", "exec sleep 1000", "node-1"))
    wait_for_phase(core, namespace, "shell", "Running")
    where = {"name": "shell", "namespace": namespace, "stderr": True, "stdout": True, "tty": False}

    def run(*words: str, **more: Any) -> Any:
        return stream(core.connect_get_namespaced_pod_exec, **{**where, "stdin": False, **more}, command=list(words))

    session = run("sh", "-c", "read word; echo got $word; echo bad >&2; exit 3", stdin=True, _preload_content=False)
    session.write_stdin("word\n")
    session.run_forever(timeout=20)
    terminal = run("sh", "-c", "test -t 0 && test -t 1 && echo terminal", stdin=True, tty=True, stderr=False)
    found = {
        "both": sorted(run("sh", "-c", "echo out; echo err >&2").splitlines()),
        "stdin": [session.read_stdout(), session.read_stderr(), session.returncode],
        "terminal": terminal.strip(),
        "absent": refused(stream, core.connect_get_namespaced_pod_exec, "absent", namespace, command=["true"]),
    }
    core.delete_namespaced_pod("shell", namespace, grace_period_seconds=0)
    return found


def config_maps(namespace: str) -> Result:
    """Create, read, replace, patch, list in pages and delete ConfigMaps and Secrets."""
    core = client.CoreV1Api()
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="one", labels={"of": "pages"}), data={"a": "1"})
    made = core.create_namespaced_config_map(namespace, body)
    again = refused(core.create_namespaced_config_map, namespace, body)
    stale = core.read_namespaced_config_map("one", namespace)
    made.data["b"] = "2"
    replaced = core.replace_namespaced_config_map("one", namespace, made)
    conflict = refused(core.replace_namespaced_config_map, "one", namespace, stale)
    patched = core.patch_namespaced_config_map("one", namespace, {"data": {"a": None, "c": "3"}})
    dry = core.patch_namespaced_config_map("one", namespace, {"data": {"dry": "4"}}, dry_run="All")
    for name in ("two", "three"):
        body.metadata.name = name
        core.create_namespaced_config_map(namespace, body)
    secret = client.V1Secret(metadata=client.V1ObjectMeta(name="word"), string_data={"word": "hush"})
    core.create_namespaced_secret(namespace, secret)
    found = {
        "again": again,
        "replaced": replaced.data,
        "conflict": conflict,
        "patched": patched.data,
        "dry": [dry.data, core.read_namespaced_config_map("one", namespace).data],
        "pages": _pages(core, namespace),
        "secret": core.read_namespaced_secret("word", namespace).data,
        "deleted": _outcome(core.delete_namespaced_config_map("one", namespace)),
        "wrong page": refused(core.list_namespaced_config_map, namespace, limit=1, _continue="nonsense"),
    }
    core.delete_collection_namespaced_config_map(namespace, label_selector="of=pages")
    left = core.list_namespaced_config_map(namespace, label_selector="of=pages").items
    return {**found, "left": [one.metadata.name for one in left]}


def _outcome(status: Any) -> str:
    """The field `status` of a Status, which newer versions of the client return as a dict."""
    return str(status["status"] if isinstance(status, dict) else status.status)


def _pages(core: client.CoreV1Api, namespace: str) -> list[list[str]]:
    pages, token = [], None
    while token != "":
        listed = core.list_namespaced_config_map(namespace, label_selector="of=pages", limit=2, _continue=token)
        pages.append([one.metadata.name for one in listed.items])
        token = listed.metadata._continue or ""
    return pages


def watches(namespace: str) -> Result:
    """A watch that is stopped and resumed sees every event once."""
    core = client.CoreV1Api()
    start = core.list_namespaced_config_map(namespace).metadata.resource_version
    seen: list[list[str]] = []
    follower = watch.Watch()

    def follow(version: str, number: int) -> None:
        where = {"label_selector": "of=watches", "resource_version": version, "timeout_seconds": 20}
        for event in follower.stream(core.list_namespaced_config_map, namespace, **where):
            seen.append([event["type"], event["object"].metadata.name, event["object"].data["a"]])
            number -= 1
            if not number:
                follower.stop()

    for name in ("x", "y"):
        labels = client.V1ObjectMeta(name=name, labels={"of": "watches"})
        core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=labels, data={"a": "1"}))
    follow(start, 1)
    core.patch_namespaced_config_map("x", namespace, {"data": {"a": "2"}})
    core.delete_namespaced_config_map("y", namespace)
    follow(follower.resource_version, 3)
    begun = time.monotonic()
    quiet = list(
        watch.Watch().stream(
            core.list_namespaced_config_map, namespace, resource_version=follower.resource_version, timeout_seconds=1
        )
    )
    return {"seen": seen, "quiet": len(quiet), "ended in time": 0.5 < time.monotonic() - begun < 10}


def others(namespace: str) -> Result:
    """What clients ask once: version, rights, nodes, namespaces, leases, groups."""
    attributes = client.V1ResourceAttributes(verb="create", group="kubeflow.org", resource="tfjobs")
    review = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    answer = client.AuthorizationV1Api().create_self_subject_access_review(review)
    code = client.VersionApi().get_code()
    lease = client.V1Lease(
        metadata=client.V1ObjectMeta(name="lock"),
        spec=client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=9),
    )
    leases = client.CoordinationV1Api()
    made = leases.create_namespaced_lease(namespace, lease)
    made.spec.holder_identity = "you"
    core = client.CoreV1Api()
    return {
        "allowed": answer.status.allowed,
        "version": [code.major, code.minor],
        "lease": leases.replace_namespaced_lease("lock", namespace, made).spec.holder_identity,
        "nodes": sorted(one.metadata.name for one in core.list_node().items),
        "namespace": core.read_namespace(namespace).status.phase,
        "groups": "kubeflow.org" in {one.name for one in client.ApisApi().get_api_versions().groups},
        "resources": sorted(
            one.name for one in client.CustomObjectsApi().get_api_resources("kubeflow.org", "v1").resources
        ),
        "events": core.list_namespaced_event(namespace, limit=1).kind,
    }
