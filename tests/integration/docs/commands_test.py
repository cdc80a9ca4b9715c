"""Checks the commands of pages that cannot run here (blocks.txt says why) without running them: their programs exist, --help
knows their options, presets have their names, and names of tests match some.

Usage: commands_test.py SOURCE BUILD CTEST CLI GPT
"""
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys

from pages import blocks, pages_of

SOURCE, BUILD, CTEST, CLI, GPT = sys.argv[1:6]
OURS = {"hyperoffload": CLI, "hyperoffload-gpt": GPT}
FOLDERS = ("tools/", ".ci/")
# Programs of the system, of which only files and presets are looked at.
OTHERS = ("apt-get", "cmake", "ibv_devinfo", "ibv_rc_pingpong", "ninja", "patch", "pip", "python3", "ucx_info")
ENDS = ("&&", "||", ";", "|")


@functools.cache
def printed(*words):
    return subprocess.run(words, cwd=SOURCE, capture_output=True, text=True, timeout=120, check=False).stdout


def options_are_known(command, program, *subcommands):
    known = set(re.findall(r"(?<![\w-])--?[\w-]+", printed(program, *subcommands, "--help")))
    assert known, f"{program} {subcommands} has no help"
    for word in command:
        option = word.partition("=")[0]
        assert not re.fullmatch(r"--?[a-z][\w-]*", option) or option in known, f"{option} is not an option of {command[0]}"


def tests_match(options):
    """A choice of CTest's tests."""
    (count,) = re.findall(r"^Total Tests: (\d+)$", printed(CTEST, "--test-dir", BUILD, "-N", *options), re.M)
    assert int(count) > 0, f"no test matches {options}"


def cases_match(program, names):
    (count,) = re.findall(r"^(\d+) (?:matching )?test cases?$", printed(program, "--list-tests", *names), re.M)
    assert int(count) > 0, f"no case of {program} matches {names}"


def check_ours(page, command):
    """The project's program, up to a command that is given to it, which is checked as well."""
    program, words = command[0], command[1:]
    if program == "tools/chroot/run":
        if words[:2] == ["bash", "-c"]:
            check_line(page, words[2])
        else:
            check(page, words)
        return
    options_are_known(command, f"{SOURCE}/{program}")
    if program == "tools/lab/run":
        for word in words:
            if not word.startswith("-"):
                check_line(page, word)


def check(page, command):
    while re.match(r"[A-Z_]+=", command[0]):
        command = command[1:]
    program, words = command[0], command[1:]
    beside = page.parent
    if program in OURS:
        options_are_known(command, OURS[program], *words[:1])
    elif program.startswith(FOLDERS):
        assert pathlib.Path(SOURCE, program).stat().st_mode & 0o111, f"{program} cannot be run"
        check_ours(page, command)
    elif program == "ctest":
        assert words[:2] == ["--test-dir", "build/dev"], words
        tests_match(words[2:])
    elif program.startswith("build/dev/"):
        cases_match(program.replace("build/dev", BUILD, 1), words)
    elif program == "build/minimal":
        assert "add_executable(minimal " in (beside / "CMakeLists.txt").read_text(), program
    else:
        assert program in OTHERS, f"nothing is known of {program}"
        for word in words:
            if re.fullmatch(r"\w[\w-]*\.(?:py|patch|txt)", word):
                assert (beside / word).exists(), word
        if words[:1] == ["--preset"]:
            presets = json.loads(pathlib.Path(SOURCE, "CMakePresets.json").read_text())["configurePresets"]
            assert words[1] in [one["name"] for one in presets], words[1]


def check_line(page, line):
    """Checks each of its commands. @return how many."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands = [[]]
    for word in lexer:
        if word in ENDS:
            commands.append([])
        else:
            commands[-1].append(word)
    commands = [one for one in commands if one]
    for one in commands:
        check(page, one)
    return len(commands)


def main():
    count = 0
    for page in pages_of("sh"):
        for block in blocks(page):
            for line in block.replace("\\\n", " ").splitlines():
                try:
                    count += check_line(page, line)
                except (AssertionError, OSError, ValueError) as error:
                    sys.exit(f"{page.relative_to(SOURCE)}: {line}\n{error}")
    assert count > 20, count
    print(f"{count} commands are right")


main()
