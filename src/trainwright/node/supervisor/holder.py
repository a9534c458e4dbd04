# SPDX-License-Identifier: Apache-2.0
"""A process that holds the network that several supervisors of one engine share: `python -m … holder SUBNET`.

It prints one line of JSON, the paths of its network namespace and of its user namespace (null for root), and ends when
its stdin ends. The engine opens both and passes the descriptors to the supervisors as `holder`.
"""

import json
import os
import sys

from trainwright.node.supervisor.outside import make_shared_network


def main() -> None:
    """Hold the network until stdin ends. Exit with 3 and print the reason if the network cannot be made."""
    try:
        network, outside = make_shared_network(sys.argv[1])
    except OSError as error:
        print(f"the network of the nodes cannot be made: {error}", file=sys.stderr)
        sys.exit(3)
    own = f"/proc/{os.getpid()}"
    user = None if outside.root else f"{own}/ns/user"
    print(json.dumps({"net": f"{own}/fd/{network.net}", "user": user}), flush=True)
    sys.stdin.buffer.read()
    outside.close()


if __name__ == "__main__":
    main()
