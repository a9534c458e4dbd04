# SPDX-License-Identifier: Apache-2.0
"""Measures the operator on a real API server, alone or in rounds against other operators; see `--help`.

The control plane and the fake kubelet are those of the tests. The folder is a program, not a module, because a module
of this name would hide Python's own `operator`.
"""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / name) for name in ("tests/cluster", "tests")]

import one_plane
import options
import rounds

if __name__ == "__main__":
    asked = options.parse(sys.argv[1:])
    sys.exit(rounds.main(asked) if asked.compare else one_plane.main(asked))
