# SPDX-License-Identifier: Apache-2.0
"""Measures the operator on a real API server against one that makes the same writes and decides nothing.

The control plane and the fake kubelet are those of the tests. The folder is a program, not a module, because a module
of this name would hide Python's own `operator`.

Run: python bench/operator [--kind=tfjob] [--quick] [--runs=N] [--sizes=100x4,1x200] [sizes] [present]
With TRAINING_OPERATOR_BIN (`go install github.com/kubeflow/training-operator/cmd/training-operator.v1@v1.9.4`) the Go
original also runs TFJobs, in turn with the other two.
"""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / name) for name in ("tests/cluster", "tests")]

from compare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
