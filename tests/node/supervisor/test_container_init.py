# SPDX-License-Identifier: Apache-2.0
"""PID 1 of containers: the machine code for each processor, and the Python program for others."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from sandboxed import unavailable

from patience import PATIENCE
from trainwright.node.supervisor import init

_NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--map-root-user"]


def command(machine: str, tmp_path: Path) -> list[str]:
    """The command that runs the program for this processor here."""
    if machine == "other":
        return [sys.executable, *init.init_command("other")[1:]]
    path = tmp_path / "init"
    path.write_bytes(init.init_image(machine))
    path.chmod(0o755)
    if machine == os.uname().machine:
        return [str(path)]
    emulator = shutil.which(f"qemu-{machine}") or pytest.skip(
        f"needs a machine of the kind {machine}, or qemu-{machine}"
    )
    return [emulator, str(path)]


@pytest.mark.skipif(bool(unavailable("user")), reason="needs namespaces")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "other"])
def test_it_mounts_proc_tells_so_and_ends_with_its_stdin(machine: str, tmp_path: Path) -> None:
    argv = [*_NAMESPACES, *command(machine, tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(2,)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert struct.unpack("=q", process.stdout.read(8)) == (0,)
        (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert "nosuid,nodev,noexec" in Path(f"/proc/{pid}/mounts").read_text().splitlines()[-1]
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
        assert ignored >> 16 & 1  # SIGCHLD
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@pytest.mark.skipif(bool(unavailable("user")), reason="needs namespaces")
def test_it_tells_why_proc_cannot_be_mounted(tmp_path: Path) -> None:
    machine = os.uname().machine if os.uname().machine in ("x86_64", "aarch64") else "other"
    refused = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *command(machine, tmp_path)]
    done = subprocess.run([*_NAMESPACES, *refused], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert struct.unpack("=q", done.stdout) == (-1,)  # EPERM
