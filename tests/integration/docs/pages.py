"""The commands of a page of the documentation."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "tests/tidy"))
from blocks import TABLE, read_rows  # noqa: E402


TEST = str(pathlib.Path(sys.argv[0]).resolve().relative_to(ROOT / "tests/integration"))


def pages_of(language):
    """The pages whose blocks in that language blocks.txt gives to the test that runs."""
    rows = read_rows((ROOT / TABLE).read_text(encoding="utf-8"))
    return [ROOT / page for (page, one), row in rows.items() if one == language and TEST in row.tests]


def blocks(page, language="sh"):
    """Texts of its fenced blocks in that language. The test that runs has a row for them, so that tests/tidy knows it."""
    page = pathlib.Path(page).resolve()
    assert page in pages_of(language), f"{TABLE} has no row of this test for {page.relative_to(ROOT)} {language}"
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


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
