# SPDX-License-Identifier: Apache-2.0
"""What kube-proxy does, for the one service that an operator needs: pods reach the API server at its cluster address.

`service_address` is for tests with a real node, as root. Run as a program, this file is the forwarder.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster_plane import ControlPlane
from cluster_process import Process

#: The first of the range of services, which every API server takes for itself.
ADDRESS = "10.96.0.1"
_SERVICES = "10.96.0.0/16"
_PORT = 443


@contextmanager
def service_address(plane: ControlPlane, node: str = "node-0") -> Iterator[None]:
    """Pods that start on that real node from now on reach the API server as `kubernetes.default` says."""
    _route(plane.layout.data / node / "net" / "bridge.conflist")
    _ip("address", "replace", f"{ADDRESS}/32", "dev", "lo")
    path = f"PYTHONPATH={Path(__file__).parents[1]}"  # where the helpers of all tests are
    words = [
        "/usr/bin/env",
        path,
        sys.executable,
        __file__,
        ADDRESS,
        str(_PORT),
        "127.0.0.1",
        str(plane.layout.server_port),
    ]
    process = Process("forwarder", words, plane.layout.logs / "forwarder.log")
    process.start()
    try:
        process.until(lambda: "ready" in process.tail())
        yield
    finally:
        process.kill()
        _ip("address", "delete", f"{ADDRESS}/32", "dev", "lo")


def _route(file: Path) -> None:
    """Pods otherwise know the way to each other alone. containerd sees that the file has changed."""
    network = json.loads(file.read_text())
    network["plugins"][0]["ipam"]["routes"] = [{"dst": _SERVICES}]
    part = file.with_suffix(".part")
    part.write_text(json.dumps(network))
    part.rename(file)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)  # noqa: S607 - as the system has it


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(host: str, port: str, to_host: str, to_port: str) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(to_host, int(to_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    server = await asyncio.start_server(forward, host, int(port))
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
