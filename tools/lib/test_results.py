#!/usr/bin/env python3
"""test_results.py [--strict] EXPECTED RESULTS...: sums up CTest's JUnit files for a person: how many tests passed, failed
and were skipped, and why these were. EXPECTED has a regular expression a line, each for the reasons of skips that an
ordinary machine has. With --strict exits 1 where a reason matches none of them."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def reason_of(case):
    """What a skipped test says: "SKIPPED: why", which may follow unittest's dots, or unittest's and a script's "skipped: why"."""
    text = "\n".join(case.itertext())
    found = re.search(r"SKIPPED: (.*)", text) or re.search(r"\bskipped:? '?(.*?)'?$", text, re.MULTILINE)
    return found.group(1).strip() if found else "(no reason)"


def main(arguments):
    strict = "--strict" in arguments
    expected_file, *results = [word for word in arguments if word != "--strict"]
    lines = [line.split("#")[0].strip() for line in Path(expected_file).read_text(encoding="utf-8").splitlines()]
    expected = [re.compile(line) for line in lines if line]
    passed = failed = 0
    skips = {}  # reason: names
    for result in results:
        for case in ElementTree.parse(result).getroot().iter("testcase"):
            status = case.get("status")
            if status == "run":
                passed += 1
            elif status == "fail":
                failed += 1
            else:
                skips.setdefault(reason_of(case), []).append(case.get("name"))
    print(f"{passed} passed, {failed} failed, {sum(map(len, skips.values()))} skipped")
    unexpected = 0
    for reason, names in sorted(skips.items()):
        known = any(pattern.search(reason) for pattern in expected)
        unexpected += 0 if known else 1
        note = "" if known else "  (unexpected: not in tests/expected_skips.txt)"
        print(f"  {len(names)} skipped: {reason}{note}")
        if not known:
            print("".join(f"    {name}\n" for name in names), end="")
    return 1 if strict and unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
