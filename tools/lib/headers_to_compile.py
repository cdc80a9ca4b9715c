"""Prints the headers that a change can stop from compiling alone: those that changed, and all that include one of them,
directly or not. A header that is not printed still compiles alone if it did before the change.

Usage: headers_to_compile.py < NAMES: the changed files, one a line. Run it in the root of the repository."""
import collections
import pathlib
import re
import subprocess
import sys

INCLUDE = re.compile(r'^(?:#include|import) (?:"([^"]+)"|<([^>]+)\.pb\.h>|<(hyperoffload/[^>]+)>)', re.MULTILINE)


def included(text):
    """The files of the repository that a header or .proto names."""
    for named, generated, public in INCLUDE.findall(text):
        if named.endswith(".proto"):
            yield f"proto/{named}"
        else:
            yield named or (f"client/include/{public}" if public else f"proto/{generated}.proto")


def main():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.hpp", "*.h", "*.proto"],
                            capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split() if pathlib.Path(name).exists()]  # some are removed and still listed
    users = collections.defaultdict(list)
    for user in files:
        with open(user, encoding="utf-8") as file:
            for name in included(file.read()):
                users[name].append(user)
    changed = sys.stdin.read().split()
    for lists in (name for name in changed if name.endswith("CMakeLists.txt")):  # how those beside it are compiled
        changed += [name for name in files if name.startswith(lists.removesuffix("CMakeLists.txt"))]
    found, ahead = set(), changed
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += users[name]
    print("\n".join(name for name in files if name in found and not name.endswith(".proto")))


main()
