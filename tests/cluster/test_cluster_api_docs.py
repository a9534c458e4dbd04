# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/api.md run as they are written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cluster_binaries import find

from patience import PATIENCE

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh api\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_about_the_api(tmp_path: Path) -> None:
    (block,) = BLOCK.findall((ROOT / "docs" / "api.md").read_text(encoding="utf-8"))
    shutil.copy(ROOT / "examples" / "quickstart.yaml", tmp_path)
    programs = [Path(find("kubectl")["kubectl"]).parent, Path(sys.executable).parent, Path(sys.base_prefix) / "bin"]
    env = {
        **os.environ,
        "PATH": os.pathsep.join([*map(str, programs), os.environ.get("PATH", os.defpath)]),
        "HOME": str(tmp_path),
        "TRAINWRIGHT_STATE": str(tmp_path / "state"),
    }
    try:
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "genericjob.batch.tensorstack.dev/quickstart condition met" in done.stdout
    finally:
        subprocess.run(
            [sys.executable, "-m", "trainwright", "down", "--end"], env=env, capture_output=True, check=False
        )
