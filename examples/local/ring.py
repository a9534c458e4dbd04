"""All-reduce over a ring of connections, as gloo and NCCL do it, using only Python's standard library:

    trainwright run --replicas 4 -- python3 examples/local/ring.py

Rank 0 listens at MASTER_ADDR and MASTER_PORT. Every other rank connects and sends the address at which it listens.
Then each rank sends numbers to its neighbour until all ranks have the sum.
"""

import json
import os
import socket
import sys
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connected(address: tuple[str, int]) -> socket.socket:
    """Connect, and retry until a process listens at the address."""
    while True:
        try:
            return socket.create_connection(address, timeout=30)
        except OSError:
            time.sleep(0.05)


def met(own: socket.socket) -> list[tuple[str, int]]:
    """Return the address of every rank, in the order of ranks."""
    port = own.getsockname()[1]
    if rank:
        line = connected(master)
        with line.makefile("rw") as file:
            print(json.dumps([rank, line.getsockname()[0], port]), file=file, flush=True)
            return [(host, at) for host, at in json.loads(file.readline())]
    with socket.create_server(("", master[1]), backlog=size) as server:
        files = [server.accept()[0].makefile("rw") for _ in range(size - 1)]
        found = sorted([[0, master[0], port], *(json.loads(file.readline()) for file in files)])
        places = [(host, at) for _, host, at in found]
        for file in files:
            print(json.dumps(places), file=file, flush=True)
        return places


own = socket.create_server(("", 0))
places = met(own)
onward = connected(places[(rank + 1) % size]).makefile("w")
back = own.accept()[0].makefile("r")
total = value = (rank + 1) ** 2
for _ in range(size - 1):
    print(value, file=onward, flush=True)
    value = int(back.readline())
    total += value
sys.stdout.write(f"rank {rank} of {size}: all-reduce {total}\n")
