"""Runs the commands of deploy/docs/sizing.md, and compares the figures that the page shows with those that are printed: the
same words, and numbers within a tenth.

Usage: sizing_test.py SOURCE CLI
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from pages import blocks

SOURCE, CLI = sys.argv[1:3]
PAGE = f"{SOURCE}/deploy/docs/sizing.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?")
TOLERANCE = 0.1
SMALL_MS = re.compile(r"stall [0-9.]+ \w+")  # a remainder, which may change by more


def words_of(line):
    line = SMALL_MS.sub("stall", line)
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip(), [float(one) for one in NUMBER.findall(line)]


def alike(shown, printed):
    (words, numbers), (others, found) = words_of(shown), words_of(printed)
    return words == others and all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) for a, b in zip(numbers, found))


def main():
    with tempfile.TemporaryDirectory(prefix="ho-sizing-") as top:
        pathlib.Path(top, "hyperoffload").symlink_to(CLI)
        done = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", "".join(blocks(PAGE))], cwd=top, text=True, timeout=280,
                              env={**os.environ, "PATH": f"{top}:{os.environ['PATH']}"}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout
    lines = "".join(blocks(PAGE, "text")).splitlines()
    assert len(lines) == 8, lines
    for line in lines:
        assert any(alike(line, printed) for printed in done.stdout.splitlines()), (line, done.stdout)
    print(f"{len(lines)} lines of the page are right")


main()
