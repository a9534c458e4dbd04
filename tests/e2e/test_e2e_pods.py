# SPDX-License-Identifier: Apache-2.0
"""What a pod template may ask for, done by real processes: containers, environment, volumes, hooks, probes, limits."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e_jobs import Body, beside, container, job, python, role, shell, worker
from e2e_workspace import FinishedCommand, Workspace, until

from trainwright.node.supervisor.resource_limits import Cgroups

pytest_plugins = ["e2e_fixtures"]


def said(done: FinishedCommand, name: str = "main") -> list[str]:
    """What a container printed."""
    return [item["text"] for item in done.items if item["type"] == "log" and item["container"] == name]


def run(workspace: Workspace, *bodies: Body, code: int = 0) -> FinishedCommand:
    done = workspace.run("run", "-o", "json", workspace.write(*bodies))
    assert done.code == code, done.said
    return done


# -- containers ------------------------------------------------------------------------------------------------------


def test_init_containers_run_in_order_before_the_others(workspace: Workspace) -> None:
    note = f"echo $NAME >> {workspace.work}/order"
    named = [shell(f"sleep 0.1; {note}", name=name, env=[{"name": "NAME", "value": name}]) for name in ("a", "b")]
    run(workspace, job(role("worker", shell(f"cat {workspace.work}/order"), initContainers=named)))

    assert (workspace.work / "order").read_text() == "a\nb\n"
    (workspace.work / "order").unlink()


def test_an_init_container_that_fails_fails_the_replica(process: Workspace) -> None:
    broken = shell("echo no good; exit 4", name="prepare")
    done = run(process, job(role("worker", shell("echo never"), initContainers=[broken])), code=1)

    (end,) = (item for item in done.items if item["type"] == "end")
    assert (end["container"], end["code"], end["lastLines"]) == ("prepare", 4, ["no good"])
    assert said(done) == []


def test_containers_of_a_pod_run_together(workspace: Workspace) -> None:
    meet = f"touch {workspace.work}/%s; until [ -e {workspace.work}/%s ]; do sleep 0.05; done; echo met"
    pair = [shell(meet % names, name=names[0]) for names in (("one", "two"), ("two", "one"))]
    done = run(workspace, job(role("worker", *pair)))

    assert said(done, "one") == said(done, "two") == ["met"]


def test_containers_of_a_pod_share_their_network_and_memory(sandbox: Workspace) -> None:
    serve = """
import socket
server = socket.create_server(("127.0.0.1", 80))
open("/dev/shm/up", "w")
server.accept()[0].sendall(b"hello")
"""
    ask = """
import os, socket, time
while not os.path.exists("/dev/shm/up"): time.sleep(0.05)
print(socket.create_connection(("127.0.0.1", 80)).recv(9).decode())
"""
    done = run(sandbox, job(role("worker", python(serve, name="serve"), python(ask))))

    assert said(done) == ["hello"]


def test_a_pod_is_not_restarted_in_place(process: Workspace) -> None:
    """A GenericJob decides about restarts itself: by replica, with another pod."""
    done = run(process, worker("echo once; exit 1", restartPolicy="Always"), code=1)

    assert said(done) == ["once"]


def test_the_working_directory_is_the_one_given_or_where_one_stands(workspace: Workspace) -> None:
    done = run(workspace, job(role("worker", shell("pwd"), shell("pwd", name="other", workingDir="/usr"))))

    assert said(done) == [str(workspace.work)]
    assert said(done, "other") == ["/usr"]


def test_output_without_a_last_newline_and_odd_bytes_are_kept(process: Workspace) -> None:
    done = run(process, worker(r"printf 'a\tb\377\033[31mred\033[0m\nno end'"))

    assert said(done) == ["a\tb\ufffd\x1b[31mred\x1b[0m", "no end"]
    (log,) = process.folder_of().glob("logs/*/*.log")
    assert log.read_bytes() == b"a\tb\377\033[31mred\033[0m\nno end"


# -- environment -----------------------------------------------------------------------------------------------------


def test_environment_comes_from_everywhere(workspace: Workspace) -> None:
    secret = beside("Secret", "tokens", stringData={"word": "sesame"}, data={"coded": "b3Blbg=="})
    settings = beside("ConfigMap", "settings", data={"RATE": "0.3", "not-a-name": "x"})
    env: list[Body] = [
        {"name": "PLAIN", "value": "a"},
        {"name": "BOTH", "value": "$(PLAIN)-$(RATE)-$(MISSING)-$$(PLAIN)"},
        *(field(name, path) for name, path in FIELDS.items()),
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "word"}}},
        {"name": "CODED", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "coded"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}},
    ]
    tell = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    resources = {"requests": {"memory": "32Mi"}, "limits": {"cpu": "500m"}}
    more: dict[str, Any] = {"env": env, "envFrom": [{"configMapRef": {"name": "settings"}}], "resources": resources}
    done = run(workspace, secret, settings, job(role("worker", python(tell, args=["$(PLAIN)", "$(NONE)"], **more))))

    found, arguments = json.loads(said(done)[0])
    assert arguments == ["a", "$(NONE)"]
    wanted = {
        "PLAIN": "a",
        "BOTH": "a-0.3-$(MISSING)-$(PLAIN)",
        "RATE": "0.3",
        "WORD": "sesame",
        "CODED": "open",
        "CPU": "500",
        "MEMORY": "32",
        "POD": "e2e-worker-0",
        "SPACE": "default",
        "NODE": "node-0",
        "HOSTNAME": "e2e-worker-0",
    }
    assert {name: found.get(name) for name in wanted} == wanted
    assert "MAYBE" not in found
    assert re.fullmatch(r"(\d+\.){3}\d+", found["IP"])
    assert "TRAINWRIGHT_STATE" not in found  # only what is said to pass does
    assert "TMPDIR" not in found


FIELDS = {"POD": "metadata.name", "SPACE": "metadata.namespace", "NODE": "spec.nodeName", "IP": "status.podIP"}


def field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


# -- volumes ---------------------------------------------------------------------------------------------------------


def mounted(script: str, path: str = "/data", **mount: Any) -> Body:
    return shell(script, volumeMounts=[{"name": "v", "mountPath": path, **mount}])


def test_a_secret_and_a_config_map_are_files(sandbox: Workspace) -> None:
    secret = beside("Secret", "tokens", stringData={"word": "sesame"})
    settings = beside("ConfigMap", "settings", data={"rate": "0.3", "other": "x"})
    mounts = [{"name": name, "mountPath": f"/etc/e2e/{name}", "readOnly": True} for name in ("secret", "settings")]
    volumes = [
        {"name": "secret", "secret": {"secretName": "tokens", "defaultMode": 0o400}},
        {"name": "settings", "configMap": {"name": "settings", "items": [{"key": "rate", "path": "deep/rate"}]}},
    ]
    script = "cd /etc/e2e; wc -c < secret/word; cat settings/deep/rate; echo; stat -Lc %a secret/word; ls settings"
    done = run(sandbox, secret, settings, job(role("worker", shell(script, volumeMounts=mounts), volumes=volumes)))

    assert said(done) == ["6", "0.3", "400", "deep"]
    assert not Path("/etc/e2e").exists()
    assert [path for path in sandbox.state.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()] == []


def test_a_pod_reads_about_itself_and_from_several_sources_in_files(sandbox: Workspace) -> None:
    about = {"path": "about/name", "fieldRef": {"fieldPath": "metadata.name"}}
    sources = [
        {"configMap": {"name": "settings", "items": [{"key": "rate", "path": "rate"}]}},
        {"secret": {"name": "tokens"}},
        {"downwardAPI": {"items": [about]}},
        {"serviceAccountToken": {"path": "jwt"}},
    ]
    volumes = [{"name": "all", "projected": {"sources": sources}}, {"name": "own", "downwardAPI": {"items": [about]}}]
    mounts = [{"name": name, "mountPath": f"/etc/e2e/{name}"} for name in ("all", "own")]
    script = "cd /etc/e2e; ls all; cat all/rate; echo; cat all/word; echo; cat all/about/name; echo; cat own/about/name"
    done = run(
        sandbox,
        beside("ConfigMap", "settings", data={"rate": "0.3"}),
        beside("Secret", "tokens", stringData={"word": "open"}),
        job(role("worker", shell(script, volumeMounts=mounts), volumes=volumes)),
    )

    assert said(done) == ["about", "rate", "word", "0.3", "open", "e2e-worker-0", "e2e-worker-0"]
    assert "there are no service accounts here: the file 'jwt' is left out" in done.err


def test_a_claim_outlives_its_run(sandbox: Workspace) -> None:
    claim = beside("PersistentVolumeClaim", "mine", spec={"accessModes": ["ReadWriteOnce"]})
    write = mounted("cat /data/count 2>/dev/null || echo nothing yet; echo x >> /data/count")
    body = job(role("worker", write, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "mine"}}]))

    assert said(run(sandbox, claim, body)) == ["nothing yet"]
    assert said(run(sandbox, claim, body)) == ["x"]
    assert (sandbox.state / "volumes/default/mine/count").read_text() == "x\nx\n"


def test_an_empty_dir_is_shared_by_containers_and_goes_with_the_pod(sandbox: Workspace) -> None:
    put, get = mounted("echo hello > /data/x"), mounted("cat /data/x; df -k /small | tail -1 | awk '{print $2}'")
    put["name"] = "put"
    get["volumeMounts"].append({"name": "m", "mountPath": "/small"})
    volumes = [{"name": "v", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    done = run(sandbox, job(role("worker", get, initContainers=[put], volumes=volumes)))

    assert said(done) == ["hello", "1024"]
    assert not (sandbox.folder_of() / "pods").exists()


@pytest.mark.parametrize("where", ["/data/deep/er", "/usr/local/e2e", "/home/e2e"])
def test_a_volume_can_be_mounted_where_nothing_is(sandbox: Workspace, where: str) -> None:
    script = f"echo x > {where}/file; cat {where}/file; ls /usr/bin/env; cat /etc/hostname >/dev/null; echo ok"
    done = run(sandbox, job(role("worker", mounted(script, where), volumes=[{"name": "v", "emptyDir": {}}])))

    assert said(done) == ["x", "/usr/bin/env", "ok"]
    assert not Path(where).exists()


def test_a_host_path_is_this_machines(workspace: Workspace) -> None:
    shared = workspace.work / "shared"
    volume = {"name": "v", "hostPath": {"path": str(shared), "type": "DirectoryOrCreate"}}
    run(workspace, job(role("worker", mounted(f"echo hello > {shared}/x", str(shared)), volumes=[volume])))

    assert (shared / "x").read_text() == "hello\n"


def test_a_read_only_mount_cannot_be_written(sandbox: Workspace) -> None:
    shared = sandbox.work / "shared"
    shared.mkdir()
    volume = {"name": "v", "hostPath": {"path": str(shared)}}
    done = run(sandbox, job(role("worker", mounted("touch /data/x || echo no", readOnly=True), volumes=[volume])))

    assert said(done)[-1] == "no"
    assert [*shared.iterdir()] == []


def test_tmp_is_a_pods_own(sandbox: Workspace) -> None:
    done = run(sandbox, worker("ls /tmp | wc -l; touch /tmp/e2e-$HOSTNAME; ls /tmp | grep e2e-", replicas=2))

    assert sorted(line for line in said(done) if "e2e-" in line) == ["e2e-e2e-worker-0", "e2e-e2e-worker-1"]
    assert not [*Path("/tmp").glob("e2e-e2e-*")]  # noqa: S108 - that one is meant


def test_an_active_virtual_environment_is_visible_also_below_tmp(sandbox: Workspace) -> None:
    """As one that was made for a trial is; the folders of the tests are below /tmp, too."""
    program = sandbox.folder / "venv/bin/mine"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho from the environment\n")
    program.chmod(0o755)
    found = {"VIRTUAL_ENV": str(sandbox.folder / "venv"), "PATH": f"{program.parent}:{sandbox.env['PATH']}"}
    done = sandbox.run("run", "-o", "json", worker("mine"), env=found)

    assert said(done) == ["from the environment"]


def test_kept_files_are_where_they_were(sandbox: Workspace) -> None:
    body = job(role("worker", mounted("echo kept > /data/x"), volumes=[{"name": "v", "emptyDir": {}}]))
    done = sandbox.run("run", "--keep", body)

    assert done.code == 0
    (file,) = sandbox.folder_of().glob("pods/*/volumes/v/x")
    assert file.read_text() == "kept\n"


# -- hooks, probes, limits -------------------------------------------------------------------------------------------


def test_hooks_run(workspace: Workspace) -> None:
    wait = "trap 'echo TERM; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    notes = workspace.work / "notes"
    hook = {name: {"exec": {"command": ["sh", "-c", f"echo {name} >> {notes}"]}} for name in ("postStart", "preStop")}
    live = workspace.start("run", job(role("worker", shell(wait, lifecycle=hook))))
    live.until("| ready")
    until(notes.exists)
    assert notes.read_text() == "postStart\n"

    live.signal(signal.SIGTERM)
    done = live.end()

    assert notes.read_text() == "postStart\npreStop\n"
    assert "worker-0 | TERM" in done.out


def test_a_liveness_probe_that_fails_ends_the_container(process: Workspace) -> None:
    sick = process.work / "sick"
    probe = {"exec": {"command": ["test", "!", "-e", str(sick)]}, "periodSeconds": 1, "failureThreshold": 1}
    done = run(process, job(role("worker", shell(f"touch {sick}; sleep 30; echo never", livenessProbe=probe))), code=1)

    assert said(done) == []
    assert any("its liveness probe failed" in item.get("reason", "") for item in done.items), done.items


def test_a_replica_is_not_ready_until_its_probe_says_so(process: Workspace) -> None:
    ready = process.work / "ready"
    probe = {"exec": {"command": ["test", "-e", str(ready)]}, "periodSeconds": 1}
    live = process.start("run", job(role("worker", shell("exec sleep 60", readinessProbe=probe))))
    live.until("worker-0  Running  node-0  not ready")

    ready.touch()

    until(lambda: "not ready" not in process.run("get", "e2e").out)
    live.signal(signal.SIGINT)
    live.end()


_CGROUP_FREE = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"']


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroups if allowed", "no cgroups"])
def test_a_container_that_takes_too_much_memory_is_named(workspace: Workspace, cgroups: bool) -> None:
    """The kernel kills it, or the supervisor does where it may make no cgroup; then a notice says so."""
    greedy = python("import time; x = bytearray(300 << 20); x[::4096] = b'y' * len(x[::4096]); time.sleep(600)")
    greedy["resources"] = {"limits": {"memory": "64Mi", "cpu": "1"}}
    workspace.before = _CGROUP_FREE if not cgroups and os.geteuid() == 0 else []
    done = run(workspace, job(role("worker", greedy)), code=1)

    (end,) = (item for item in done.items if item["type"] == "end")
    assert end["code"] == 137
    assert "OOMKilled" in end["cause"]
    assert "resources.limits.memory" in end["hint"]
    told = [item["text"] for item in done.items if item["type"] == "notice" and item["text"].startswith("limits.")]
    refused = ["memory", "cpu"] if workspace.before else [*Cgroups().refusals]
    expected = {"memory": "limits.memory is checked", "cpu": "limits.cpu is not"}
    assert [" ".join(text.split()[:3]) for text in told] == [expected[name] for name in refused]


def test_arguments_reach_the_program_as_they_are(process: Workspace) -> None:
    odd = ["", " ", "a b", "$HOME", "*", "\\", "'", '"', "ü", "-", "--"]
    tell = container("python3", "-Sc", "import json, sys; print(json.dumps(sys.argv[1:]))", args=odd)

    assert json.loads(said(run(process, job(role("worker", tell))))[0]) == odd
