# SPDX-License-Identifier: Apache-2.0
"""A small API server with the pods of a real node agent, for the tests of logs, exec and attach.

Run as a program, it starts the agent, one pod with two containers and the server, and prints a kubeconfig for kubectl.
"""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from node_agent import AgentRig, agent_rig, container

from trainwright.api.credentials import ApiCredentials
from trainwright.api.pod_exec import PodStreams
from trainwright.api.pod_logs import PodLogs
from trainwright.errors import ApiError
from trainwright.local.cluster import LocalCluster
from trainwright.model.meta import Key
from trainwright.runtime.ports import PODS, WallClock

_PODS = "/api/v1/namespaces/{namespace}/pods"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiRig:
    """A node, and the address of the server."""

    def __init__(self, agent: AgentRig, url: str) -> None:
        self.agent, self.url = agent, url

    def path(self, rest: str, pod: str = "pod") -> str:
        return f"{self.url}/api/v1/namespaces/space/pods/{pod}/{rest}"


@asynccontextmanager
async def api_rig(folder: Path, tls: ssl.SSLContext | None = None, **more: Any) -> AsyncIterator[ApiRig]:
    async with agent_rig(folder, **more) as agent:
        cluster = LocalCluster(agent.store)
        logs = PodLogs(cluster, WallClock(), folder)
        streams = PodStreams(folder, logs)

        async def pod(request: web.Request) -> Any:
            return await cluster.get(PODS.whole(), Key(request.match_info["namespace"], request.match_info["name"]))

        async def show(request: web.Request) -> web.StreamResponse:
            return web.json_response(await pod(request))

        async def log(request: web.Request) -> web.StreamResponse:
            return await logs.serve(request, await pod(request))

        async def run(request: web.Request) -> web.StreamResponse:
            return await streams.exec(request, await pod(request))

        async def attach(request: web.Request) -> web.StreamResponse:
            return await streams.attach(request, await pod(request))

        app = web.Application(middlewares=[_errors])
        app.router.add_get(f"{_PODS}/{{name}}", show)
        app.router.add_get(f"{_PODS}/{{name}}/log", log)
        for name, handler in (("exec", run), ("attach", attach)):
            app.router.add_route("*", f"{_PODS}/{{name}}/{name}", handler)
        app.router.add_get("/api", _versions)
        app.router.add_get("/apis", _groups)
        app.router.add_get("/api/v1", _resources)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            scheme = "https" if tls is not None else "http"
            yield ApiRig(agent, f"{scheme}://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()


def open_logs() -> list[str]:
    """The log files that this process has open."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except OSError:
            continue
    return [path for path in found if path.endswith(".log")]


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(error)}
        return web.json_response({**status, "reason": error.reason, "code": error.status}, status=error.status)


async def _versions(_: web.Request) -> web.Response:
    return web.json_response({"kind": "APIVersions", "versions": ["v1"]})


async def _groups(_: web.Request) -> web.Response:
    return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})


async def _resources(_: web.Request) -> web.Response:
    pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
    return web.json_response({"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]})


async def _serve(folder: Path) -> None:
    credentials = ApiCredentials(folder, WallClock())
    async with api_rig(folder, credentials.prepare()) as rig:
        script = "trap 'exit 0' TERM; i=0; while :; do i=$((i+1)); echo line $i; sleep 0.5; done"
        rig.agent.run(container(script), container("sleep 1000", name="quiet"))
        await rig.agent.phase("Running")
        config = credentials.kubeconfig_for(next(iter(credentials._tokens)), rig.url)
        (folder / "kubeconfig").write_text(json.dumps(config))
        print(folder / "kubeconfig", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
