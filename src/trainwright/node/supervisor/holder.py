# SPDX-License-Identifier: Apache-2.0
"""A process that keeps the network of several supervisors on one machine: `python -m … holder SUBNET`, by the engine.

It prints one line of JSON, the paths of its network namespace and of its user namespace (null as root), and ends when
its stdin does. The supervisors open both and pass them on as their `holder`.
"""

import json
import os
import sys

from trainwright.node.supervisor import kernel
from trainwright.node.supervisor.network import Network
from trainwright.node.supervisor.outside import OutsideConnection


def main() -> None:
    """Hold it until stdin ends. Exits with 3, saying why, where there is none to be had."""
    root = kernel.is_privileged()
    outside = OutsideConnection(root=root, wanted=True)
    try:
        if not root:
            kernel.enter_user_namespace(None)
        network = Network(sys.argv[1])
    except OSError as error:
        sys.exit(_failed(error))
    outside.connect(network)
    own = f"/proc/{os.getpid()}"
    print(json.dumps({"net": f"{own}/fd/{network.net}", "user": None if root else f"{own}/ns/user"}), flush=True)
    sys.stdin.buffer.read()
    outside.close()


def _failed(error: OSError) -> int:
    print(f"the network of the nodes cannot be made: {error}", file=sys.stderr)
    return 3


if __name__ == "__main__":
    main()
