"""The checks of the project's conventions. Each is a function from a Tree to findings. run.py runs them;
self_test.py shows that each of them can fail."""

import re
import subprocess
from pathlib import Path

from blocks import check_blocks
from paths import check_paths
from prose import check_prose
from pure import check_pure

SOURCE_SUFFIXES = (".cpp", ".hpp", ".h", ".c")
HEADER_SUFFIXES = (".hpp", ".h")
TEXT_SUFFIXES = SOURCE_SUFFIXES + (
    ".proto", ".txt", ".md", ".py", ".sh", ".cmake", ".in", ".textproto", ".service", ".json", ".yml", "")
TOP_LEVEL = {
    "CMakeLists.txt", "CMakePresets.json", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".clang-format",
    ".clang-tidy",
    ".dockerignore", ".editorconfig", ".gitignore", ".gitattributes", ".ci", "common", "proto", "daemon", "client", "tools",
    "deploy", "tests"}
LABELS = {"unit", "conformance", "sim", "tidy", "integration", "fuzz", "soak", "time", "perf"}
README_LINES_MAX = 60
TOP_README_LINES_MAX = 75  # it has the map of folders, too
FILE_LINES_MAX = 500
FILE_LINES_MAX_WITH_REASON = 800
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
SUBJECT_COLUMNS_MAX = 71


class Tree:
    """Files by path (tracked, or not ignored), and the subjects of the commits. A value that self_test.py can make."""

    def __init__(self, files, subjects=()):
        self.files = dict(files)
        self.subjects = list(subjects)

    @staticmethod
    def of_checkout(root):
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"], capture_output=True, check=False)
        if listed.returncode == 0:
            names = [name for name in listed.stdout.decode().split("\0") if name]
        else:  # an unpacked archive
            names = [str(path.relative_to(root)) for path in Path(root).rglob("*")
                     if path.is_file() and "build" not in path.relative_to(root).parts]
        files = {}
        for name in names:
            path = Path(root, name)
            if path.is_file():  # false for a removed file until the removal is committed
                files[name] = path.read_bytes().decode("utf-8", "replace")
        # Published commits cannot change, so only later ones count, or the last one.
        log = subprocess.run(["git", "-C", root, "log", "--no-merges", "--format=%s", "origin/main..HEAD"],
                             capture_output=True, text=True, check=False)
        if log.returncode != 0:
            log = subprocess.run(["git", "-C", root, "log", "--no-merges", "--format=%s", "-n", "1"],
                                 capture_output=True, text=True, check=False)
        return Tree(files, log.stdout.splitlines() if log.returncode == 0 else ())

    def sources(self, suffixes=SOURCE_SUFFIXES):
        return [(path, text) for path, text in sorted(self.files.items()) if path.endswith(suffixes)]

    def includes(self):
        """(path, line number, included path) of each include in quotes."""
        for path, text in self.sources():
            for number, line in enumerate(text.splitlines(), 1):
                match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
                if match:
                    yield path, number, match.group(1)

    def imports(self):
        """The same of what the Python package imports when it is loaded: not in functions, and not for types alone."""
        for path, text in self.sources((".py",)):
            for number, line in enumerate(text.splitlines(), 1):
                match = path.startswith("client/python/") and re.match(r"from (\.+)([\w.]*) import", line)
                if match:
                    module = str(Path(path).parents[len(match[1]) - 1] / match[2].replace(".", "/"))
                    yield path, number, f"{module}.py" if f"{module}.py" in self.files else f"{module}/__init__.py"


def without_comments_and_strings(text):
    """The same lines and columns, with the insides of comments and literals blanked."""
    def blank(match):
        token = match.group(0)
        if token.startswith(("//", "/*")):
            return re.sub(r"[^\n]", " ", token)
        return token[0] + re.sub(r"[^\n]", " ", token[1:-1]) + token[-1]
    raw = r'R"(?P<delimiter>[^(\s]*)\((?:.|\n)*?\)(?P=delimiter)"'
    return re.sub(r"//[^\n]*|/\*(?:.|\n)*?\*/|" + raw + r"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'",
                  blank, text)


def read_layers(text):
    layers = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line:
            folder, _, targets = line.partition(":")
            layers[folder.strip()] = set(targets.split())
    return layers


def layer_of(path, layers):
    folder = str(Path(path).parent)
    return folder if folder in layers else None


def target_of(path, included, tree):
    """The path of an include in quotes: from the top, or beside the including file."""
    beside = str(Path(path).parent / included)
    if included in tree.files or "/" in included and beside not in tree.files:
        return included
    return beside


def check_layers(tree):
    layers = read_layers(tree.files.get("tests/tidy/layers.txt", ""))
    if not layers:
        yield "tests/tidy/layers.txt: has no layers"
    for folder, targets in layers.items():
        for target in targets - set(layers):
            yield f"tests/tidy/layers.txt: {folder} may use {target}, which has no line"
    seen = {}
    def cycle(folder, trail):
        if folder in trail:
            return trail[trail.index(folder):] + [folder]
        if folder not in seen:
            seen[folder] = True
            for target in sorted(layers.get(folder, ())):
                found = cycle(target, trail + [folder])
                if found:
                    return found
        return None
    for folder in layers:
        found = cycle(folder, [])
        if found:
            yield "tests/tidy/layers.txt: a cycle: " + " -> ".join(found)
    sources = tree.sources() + [(path, text) for path, text in tree.sources((".py",)) if path.startswith("client/python/")]
    for folder in sorted({str(Path(path).parent) for path, _ in sources if "/" in path and not path.startswith("tests/")}):
        if folder not in layers:
            yield f"{folder}: has no line in layers.txt"
    for path, number, included in [*tree.includes(), *tree.imports()]:
        if path.startswith("tests/"):
            continue
        source = layer_of(path, layers)
        target_path = target_of(path, included, tree)
        if source is None:  # said above
            continue
        if target_path.startswith("tests/"):
            yield f"{path}:{number}: includes {included} of the tests"
        target = layer_of(target_path, layers)
        if target and target != source and target not in layers[source]:
            yield f"{path}:{number}: {source} may not include {target} ({included})"


def check_driver_headers(tree):
    """Other folders may include the factory header of a driver only."""
    for path, number, included in tree.includes():
        match = re.match(r"common/transport/(local|ofi|tcp|ucx)/(\w+)\.hpp$", included)
        if match and not path.startswith((f"common/transport/{match.group(1)}/", "tests/")):
            if match.group(1) not in match.group(2) or not re.search(r"transport|target", match.group(2)):
                yield f"{path}:{number}: {included} is internal to its driver"


def check_lengths(tree):
    for path, text in tree.sources(SOURCE_SUFFIXES + (".py",)):
        lines = text.splitlines()
        if len(lines) > FILE_LINES_MAX:
            reason = any("Length:" in line for line in lines[:30])
            limit = FILE_LINES_MAX_WITH_REASON if reason else FILE_LINES_MAX
            if len(lines) > limit:
                yield f'{path}: {len(lines)} lines; {limit} is the limit (800 with "Length: why" at its top)'
        # Raw strings contain other languages; clang-format does not change them either.
        raw = re.compile(r'R"(?P<delimiter>[^(\s]*)\((?:.|\n)*?\)(?P=delimiter)"')
        shortened = raw.sub(lambda match: "\n" * match.group(0).count("\n"), text).splitlines()
        for number, line in enumerate(shortened, 1):
            if len(line) > COLUMNS_MAX and path.endswith(SOURCE_SUFFIXES) and "://" not in line:
                yield f"{path}:{number}: {len(line)} columns; {COLUMNS_MAX} is the limit"


NOT_A_FUNCTION = re.compile(
    r"\b(?:namespace|struct|class|union|enum|extern)\b[^()]*\{$|=\s*\{$|\bTEST_CASE\s*\(|\bSCENARIO\s*\(")


def check_functions(tree):
    """Counts from an opening brace that follows a parameter list to its closing one, at any scope."""
    for path, text in tree.sources():
        if path.startswith("tests/"):
            continue
        depth, functions, head = 0, [], ""
        for number, line in enumerate(without_comments_and_strings(text).splitlines(), 1):
            for char in line:
                if char == "{":
                    opener = (head + "{").strip()
                    is_function = (")" in opener and not NOT_A_FUNCTION.search(opener)
                                   and not any(start for _, start in functions))
                    functions.append((depth, number if is_function else None))
                    depth, head = depth + 1, ""
                elif char == "}":
                    depth, head = depth - 1, ""
                    if functions:
                        _, start = functions.pop()
                        if start and number - start + 1 > FUNCTION_LINES_MAX:
                            yield f"{path}:{start}: a function of {number - start + 1} lines"
                elif char == ";":
                    head = ""
                else:
                    head += char
            head += " "
            if line.lstrip().startswith("#"):
                head = ""


def check_headers(tree):
    for path, text in tree.sources(HEADER_SUFFIXES):
        code = without_comments_and_strings(text)
        if re.search(r"^\s*using\s+namespace\b", code, re.M):
            yield f"{path}: using namespace in a header"
        if not re.search(r"#\s*pragma once|#\s*ifndef \w+_H_?\w*", text):
            yield f"{path}: has no include guard"
        if not path.startswith("proto/") and re.search(r'#\s*include\s*["<][^">]*\.pb\.h[">]', text):
            yield f"{path}: includes generated protobuf code in a header outside proto/"
    for path, text in tree.sources((".cpp",)):
        own = path.removesuffix(".cpp") + ".hpp"
        first = re.search(r'^\s*#\s*include\s*["<]([^">]+)[">]', text, re.M)
        if own in tree.files and (not first or first[1] not in (own, Path(own).name)):
            yield f"{path}: does not include {own} first, which would prove that it compiles alone"


def check_words(tree):
    unfinished = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
    machine = re.compile(r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot|home/\w+)/")
    for path, text in sorted(tree.files.items()):
        if Path(path).suffix not in TEXT_SUFFIXES or path == "LICENSE" or "/corpus/" in path:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if unfinished.search(line):
                yield f"{path}:{number}: unfinished: {line.strip()[:60]}"
            if machine.search(line):
                yield f"{path}:{number}: a path of one machine: {line.strip()[:60]}"


BACKEND = re.compile(r"#\s*(?:el)?if(?:n?def)?\b.*\b(?:HO_)?(?:HAVE_|WITH_|ENABLE_|USE_)?(?:UCX|OFI|LIBFABRIC|CUDA|URING|LOCAL)\b")


def check_backends(tree):
    for path, text in tree.sources():
        for number, line in enumerate(text.splitlines(), 1):
            if BACKEND.match(line.strip()):
                yield f"{path}:{number}: chooses a backend by the preprocessor; CMake does that"


def check_asio(tree):
    """Asio compiles slowly and its types spread: only .cpp files and proto/frame_channel.hpp may include it."""
    for path, text in tree.sources(HEADER_SUFFIXES):
        if path != "proto/control/frame_channel.hpp" and re.search(r"#\s*include\s*<asio", text):
            yield f"{path}: includes Asio in a header"
    for path, text in tree.sources():
        if re.search(r"#\s*include\s*<asio\.hpp>", text):
            yield f"{path}: includes all of Asio"


def check_environment(tree):
    """The library has no main.cpp: the level of its log is read in one place."""
    for path, text in tree.sources():
        if path.startswith("tests/") or Path(path).name == "main.cpp" or path == "client/api/c_api_log.cpp":
            continue
        if re.search(r"\b(?:secure_)?getenv\s*\(", without_comments_and_strings(text)):
            yield f"{path}: reads the environment; only a main.cpp does"


def check_readmes(tree):
    folders = {str(Path(path).parent) for path, _ in tree.sources()}
    for folder in sorted(folders):
        if folder.startswith("tests/") or folder == "client/include/hyperoffload":
            continue
        if f"{folder}/README.md" not in tree.files:
            yield f"{folder}: has no README.md"
    for path, text in sorted(tree.files.items()):
        limit = README_LINES_MAX if path.endswith("/README.md") else TOP_README_LINES_MAX if path == "README.md" else None
        if limit and len(text.splitlines()) > limit:
            yield f"{path}: {len(text.splitlines())} lines; a page is {limit}"


def check_tests(tree):
    places = {}
    for path, text in tree.sources((".cpp",)):
        if not path.startswith("tests/"):
            if re.search(r"\bTEST_CASE\s*\(", text):
                yield f"{path}: a test outside tests/"
            continue
        for match in re.finditer(r'\b(?:TEST_CASE|TEMPLATE_TEST_CASE)\s*\(\s*"([^"]*)"', text):
            if not re.match(r"[\w ./<>+-]+: \S+(?: \S+)+", match.group(1)):
                yield f'{path}: a test name is "area: a sentence of truth", not "{match.group(1)}"'
            if ";" in match.group(1):  # separates CMake's lists
                yield f'{path}: a semicolon in the test name "{match.group(1)}"'
            if match.group(1) in places:
                yield f'{path}: the test name "{match.group(1)}" is also in {places[match.group(1)]}'
            places[match.group(1)] = path
    for path, text in sorted(tree.files.items()):
        if path.startswith("tests/") and path.endswith("CMakeLists.txt"):
            for label in re.findall(r"\bLABELS?\s+\"?(\w+)", re.sub(r"#.*", "", text)):
                if label not in LABELS:
                    yield f"{path}: label {label} is none of {', '.join(sorted(LABELS))}"
        if re.match(r"tests/(?!tidy/|support/needs[.]py)", path) and path.endswith(".py"):
            if re.search(r"\bexit\(77\)", text):  # without the reason that `tools/test --all` looks for
                yield f"{path}: skips by itself; use tests/support/needs.py"


def check_invariants(tree):
    """Each row of INVARIANTS.md names files that exist and titles of tests that exist; "..." stands for a part left out."""
    tests = "\n".join(text for path, text in sorted(tree.files.items()) if path.startswith("tests/"))
    for number, line in enumerate(tree.files.get("common/INVARIANTS.md", "").splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[0].isdigit():
            continue
        for path in re.findall(r"`([\w/]+\.\w+)`", cells[2]):
            if path not in tree.files:
                yield f"common/INVARIANTS.md:{number}: no file {path}"
        for title in re.findall(r"`([^`]*: [^`]*)`", cells[3]):
            for part in filter(None, (part.strip() for part in title.split("..."))):
                if part not in tests:
                    yield f'common/INVARIANTS.md:{number}: no test "{part}"'


def check_top_level(tree):
    for entry in sorted({path.split("/")[0] for path in tree.files} - TOP_LEVEL):
        yield f"{entry}: does not belong at the top"


def check_subjects(tree):
    for subject in tree.subjects:
        if len(subject) > SUBJECT_COLUMNS_MAX:
            yield f"commit: {len(subject)} columns in its subject: {subject}"


CHECKS = {
    "layers": check_layers, "pure": check_pure, "driver-headers": check_driver_headers, "lengths": check_lengths,
    "functions": check_functions, "headers": check_headers, "words": check_words, "backends": check_backends,
    "asio": check_asio, "environment": check_environment, "readmes": check_readmes, "tests": check_tests,
    "invariants": check_invariants, "paths": check_paths, "blocks": check_blocks, "prose": check_prose,
    "top-level": check_top_level, "subjects": check_subjects}
