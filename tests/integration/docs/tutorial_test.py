"""Follows client/docs/tutorial.md: writes the files of the page into a temporary folder, runs its shell blocks in order in one
shell, from the installation on, and compares their output with the page.

Usage: tutorial_test.py BUILD_DIR CONFIG
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from pages import ROOT, blocks

PAGE = ROOT / "client/docs/tutorial.md"
TIME_MAX_S = 150
# The page's commands install the build that is there.
STAND_INS = r"""
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
cmake() {
  case $1 in
    --preset) command cmake --list-presets -S "$ROOT" | grep "\"$2\"" ;;
    --install) test "$2 $3" = "build/release --prefix" && command cmake --install "$BUILD" --prefix "$4" --config "$CONFIG" >/dev/null ;;
    *) false ;;
  esac || { echo "not right: cmake $*"; exit 1; }
}
ninja() { test "$*" = "-C build/release" || { echo "not right: ninja $*"; exit 1; }; }
g++() {  # the reader has written the page's files here by now
  cp "$FILES"/* . && command g++ "$@"
}
"""


def in_order(languages):
    """(language, text) of the page's blocks in these languages."""
    text = PAGE.read_text(encoding="utf-8")
    return sorted(((language, one) for language in languages for one in blocks(PAGE, language)),
                  key=lambda block: text.index(f"```{block[0]}\n{block[1]}```"))


def shape(text):
    """A line without the differences between machines: numbers with units, and runs of spaces."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)?(?: (?:[KMG]iB|B|ns|us|ms|s)\b)?", "#", text)).strip()


def run(script, folder, environment):
    """Runs the script in a session of its own and ends what it leaves behind. @return status and output."""
    shell = subprocess.Popen(["bash", "-eu", "-o", "pipefail", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        return shell.communicate(timeout=TIME_MAX_S)[0], shell.returncode
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        return shell.communicate()[0], f"no end after {TIME_MAX_S} s"
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def library_folder(build):
    """The page says that it is another one on some systems."""
    return re.search(r"^CMAKE_INSTALL_LIBDIR:\w+=(.*)$", pathlib.Path(build, "CMakeCache.txt").read_text(), re.M)[1]


def main():
    build, config = sys.argv[1:]
    found = in_order(("cpp", "sh", "text"))
    with tempfile.TemporaryDirectory(prefix="ho-docs-") as top:
        files = pathlib.Path(top, "files")
        files.mkdir()
        for language, text in found:
            if language == "cpp":
                name, _, code = text.partition("\n")
                (files / name.removeprefix("// ")).write_text(code, encoding="utf-8")
        environment = {**os.environ, "HOME": top, "ROOT": str(ROOT), "BUILD": build, "CONFIG": config, "FILES": str(files)}
        # A mark after each block shows which output is whose.
        script = STAND_INS + "".join(f"{text}\necho '=== end of block'\n" for language, text in found if language == "sh")
        output, status = run(script.replace("hyperoffload/lib", f"hyperoffload/{library_folder(build)}"), top, environment)
    failures = [] if status == 0 else [f"the commands ended with status {status}"]
    outputs = output.split("=== end of block\n")
    ran = -1
    for language, text in found:
        ran += language == "sh"
        if language != "text":
            continue
        lines = {shape(line) for line in outputs[ran].splitlines()} if ran < len(outputs) else set()
        failures += [f"the page shows a line that was not printed: {line}"
                     for line in text.splitlines() if shape(line) not in lines]
    if failures:
        sys.exit("\n".join([output, *failures]))
    print(f"{ran + 1} blocks of commands ran as the page says")


if __name__ == "__main__":
    main()
