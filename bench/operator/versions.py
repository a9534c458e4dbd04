# SPDX-License-Identifier: Apache-2.0
"""The header of a results file: versions of everything that is measured, and the machine."""

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec
import peer
from cluster_binaries import version as kubernetes
from results import Header

import trainwright

_ROOT = Path(__file__).resolve().parents[2]
#: These modules of the benchmark only show results.
_SHOWS = frozenset({"render.py", "report.py", "plots.py", "options.py", "one_plane.py", "__main__.py"})


def header(*, quick: bool) -> Header:
    """Return the header for a measurement now and here."""
    return Header(
        date=now(),
        commit=_commit(),
        source=_source(),
        trainwright=trainwright.__version__,
        peer=peer.version(),
        kubernetes=kubernetes(),
        python=platform.python_version(),
        aiohttp=aiohttp.__version__,
        msgspec=msgspec.__version__,
        kernel=platform.release(),
        processor=_processor(),
        processors=os.cpu_count() or 0,
        quick=quick,
    )


def now() -> str:
    """Return the date and time of a measurement."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"  # noqa: TID251 - a benchmark's own date


def _commit() -> str:
    words = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - only reads
    except OSError:
        return ""
    return done.stdout.strip()


def _source() -> str:
    """Return a hash of our operator, the fake kubelet and the parts of the benchmark that measure."""
    files = [*Path(trainwright.__file__).parent.rglob("*.py"), *_ROOT.glob("tests/cluster/cluster_*.py")]
    files += [file for file in _ROOT.glob("bench/operator/*.py") if file.name not in _SHOWS]
    both = hashlib.sha256()
    for file in sorted(files):
        both.update(f"{file.name}\0".encode() + file.read_bytes())
    return both.hexdigest()[:12]


def _processor() -> str:
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return found[0].partition(":")[2].strip() if found else platform.machine()
