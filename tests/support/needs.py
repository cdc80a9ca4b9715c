"""How a test says that this machine lacks what it needs. CTest shows it as skipped, with the reason
(script_test.cmake); `tools/test --all` fails where the reason is not in tests/expected_skips.txt."""
import pathlib
import re
import shutil
import sys
import unittest

PACKAGES = pathlib.Path(__file__).resolve().parents[2] / "tools/packages.txt"
# The groups of packages.txt that tools/test installs whatever its arguments.
ALWAYS_INSTALLED = ("build", "example", "package", "test")


def skip(reason):
    """Ends the program, before or outside unittest."""
    print("SKIPPED:", reason, flush=True)
    sys.exit(77)


def skip_case(reason):
    """Ends a case of unittest; the program's other cases run."""
    print("SKIPPED:", reason, flush=True)
    raise unittest.SkipTest(reason)


def program(name, package, otherwise=skip):
    """Needs a program of a Debian package that packages.txt lists. Where tools/test always installs it,
    a machine without it fails the test."""
    if shutil.which(name) is None:
        missing(name, package, otherwise)


def missing(what, package, otherwise=skip):
    groups = re.split(r"^\[(\w+)\]$", PACKAGES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    having = [group for group, lines in zip(groups[::2], groups[1::2])
              if re.search(rf"^{re.escape(package)}\b(?![-+.])", lines, re.MULTILINE)]
    assert having, f"tools/packages.txt does not list {package}"
    if set(having) & set(ALWAYS_INSTALLED):
        sys.exit(f"{what} is missing: install the package {package}")
    otherwise(f"{what} is missing: the package {package} is not installed")
