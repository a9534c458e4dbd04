# SPDX-License-Identifier: Apache-2.0
"""Runs all calls of the Python clients on the server of $KUBECONFIG, and writes what they returned to a file.

    python python_main.py NAMESPACE FILE [CALLS …]

`test_cluster_api_python` starts this with the interpreter of the environment that `make test-clients` makes.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import python_core
import python_jobs
from kubernetes import config

CALLS = {
    one.__name__: one
    for one in (
        python_core.pods,
        python_core.commands,
        python_core.config_maps,
        python_core.watches,
        python_core.others,
        python_jobs.custom_objects,
        python_jobs.dynamic_client,
        python_jobs.server_side_apply,
        python_jobs.training,
    )
}


def main(namespace: str, file: str, *names: str) -> None:
    """Run the calls with these names."""
    config.load_kube_config()
    found: dict[str, Any] = {}
    for name in names:
        try:
            found[name] = CALLS[name](namespace)
        except Exception:  # the test shows it
            found[name] = {"error": traceback.format_exc()}
    Path(file).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
