# SPDX-License-Identifier: Apache-2.0
"""Measures images: downloads from a registry on this machine beside aiohttp, and unpacking beside GNU tar and gzip.

Run: python bench/images.py [--quick]. Files are in $TMPDIR; with TMPDIR=/dev/shm the disk plays no part.
"""

import asyncio
import gzip
import hashlib
import io
import os
import platform
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from time import perf_counter

from trainwright.images.download import CONCURRENT_DOWNLOADS, Downloads
from trainwright.images.install import unpacker
from trainwright.images.manifests import Descriptor, sha256
from trainwright.images.reference import parse_reference
from trainwright.images.registry import RegistryClient
from trainwright.images.store import ImageStore
from trainwright.images.transport import HttpTransport

QUICK = "--quick" in sys.argv
ROUNDS, BLOB_BYTES, FILES = (2, 40 << 20, 1500) if QUICK else (5, 200 << 20, 8000)
MB = 1e6


def serve(folder: Path) -> None:
    """A registry of the files in a folder: by sendfile, so that the server uses little CPU time."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            pass

        def do_GET(self) -> None:
            with (folder / self.path.rpartition("/")[2].replace(":", "-")).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.flush()
                offset = 0
                while offset < size:
                    offset += os.sendfile(self.connection.fileno(), file.fileno(), offset, size - offset)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """The address of a registry in a process of its own."""
    command = [sys.executable, __file__, "--serve", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ourselves
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def named(folder: Path, data: bytes) -> Descriptor:
    """Store a blob under its digest."""
    digest = sha256(data)
    (folder / digest.replace(":", "-")).write_bytes(data)
    return Descriptor(digest, len(data))


def ours(address: str, folder: Path, blobs: list[Descriptor]) -> None:
    transport = HttpTransport()
    client = RegistryClient(parse_reference(f"{address}/bench/blobs:1"), transport)
    downloads = Downloads(client, folder, blobs, lambda _: None)
    for blob in blobs:
        downloads.wait(blob)
    transport.close()


def by_aiohttp(address: str, folder: Path, blobs: list[Descriptor]) -> None:
    """The same with aiohttp: three at a time, checksums, files."""
    import aiohttp  # noqa: PLC0415 - its import is not measured here

    async def one(session: aiohttp.ClientSession, limit: asyncio.Semaphore, blob: Descriptor) -> None:
        checksum = hashlib.sha256()
        url = f"http://{address}/v2/bench/blobs/blobs/{blob.digest}"
        async with limit, session.get(url) as answer:
            with (folder / blob.digest[7:]).open("wb") as file:
                async for chunk in answer.content.iter_chunked(1 << 18):
                    file.write(chunk)
                    checksum.update(chunk)
        assert f"sha256:{checksum.hexdigest()}" == blob.digest

    async def every() -> None:
        limit = asyncio.Semaphore(CONCURRENT_DOWNLOADS)
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(one(session, limit, blob) for blob in blobs))

    asyncio.run(every())


def measured(work: Callable[[Path], None], base: Path) -> tuple[float, float]:
    """The seconds, and the CPU seconds of this process and its children, of one call with an empty folder."""
    folder = Path(tempfile.mkdtemp(dir=base))
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    before, begun = sum(sum(resource.getrusage(kind)[:2]) for kind in kinds), perf_counter()
    work(folder)
    wall = perf_counter() - begun
    cpu = sum(sum(resource.getrusage(kind)[:2]) for kind in kinds) - before
    shutil.rmtree(folder)
    return wall, cpu


def report(title: str, size: int, runs: list[tuple[float, float]]) -> None:
    wall, cpu = median(run[0] for run in runs), median(run[1] for run in runs)
    print(f"  {title:34} {size / wall / MB:7.0f} MB/s   {cpu:5.2f} s CPU")


def downloads(base: Path) -> None:
    served = base / "served"
    served.mkdir()
    blobs = [named(served, os.urandom(BLOB_BYTES)) for _ in range(3)]
    size = sum(blob.size for blob in blobs)
    runs: dict[str, list[tuple[float, float]]] = {"http.client in threads (ours)": [], "aiohttp": []}
    with registry(served) as address:
        by_aiohttp(address, Path(tempfile.mkdtemp(dir=base)), blobs[:1])  # import it
        for _ in range(ROUNDS):
            for title, work in zip(runs, (ours, by_aiohttp), strict=True):
                runs[title].append(measured(lambda folder, work=work: work(address, folder, blobs), base))  # type: ignore[misc]
    print(f"download {size / MB:.0f} MB in 3 blobs, with checksums, {ROUNDS} rounds:")
    for title, found in runs.items():
        report(title, size, found)


def _peak_kib(pid: int) -> int:
    """The largest resident memory of a process so far. `ru_maxrss` would include the process that started it."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def tree() -> bytes:
    """A layer with files like those of Python packages. A quarter of their bytes cannot be compressed."""
    out = io.BytesIO()
    text = b"".join(f"value_{number} = call({number * 7919 % 1000})\n".encode() for number in range(300_000))
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(FILES):
            entry = tarfile.TarInfo(f"lib/package{number % 97}/module{number}.py")
            start, length = number * 4099 % (len(text) - 2_000_000), 1_000_000 if number % 100 == 0 else 30_000
            content = text[start : start + length * 3 // 4] + os.urandom(length // 4)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def unpacking(base: Path) -> None:
    plain = tree()
    file = base / "layer.tar.gz"
    file.write_bytes(gzip.compress(plain, 6))
    blob = {"path": str(file), "offset": 0, "size": file.stat().st_size, "diffId": sha256(plain)}
    memory: list[int] = []

    def ours(folder: Path) -> None:
        store = ImageStore(folder)
        store.prepare()
        with unpacker(store) as process:
            process.unpack(sha256(plain), (), [blob], lambda _: None)
            memory.append(_peak_kib(process.pid))

    def by_tar(folder: Path) -> None:
        subprocess.run(["tar", "-xzf", str(file), "-C", str(folder)], check=True)  # noqa: S603, S607

    runs = [(measured(ours, base), measured(by_tar, base)) for _ in range(ROUNDS)]
    print(f"unpack {len(plain) / MB:.0f} MB, {FILES} files, {blob['size'] / MB:.0f} MB gzip, {ROUNDS} rounds:")  # type: ignore[operator]
    report("ours, with start and checksum", len(plain), [run[0] for run in runs])
    report("tar -xzf, without a checksum", len(plain), [run[1] for run in runs])
    print(f"  memory of our process: {max(memory) / 1024:.0f} MiB RSS")


def main() -> None:
    base = Path(tempfile.mkdtemp(prefix="trainwright-bench-"))
    try:
        downloads(base)
        unpacking(base)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(Path(sys.argv[-1]))
    else:
        print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        main()
