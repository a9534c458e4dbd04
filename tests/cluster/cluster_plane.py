# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane for tests and benchmarks: etcd, API server, controller-manager, scheduler.

`with ControlPlane() as plane:` and it is up, on loopback ports of its own, a few seconds later; afterwards nothing is
left but its logs. `cluster_fixtures` makes one for all tests of a session, `bench/` makes its own.
"""

import itertools
import json
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import Any, Self

import cluster_audit as audits
from cluster_binaries import find
from cluster_process import PATIENCE, PlaneError, Process
from cluster_users import USERS, User, new_tokens, token_file, write_kubeconfig

Body = dict[str, Any]
_NONE: Mapping[str, Sequence[str]] = MappingProxyType({})
_MERGE = "application/merge-patch+json"
#: Below the ports that the kernel hands to whoever connects.
_PORTS = range(15000, 32000)


class ApiStatusError(Exception):
    """The API server refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class ControlPlane:
    """One control plane. `flags` are added to those of a component, by its name; `users` to those that are known."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        controllers: bool = True,
        scheduler: bool = True,
        flags: Mapping[str, Sequence[str]] = _NONE,
        users: Iterable[User] = (),
    ) -> None:
        self._given = folder
        self._flags = flags
        self._parts = ["etcd", "kube-apiserver", *["kube-controller-manager"] * controllers]
        self._parts += ["kube-scheduler"] * scheduler
        self.users = {one.name: one for one in (*USERS, *users)}
        self.tokens = new_tokens(self.users.values())
        self.processes: dict[str, Process] = {}
        self._marks = itertools.count()

    # -- up and down -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._binaries = find(*self._parts, "kubectl")
        self.folder = self._given or Path(tempfile.mkdtemp(prefix="trainwright-plane-"))
        for name in ("logs", "data"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        etcd, peer, port = free_ports(3)
        self.etcd, self.server = f"http://127.0.0.1:{etcd}", f"https://127.0.0.1:{port}"
        with ExitStack() as undo:
            undo.callback(self._down)
            self._write_users()
            self._up("etcd", _etcd(self.folder, self.etcd, peer), lambda: self._answers(f"{self.etcd}/readyz"))
            self._up("kube-apiserver", self._apiserver(port), lambda: self._answers(f"{self.server}/readyz"))
            if "kube-scheduler" in self._parts:
                self._up("kube-scheduler", self._scheduler(), lambda: True)
            if "kube-controller-manager" in self._parts:
                self._up("kube-controller-manager", self._controllers(), self._has_account)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._down()
        if self._given is None:
            shutil.rmtree(self.folder)

    def _down(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
        shutil.rmtree(self.folder / "data")

    def _up(self, name: str, flags: Mapping[str, str], ready: Callable[[], bool]) -> None:
        words = [self._binaries[name], *(f"--{key}={value}" for key, value in flags.items())]
        process = Process(name, [*words, *self._flags.get(name, ())], self.folder / "logs" / f"{name}.log")
        self.processes[name] = process
        process.start()
        process.until(ready)

    def restart(self, name: str) -> None:
        """Kill a component, and start it again as it was; etcd has no data that it would have to sync."""
        self.processes[name].kill()
        self.processes[name].start()
        self.processes["kube-apiserver"].until(lambda: self._answers(f"{self.server}/readyz"))

    # -- its parts -------------------------------------------------------------------------------------------------

    def _apiserver(self, port: int) -> dict[str, str]:
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(audits.POLICY))
        cluster = "kube-controller-manager" in self._parts
        return {
            "etcd-servers": self.etcd,
            "cert-dir": str(self._certificates),
            "secure-port": str(port),
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",  # it may not be an endpoint if it is on loopback
            "service-cluster-ip-range": "10.96.0.0/16",
            # The pair that the server makes for itself also signs and checks the tokens of service accounts.
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self.authority),
            "service-account-signing-key-file": str(self._key),
            "token-auth-file": str(self.folder / "tokens.csv"),
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "true",
            "kubelet-preferred-address-types": "InternalIP",
            "audit-policy-file": str(policy),
            "audit-log-path": str(self._audit_log),
            "audit-log-maxsize": "100000",  # never begun anew
            **({} if cluster else {"disable-admission-plugins": "ServiceAccount,TaintNodesByCondition"}),
        }

    def _controllers(self) -> dict[str, str]:
        return {
            "kubeconfig": str(self.kubeconfig("controller-manager")),
            "leader-elect": "false",
            "secure-port": "0",
            "service-account-private-key-file": str(self._key),
            "root-ca-file": str(self.authority),
            "controllers": "*,-node-ipam-controller",
            "node-monitor-grace-period": "24h",  # fake nodes have no heartbeat
            "kube-api-qps": "1000",
            "kube-api-burst": "1000",
        }

    def _scheduler(self) -> dict[str, str]:
        ours = {"kubeconfig": str(self.kubeconfig("scheduler")), "leader-elect": "false", "secure-port": "0"}
        return {**ours, "kube-api-qps": "1000", "kube-api-burst": "1000"}

    @property
    def _certificates(self) -> Path:
        return self.folder / "data" / "certificates"

    @property
    def authority(self) -> Path:
        """The certificates to trust."""
        return self._certificates / "apiserver.crt"

    @property
    def _key(self) -> Path:
        return self._certificates / "apiserver.key"

    @property
    def _audit_log(self) -> Path:
        return self.folder / "logs" / "audit.jsonl"

    def _write_users(self) -> None:
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(token_file(self.users.values(), self.tokens))
        for name, token in self.tokens.items():
            write_kubeconfig(self.kubeconfig(name), self.server, self.authority, token)

    # -- is it there -----------------------------------------------------------------------------------------------

    def _answers(self, url: str) -> bool:
        try:
            with urllib.request.urlopen(url, timeout=5, context=self._tls()):  # noqa: S310 - a URL of our own
                return True
        except OSError:  # an HTTP error, too
            return False

    def _tls(self) -> ssl.SSLContext | None:
        """None until the server has made its certificate."""
        return ssl.create_default_context(cafile=str(self.authority)) if self.authority.exists() else None

    def _has_account(self) -> bool:
        """The controllers work: pods can be made."""
        return self.find("/api/v1/namespaces/default/serviceaccounts/default") is not None

    # -- talking to it ---------------------------------------------------------------------------------------------

    def kubeconfig(self, user: str = "admin") -> Path:
        """The file for a user of `cluster_users`."""
        if user not in self.users:
            raise KeyError(f"there is no user {user!r}; known are {', '.join(self.users)}")
        return self.folder / "kubeconfig" / user

    def service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of a service account that is there: what a pod of it may do."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.call("POST", path, {"spec": {"expirationSeconds": 24 * 3600}})["status"]["token"]
        to = self.folder / "kubeconfig" / f"{namespace}.{name}"
        return write_kubeconfig(to, self.server, self.authority, token)

    def call(self, verb: str, path: str, body: Body | None = None, *, user: str = "admin") -> Body:
        """One request, without any client of ours: `call("GET", "/api/v1/pods")`. PATCH is a merge patch."""
        kind = _MERGE if verb == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {self.tokens[user]}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.server + path, data, headers, method=verb)  # noqa: S310 - ours
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE, context=self._tls()) as answer:  # noqa: S310 - ours
                found: Body = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise ApiStatusError(error.code, error.read().decode(errors="replace")) from None

    def find(self, path: str) -> Body | None:
        """What is there, or None."""
        try:
            return self.call("GET", path)
        except ApiStatusError as error:
            if error.code != 404:
                raise
            return None

    def kubectl(
        self, *words: str, user: str = "admin", given: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user. A failure raises, with what it said, unless `check` is off."""
        ours = [f"--kubeconfig={self.kubeconfig(user)}", f"--cache-dir={self.folder / 'data' / 'kubectl'}"]
        how: Any = {"input": given, "capture_output": True, "text": True, "timeout": PATIENCE}
        done = subprocess.run([self._binaries["kubectl"], *ours, *words], check=False, **how)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def until(self, so: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """Wait until something is so; what it returned."""
        deadline = time.monotonic() + patience
        while not (found := so()):
            if time.monotonic() > deadline:
                raise PlaneError(f"not in {patience:.0f} s: {what}; logs are in {self.folder / 'logs'}")
            time.sleep(0.05)
        return found

    # -- what it saw, and what it forgets --------------------------------------------------------------------------

    def mark(self) -> int:
        """From here on: `audit(since=mark)`."""
        self._settle()
        return self._audit_log.stat().st_size

    def audit(self, since: int = 0) -> audits.Calls:
        """Every request since that mark that has been answered by now."""
        self._settle()
        return audits.Calls(call for call in audits.read(self._audit_log, since) if not call.name.startswith("mark-"))

    def _settle(self) -> None:
        """A call is on record a little after its answer: wait for one of our own."""
        name = f"mark-{next(self._marks)}"
        before = self._audit_log.stat().st_size
        self.find(f"/api/v1/namespaces/default/configmaps/{name}")
        self.until(lambda: self._recorded(name, before), "the audit log has what was just asked")

    def _recorded(self, name: str, since: int) -> bool:
        return any(call.name == name for call in audits.read(self._audit_log, since))

    def compact(self) -> None:
        """Make etcd forget what was before now. A watch from before is gone (410) where `--watch-cache=false`."""
        revision = self._ask_etcd("range", {"key": "AA=="})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": revision, "physical": True})

    def _ask_etcd(self, what: str, body: Body) -> Body:
        asked = urllib.request.Request(f"{self.etcd}/v3/kv/{what}", json.dumps(body).encode(), method="POST")  # noqa: S310 - ours
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:  # noqa: S310 - ours
            found: Body = json.load(answer)
            return found


def _etcd(folder: Path, clients: str, peer: int) -> dict[str, str]:
    peers = f"http://127.0.0.1:{peer}"
    return {
        "data-dir": str(folder / "data" / "etcd"),
        "unsafe-no-fsync": "true",
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "quota-backend-bytes": str(4 << 30),
    }


def free_ports(number: int) -> list[int]:
    """Ports on loopback that nobody has; somebody may take one, since they are only looked at."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < number:
            one = stack.enter_context(socket.socket())
            port = SystemRandom().choice(_PORTS)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
