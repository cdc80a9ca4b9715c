"""The check of purity: what the READMEs call pure includes nothing that could read, write, wait or start a thread."""

import re
from pathlib import Path

# <cstdio> is not here: it has snprintf. <atomic> and <chrono> are values alone.
IMPURE = re.compile(
    r"(?:thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|stop_token|pthread\.h"
    r"|fstream|filesystem|iostream|unistd\.h|fcntl\.h|dirent\.h|poll\.h|dlfcn\.h|csignal|signal\.h|netdb\.h|ifaddrs\.h"
    r"|liburing\.h|asio\.hpp|(?:sys|net|netinet|arpa|linux|asio|curl|ucp|uct|rdma|infiniband)/.*)$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")', re.M)
HEADER_SAYS = re.compile(r"//.*?(?:\bPure(?:[.:;,]| and| for)|\b[Nn]o I/O\b)")
README_SAYS = re.compile(r"\b[Nn]o I/O\b|\b[Nn]o files, no threads\b")


def read_parts(text):
    """Part: our headers that it may include all the same."""
    lines = (line.split("#")[0].partition(":") for line in text.splitlines())
    return {part.strip(): set(headers.split()) for part, _, headers in lines if part.strip()}


def is_in(path, part):
    return path.startswith(part + "/") or path.rsplit(".", 1)[0] == part


def claims(tree):
    """(place, folder or path without its suffix) of what a README, a row of its table or a header calls pure."""
    for path, text in sorted(tree.files.items()):
        if path.startswith("tests/"):
            continue
        folder = Path(path).parent
        if path.endswith("/README.md"):
            if README_SAYS.search(re.sub(r"\s+", " ", text)):
                yield path, str(folder)
            for number, line in enumerate(text.splitlines(), 1):
                cells = line.split("|")
                if len(cells) == 4 and re.search(r"\b[Pp]ure\b", cells[2]):
                    for name in re.findall(r"`(\w+)[^`]*`", cells[1]):  # a class or a file
                        yield f"{path}:{number}", str(folder / re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
        elif path.endswith(".hpp") and HEADER_SAYS.search(text):
            yield path, path.removesuffix(".hpp")


def reached(path, tree, stop=frozenset()):
    """The file and our headers that it includes, itself or by others, except `stop`."""
    found = [path]
    for one in found:  # grows meanwhile
        for _, ours in INCLUDE.findall(tree.files[one]):
            target = ours if ours in tree.files else str(Path(one).parent / ours)
            if ours and target in tree.files and target not in stop and target not in found:
                found.append(target)
    return found


def check_pure(tree):
    parts = read_parts(tree.files.get("tests/tidy/pure.txt", ""))
    sources = [path for path, _ in tree.sources() if not path.startswith("tests/")]
    for place, claimed in claims(tree):
        if not any(claimed == part or is_in(claimed + ".hpp", part) for part in parts):
            yield f"{place}: says that {claimed} is pure, but tests/tidy/pure.txt has no line for it"
    for part, allowed in parts.items():
        files = [path for path in sources if is_in(path, part)]
        if not files:
            yield f"tests/tidy/pure.txt: {part}: no such file or folder"
        for header in sorted(allowed - {one for path in files for one in reached(path, tree)}):
            yield f"tests/tidy/pure.txt: {part} does not include {header}"
        for path in files:
            for one in reached(path, tree, allowed):
                for header, _ in INCLUDE.findall(tree.files[one]):
                    if IMPURE.match(header):
                        yield f"{path}: is pure, but includes <{header}>" + (f" by {one}" if one != path else "")
