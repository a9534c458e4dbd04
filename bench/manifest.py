# SPDX-License-Identifier: Apache-2.0
"""Measures reading manifests against PyYAML's own C loader on the same text. See README.md.

Run: python bench/manifest.py
"""

import platform
from collections.abc import Callable
from pathlib import Path
from time import process_time

import yaml

from trainwright import manifest

EXAMPLES = Path(__file__).parent.parent / "examples" / "genericjob"


def cpu(work: Callable[[], object], times: int = 20, runs: int = 7) -> float:
    """Return the CPU seconds of one call, the smallest of several runs."""
    best = float("inf")
    for _ in range(runs):
        began = process_time()
        for _ in range(times):
            work()
        best = min(best, (process_time() - began) / times)
    return best


if __name__ == "__main__":
    texts = [path.read_bytes() for path in sorted(EXAMPLES.glob("*.yaml"))]
    size = sum(map(len, texts)) / 1024
    ours = cpu(lambda: [manifest.read("bench", text) for text in texts])
    peer = cpu(lambda: [list(yaml.load_all(text, Loader=yaml.CSafeLoader)) for text in texts])
    print(f"PyYAML {yaml.__version__}, Python {platform.python_version()}; {len(texts)} examples, {size:.0f} KiB")
    print(f"PyYAML CSafeLoader (peer)  {peer * 1e3:7.2f} ms")
    print(f"trainwright.manifest.read  {ours * 1e3:7.2f} ms  {ours / peer:5.2f} x peer")
