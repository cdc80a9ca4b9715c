"""The check of the blocks: every fenced block of a Markdown page that a reader may copy is run or checked by a test, or
tests/integration/docs/blocks.txt says why not."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

TABLE = "tests/integration/docs/blocks.txt"
TESTS = "tests/integration/"
FENCE = re.compile(r"(\s*)(`{3,}|~{3,})(.*)")
PICTURES = ("text", "mermaid")
NOT_RUN = "not run"
# A picture or output has no such line: commands of a shell, messages of the configuration.
TO_COPY = re.compile(
    r"(?:\$ |(?:[A-Z_]+=\S+ )?(?:hyperoffload[\w-]* (?!\()|(?:sudo|apt|apt-get|systemctl|journalctl|etcdctl|promtool|cmake|ninja|ctest|python3"
    r"|pip|export|git|docker|tools/[\w/]+|build/[\w/]+) (?!-+>|──))|\w+ ?\{.*\}|\w+: \"[^\"]*\"$)")


@dataclass
class Row:
    """A line of the table: the tests, relative to tests/integration, or why there are none."""
    number: int
    tests: tuple
    why: str


def read_rows(text):
    """(page, language): its row."""
    rows = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if line:
            key, _, value = line.partition(": ")
            page, _, language = key.partition(" ")
            value = value.strip()
            named, _, why = value.partition(": ")
            tests = () if named == NOT_RUN else tuple(value.split())
            rows[page, language.strip()] = Row(number, tests, "" if tests else why.strip())
    return rows


def fenced_blocks(text):
    """(line number, indentation, language, lines) of each."""
    opened = None
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.fullmatch(line)
        if opened is None and match:
            opened = (number, match[1], match[3].strip(), match[2], [])
        elif opened and match and match[2].startswith(opened[3]) and not match[3].strip():
            yield opened[0], opened[1], opened[2], opened[4]
            opened = None
        elif opened:
            opened[4].append(line)
    if opened:
        yield opened[0], opened[1], "", opened[4]


def is_run(test, tree):
    """A script that CTest or tools/lab/suite starts. CMakeLists.txt may name it without _test, in a loop."""
    path = PurePosixPath(TESTS + test)
    name = re.compile(rf"(?<!\w){re.escape(path.stem)}(?!\w)|(?<!\w){re.escape(path.stem.removesuffix('_test'))}(?!\w)")
    starters = (f"{path.parent}/CMakeLists.txt", "tools/lab/suite")
    return str(path) in tree.files and any(name.search(tree.files.get(one, "")) for one in starters)


def takes(test, page, tree):
    """Its code names the page, or takes all pages that the table gives it."""
    code = tree.files[TESTS + test]
    path = PurePosixPath(page)
    name = "/".join(path.parts[-2:]) if path.name == "README.md" else path.name
    return name in code or "pages_of(" in code


def check_blocks(tree):
    rows = read_rows(tree.files.get(TABLE, ""))
    seen = set()
    for page, text in sorted(tree.files.items()):
        if not page.endswith(".md"):
            continue
        for number, indentation, language, lines in fenced_blocks(text):
            if indentation or not re.fullmatch(r"\w+", language):
                yield f"{page}:{number}: a block starts at the first column, names its language and has an end"
            elif language not in PICTURES or any(TO_COPY.match(line) for line in lines) or (page, language) in rows:
                seen.add((page, language))
                if (page, language) not in rows:
                    yield f'{page}:{number}: no test runs this block: "{page} {language}" is not in {TABLE}'
    for (page, language), row in rows.items():
        place = f"{TABLE}:{row.number}: {page} {language}"
        if (page, language) not in seen:
            yield f"{place}: no such block"
        if not row.tests and not row.why:
            yield f'{place}: no test, and no reason after "{NOT_RUN}: "'
        for test in row.tests:
            if not is_run(test, tree):
                yield f"{place}: {TESTS}{test} does not exist, or nothing starts it"
            elif not takes(test, page, tree):
                yield f"{place}: {TESTS}{test} does not name the page"
