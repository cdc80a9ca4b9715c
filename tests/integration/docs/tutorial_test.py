"""Follows the tutorial: installs the build into a temporary folder, writes the files of the page there, runs its shell blocks in
order in one shell, and compares their output with the page.

Usage: tutorial_test.py BUILD_DIR TUTORIAL CONFIG
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

TIME_MAX_S = 150


def blocks(page):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)


def shape(text):
    """A line without the differences between machines: numbers with units, and runs of spaces."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)?(?: (?:[KMG]iB|B|ns|us|ms|s)\b)?", "#", text)).strip()


def install(build, prefix, config):
    subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--config", config], stdout=subprocess.DEVNULL, check=True)
    pkgconfig = next(pathlib.Path(prefix).rglob("hyperoffload.pc")).parent
    return {**os.environ, "PATH": f"{prefix}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(pkgconfig.parent),
            "PKG_CONFIG_PATH": str(pkgconfig)}


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


def main():
    build, page, config = sys.argv[1:]
    found = blocks(pathlib.Path(page).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="ho-docs-") as top:
        environment = install(build, f"{top}/prefix", config)
        folder = pathlib.Path(top, "tutorial")
        folder.mkdir()
        for language, text in found:
            if language == "cpp":
                name, _, code = text.partition("\n")
                (folder / name.removeprefix("// ")).write_text(code, encoding="utf-8")
        # A mark after each block shows which output is whose.
        script = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "".join(f"{text}\necho '=== end of block'\n" for language, text in found if language == "sh")
        output, status = run(script, folder, environment)
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
