"""The check of paths: files and folders that Markdown names exist."""

import re
from fnmatch import fnmatch
from os.path import normpath
from pathlib import PurePosixPath

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([\w.*/-]+)`")
FENCED = re.compile(r"(?<![\w./@:~-])[\w.-]+/[\w.*/-]+")
SUFFIXES = (".cpp", ".hpp", ".h", ".c", ".py", ".proto", ".md")


def spellings(name):
    """`x.hpp/.cpp` stands for both files."""
    match = re.fullmatch(r"(.*?)((?:\.\w+)(?:/\.\w+)+)", name)
    return [match[1] + suffix for suffix in match[2].split("/")] if match else [name]


def named_paths(text):
    """(line number, path, whether a link names it)."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced:
            yield from ((number, name.rstrip("."), False) for name in FENCED.findall(line))
        else:
            yield from ((number, name, True) for name in LINK.findall(line) if "://" not in name)
            for code in CODE.findall(line):
                yield from ((number, name, False) for name in spellings(code))


def check_paths(tree):
    """Names without a folder may be files of any folder; `a/b` may stand for a/b.hpp, and * for anything. A word
    with a slash is a path if its first part is a folder at the top or beside the page."""
    folders = {str(parent) for path in tree.files for parent in PurePosixPath(path).parents}
    names = {PurePosixPath(path).name for path in tree.files}

    def exists(path):
        path = normpath(path)
        return path in tree.files or path in folders or any(fnmatch(one, path) or fnmatch(one, path + ".*") for one in tree.files)

    for page, text in sorted(tree.files.items()):
        if not page.endswith(".md") or page == "CHANGELOG.md":
            continue
        beside = str(PurePosixPath(page).parent)
        for number, name, is_link in named_paths(text):
            first, slash, _ = name.partition("/")
            if is_link:
                found = exists(f"{beside}/{name}")
            elif slash and first.strip(".") and {first, normpath(f"{beside}/{first}")} & folders:
                found = exists(name) or exists(f"{beside}/{name}")
            else:
                found = slash or name[0] in ".*" or not name.endswith(SUFFIXES) or name in names
            if not found:
                yield f"{page}:{number}: {name} does not exist"
