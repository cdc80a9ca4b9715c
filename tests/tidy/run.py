#!/usr/bin/env python3
"""Runs one check, or all: run.py ROOT [CHECK]. Exits 1 with the findings, one a line."""

import sys

from checks import CHECKS, Tree


def main(arguments):
    if not arguments or len(arguments) > 2 or len(arguments) == 2 and arguments[1] not in CHECKS:
        print(f"usage: run.py ROOT [{'|'.join(CHECKS)}]", file=sys.stderr)
        return 2
    tree = Tree.of_checkout(arguments[0])
    if not tree.files:
        print(f"{arguments[0]}: no files", file=sys.stderr)
        return 2
    findings = 0
    for name in arguments[1:] or CHECKS:
        for finding in CHECKS[name](tree):
            print(f"{name}: {finding}")
            findings += 1
    print(f"{findings} findings in {len(tree.files)} files")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
