# SPDX-License-Identifier: Apache-2.0
"""Two API servers that run the same jobs, for tests that give both the same commands and compare the results.

One is a real control plane with our operator, the other is the background engine of `trainwright up`. Both have the
nodes node-0 and node-1. On the control plane, node-0 is a `trainwright node` agent. There node-1 is a real kubelet,
because an agent does not serve `kubectl exec`, and to compare logs with those of a kubelet. `cluster_server_fixtures`
starts both servers.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster_agents import agent, agent_plane
from cluster_binaries import find
from cluster_container import real_node
from cluster_operator import QUICK, started
from cluster_process import Process
from msgspec import Struct

from patience import PATIENCE

#: The nodes of both servers: the first runs jobs, the second runs the pods of `kubectl exec` and `kubectl logs`.
NODES = ("node-0", "node-1")
#: A kubelet renews its lease every 10 s.
_PATIENT = "--node-monitor-grace-period=60s"


class Server(Struct, frozen=True):
    """An API server as clients see it. `folder` is theirs: HOME, the cache of kubectl, working directory."""

    name: str
    kubeconfig: Path
    folder: Path
    kubectl: str

    @property
    def env(self) -> dict[str, str]:
        """The variables of a client: nothing of the user who runs the tests but the search path."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *words: str) -> str:
        """Run kubectl to prepare or to wait. A failure raises."""
        argv = [self.kubectl, *words]
        done = subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout


@contextmanager
def cluster_server(folder: Path) -> Iterator[Server]:
    """A control plane with an operator, an agent and a kubelet. Raises MissingError if this machine cannot run one."""
    with agent_plane(folder / "plane", _PATIENT) as plane, ExitStack() as stack:
        stack.enter_context(agent(plane, NODES[0], "--cpus", "1"))
        stack.enter_context(real_node(plane, NODES[1]))
        log = plane.layout.logs / "operator.log"
        operator = stack.enter_context(
            started(plane.kubeconfig("operator"), log, "--lease", "default/operator", *QUICK)
        )
        operator.until(lambda: operator.leads(plane, "default"))
        yield Server("cluster", plane.kubeconfig(), _home(folder), plane.binaries["kubectl"])
        assert operator.alive, operator.tail()
        assert plane.audit().where(user="operator", denied=True) == ()


@contextmanager
def engine_server(folder: Path) -> Iterator[Server]:
    """A background engine. Its folder has a short path, because Unix sockets need one."""
    with tempfile.TemporaryDirectory(prefix="tw-") as short:
        state = Path(short) / "state"
        env = {"TRAINWRIGHT_STATE": str(state), "TRAINWRIGHT_LEASES": short}
        words = [sys.executable, "-m", "trainwright", "up", "--foreground", "--nodes", str(len(NODES))]
        engine = Process("engine", words, folder / "engine.log", env)
        engine.start()
        kubeconfig = state / ".engine" / "kubeconfig"
        try:
            engine.until(kubeconfig.exists)
            yield Server("engine", kubeconfig, _home(folder), find("kubectl")["kubectl"])
            assert engine.alive, engine.tail()
        finally:
            down = [sys.executable, "-m", "trainwright", "down", "--end", "--grace", "1s"]
            subprocess.run(down, env={**os.environ, **env}, capture_output=True, timeout=PATIENCE, check=False)
            engine.end()
        assert "Traceback" not in engine.log.read_text()


def _home(folder: Path) -> Path:
    home = folder / "home"
    home.mkdir()
    return home
