# SPDX-License-Identifier: Apache-2.0
"""The program of an example as one process without any engine: the measure for the same program in a job.

For `tests/e2e` and `tests/cluster`.
"""

import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Some programs import their framework for ten seconds where others are at work too.
PATIENCE = 180.0
Body = dict[str, Any]


def single_process(example: str, replica: str, python: Path, **env: str) -> str:
    """What the program of these replicas prints with these variables, alone; `{port}` becomes a free port."""
    *_, job = yaml.safe_load_all((EXAMPLES / example).read_text(encoding="utf-8"))
    (main,) = _replica_types(job)[replica]["template"]["spec"]["containers"]
    given = {one["name"]: one["value"] for one in main.get("env", ())} | env
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    variables = {name: value.format(port=port) for name, value in given.items()} | {"PATH": os.environ["PATH"]}
    assert main["command"][-3:-1] == ["python3", "-uc"]
    words = [str(python), "-uc", main["command"][-1]]
    done = subprocess.run(words, env=variables, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _replica_types(job: Body) -> Body:
    (found,) = (value for key, value in job["spec"].items() if key.endswith("ReplicaSpecs"))
    return dict(found)


def losses(said: str) -> list[float]:
    """The loss of every step or round, in the order in which they were printed."""
    return [float(loss) for loss in re.findall(r"\bloss +([\d.]+)", said)]


def accuracy(said: str) -> float:
    """The last one."""
    return float(re.findall(r"\baccuracy +([\d.]+)", said)[-1])


def figure(what: str, said: str) -> str:
    """Losses and accuracy in one line, for the end of the log."""
    found = losses(said)
    return f"{what}: {len(found)} losses {found[0]:.6f} → {found[-1]:.6f}, accuracy {accuracy(said):.4f}"
