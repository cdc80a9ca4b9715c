"""Runs a script on several ranks of this machine, as torchrun, which does not run in Debian 12.

Usage: ranks.py RANKS SCRIPT [arguments of the script]
"""

import os
import socket
import subprocess
import sys


def main():
    ranks = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    group.setdefault("GLOO_SOCKET_IFNAME", "lo")
    group.setdefault("OMP_NUM_THREADS", "1")
    started = [subprocess.Popen([sys.executable, *sys.argv[2:]], env={**group, "RANK": str(rank)})
               for rank in range(ranks)]
    sys.exit(max(abs(each.wait()) for each in started))


if __name__ == "__main__":
    main()
