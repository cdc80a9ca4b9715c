"""The library's log lines as those of the logger "hyperoffload", until the interpreter ends.

Usage: logging_test.py CLI DAEMON LIBRARY PACKAGE [ADDRESS]
"""
import logging
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
sys.path.insert(0, sys.argv[4])
os.environ["HYPEROFFLOAD_LIBRARY"] = sys.argv[3]
import hyperoffload  # noqa: E402
from hyperoffload._pool.library import Pool  # noqa: E402
from one_node import Node  # noqa: E402

LINE = "left a node of the pool out node=gone "


def job(address):
    logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s", level=logging.INFO)
    hyperoffload.use_logging()
    Pool(address, "one").close()
    logging.getLogger("hyperoffload").setLevel(logging.ERROR)
    Pool(address, "two").close()
    left_open = Pool(address, "three")  # its threads outlive the interpreter
    assert left_open.handle


if len(sys.argv) > 5:
    job(sys.argv[5])
    sys.exit(0)
with Node(sys.argv[1], sys.argv[2], "node_id: 9") as gone, \
        Node(sys.argv[1], sys.argv[2],
             f'node_id: 1 nodes {{ node_id: 9 name: "gone" control_addresses: "{gone.pool}" }}') as node:
    gone.process.kill()
    gone.process.wait()
    done = subprocess.run([sys.executable, *sys.argv[:5], node.pool], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == "", done
    lines = done.stdout.splitlines()
    assert len(lines) == 1 and lines[0].startswith("hyperoffload WARNING " + LINE), done
    plain = subprocess.run([sys.executable, "-c", "import sys\nfrom hyperoffload._pool.library import Pool\nPool(sys.argv[1], 'p')",
                            node.pool], env={**os.environ, "PYTHONPATH": sys.argv[4]}, capture_output=True, text=True,
                           timeout=60, check=False)
    assert plain.returncode == 0 and " warning " + LINE in plain.stderr and plain.stdout == "", plain
