# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane for tests and benchmarks: etcd, API server, controller-manager, scheduler.

`with ControlPlane() as plane:` and it is up a few seconds later, on loopback ports of its own; afterwards nothing is
left but its logs. `cluster_fixtures` makes one for all tests of a session, `bench/` makes its own.
"""

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import cluster_audit as audits
import cluster_layout as layouts
from cluster_binaries import find
from cluster_client import Client, ask, run, until
from cluster_layout import Layout
from cluster_process import Process
from cluster_users import USERS, User, new_tokens, token_file, write_kubeconfig

_NONE: Mapping[str, Sequence[str]] = MappingProxyType({})
_MARK = "mark-"


class ControlPlane(Client):
    """One control plane. `flags` are added to those of a component, by its name; `users` to those that are known.

    `first` is done before the controllers start: the garbage collector takes half a minute to see a CRD that comes
    later. With a folder, logs stay there; without, they stay only if it does not come up.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        controllers: bool = True,
        scheduler: bool = True,
        flags: Mapping[str, Sequence[str]] = _NONE,
        users: Iterable[User] = (),
        first: Callable[["ControlPlane"], object] = lambda _: None,
    ) -> None:
        self._keep = folder is not None
        self.layout = Layout(folder or Path(tempfile.mkdtemp(prefix="trainwright-plane-")), *layouts.free_ports(3))
        self._flags = flags
        self._first = first
        self._controllers, self._scheduler = controllers, scheduler
        self.users = {one.name: one for one in (*USERS, *users)}
        self.processes: dict[str, Process] = {}
        self._marks = itertools.count()
        super().__init__(self.layout.server, self.layout.authority, new_tokens(self.users.values()))

    # -- up and down -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        extra = ["kube-controller-manager"] * self._controllers + ["kube-scheduler"] * self._scheduler
        self.binaries = find("etcd", "kube-apiserver", "kubectl", *extra)
        for folder in (self.layout.logs, self.layout.data):
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            undo.callback(self._down)
            self._write_users()
            self._start()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._down()
        if not self._keep:
            shutil.rmtree(self.layout.folder)

    def _start(self) -> None:
        at = self.layout
        self._up("etcd", layouts.etcd(at), lambda: self.answers(f"{at.etcd}/readyz"))
        self._up("kube-apiserver", layouts.apiserver(at, controllers=self._controllers), self._serves)
        self._first(self)
        if self._scheduler:
            self._up("kube-scheduler", layouts.scheduler(self.kubeconfig("scheduler")), lambda: True)
        if self._controllers:
            flags = layouts.controller_manager(at, self.kubeconfig("controller-manager"))
            self._up("kube-controller-manager", flags, self._has_account)

    def _up(self, name: str, flags: Mapping[str, str], ready: Callable[[], bool]) -> None:
        words = [self.binaries[name], *(f"--{key}={value}" for key, value in flags.items())]
        process = Process(name, [*words, *self._flags.get(name, ())], self.layout.logs / f"{name}.log")
        self.processes[name] = process
        process.start()
        process.until(ready)

    def _down(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
        shutil.rmtree(self.layout.data)

    def restart(self, name: str) -> None:
        """Kill a component, start it again, and wait until the API server is well."""
        self.processes[name].kill()
        self.processes[name].start()
        self.processes["kube-apiserver"].until(self._serves)

    def _serves(self) -> bool:
        return self.answers(f"{self.server}/readyz")

    def _has_account(self) -> bool:
        """The controllers work: pods can be made."""
        return self.find("/api/v1/namespaces/default/serviceaccounts/default") is not None

    # -- who talks to it -------------------------------------------------------------------------------------------

    def _write_users(self) -> None:
        self.layout.tokens.touch(mode=0o600)
        self.layout.tokens.write_text(token_file(self.users.values(), self.tokens))
        for name, token in self.tokens.items():
            write_kubeconfig(self.kubeconfig(name), self.server, self.authority, token)

    def kubeconfig(self, user: str = "admin") -> Path:
        """The file for a user of `cluster_users`."""
        if user not in self.users:
            raise KeyError(f"there is no user {user!r}; known are {', '.join(self.users)}")
        return self.layout.folder / "kubeconfig" / user

    def service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of a service account that is there: what a pod of it may do."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.call("POST", path, {"spec": {"expirationSeconds": 24 * 3600}})["status"]["token"]
        to = self.layout.folder / "kubeconfig" / f"{namespace}.{name}"
        return write_kubeconfig(to, self.server, self.authority, token)

    def kubectl(
        self, *words: str, user: str = "admin", given: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user. A failure raises, with what it said, unless `check` is off."""
        ours = [f"--kubeconfig={self.kubeconfig(user)}", f"--cache-dir={self.layout.data / 'kubectl'}"]
        return run([self.binaries["kubectl"], *ours, *words], given, check=check)

    # -- what it saw, and what it forgets --------------------------------------------------------------------------

    def mark(self) -> int:
        """A place in the record, for `audit(since=...)`."""
        self._settle()
        return self.layout.audit_log.stat().st_size

    def audit(self, since: int = 0) -> audits.Calls:
        """Every request since that mark that has been answered by now."""
        self._settle()
        found = audits.read(self.layout.audit_log, since)
        return audits.Calls(call for call in found if not call.name.startswith(_MARK))

    def _settle(self) -> None:
        """A call is on record a little after its answer: wait for one of our own."""
        name = f"{_MARK}{next(self._marks)}"
        before = self.layout.audit_log.stat().st_size
        self.find(f"/api/v1/namespaces/default/configmaps/{name}")
        until(lambda: self._recorded(name, before), f"{self.layout.audit_log} has what was just asked")

    def _recorded(self, name: str, since: int) -> bool:
        return any(call.name == name for call in audits.read(self.layout.audit_log, since))

    def compact(self) -> None:
        """Make etcd forget what was before now. A watch from before is gone (410) where `--watch-cache=false`."""
        etcd = f"{self.layout.etcd}/v3/kv"
        revision = ask(f"{etcd}/range", {"key": "AA=="})["header"]["revision"]
        ask(f"{etcd}/compaction", {"revision": revision, "physical": True})
