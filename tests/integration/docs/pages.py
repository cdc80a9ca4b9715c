"""The commands of a page of the documentation."""
import pathlib
import re
import subprocess


def blocks(page, language="sh"):
    """Texts of its fenced blocks in that language."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def command(page, begin):
    """The only command in the page's sentences that begins so."""
    text = re.sub(r"^```.*?^```$", "", pathlib.Path(page).read_text(encoding="utf-8"), flags=re.M | re.S)
    found = {re.sub(r"\s+", " ", one) for one in re.findall(r"`([^`]+)`", text) if one.startswith(begin)}
    assert len(found) == 1, (begin, found)
    return found.pop()


def compile_cpp(folder, source, code, library):
    """Compiles a program with the public headers. @return its path."""
    path = pathlib.Path(folder) / "page.cpp"
    path.write_text(code, encoding="utf-8")
    program = path.with_suffix("")
    done = subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{source}/client/include", path,
                           library, f"-Wl,-rpath,{pathlib.Path(library).parent}", "-o", program],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return program
