"""Runs a script on several ranks of this machine, as torchrun, which does not run in Debian 12.

Usage: ranks.py RANKS SCRIPT [arguments of the script]
"""

import os
import socket
import subprocess
import sys
import time


def main():
    ranks = int(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    group.setdefault("GLOO_SOCKET_IFNAME", "lo")
    group.setdefault("OMP_NUM_THREADS", "1")
    group.setdefault("USE_LIBUV", "0")  # Debian's PyTorch 2 is built without it
    started = [subprocess.Popen([sys.executable, *sys.argv[2:]], env={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)})
               for rank in range(ranks)]
    try:
        while None in (codes := [each.poll() for each in started]) and not any(codes):
            time.sleep(0.05)
        sys.exit(next((abs(code) for code in codes if code), 0))
    finally:  # where a rank has failed the others would wait for it
        for each in started:
            each.terminate()
            each.wait()


if __name__ == "__main__":
    main()
