#!/usr/bin/env python3
"""Shows that every check of checks.py can fail, and passes what it should pass."""

import unittest

from blocks import TABLE
from checks import CHECKS, Tree

LAYERS = {"tests/tidy/layers.txt": "common/base:\nproto: common/base\ncommon/transport/ofi: common/base\n"
                                   "common/transport: common/base\ndaemon: common/base\n"}


BLOCK = "```sh\na\n```\n"
ROW = "daemon/README.md sh: docs/a_test.py  # why\n"
TEST = {"tests/integration/docs/a_test.py": 'blocks("daemon/README.md")', "tests/integration/docs/CMakeLists.txt": "ho_script_test(a_test"}


def long_function(lines, head="int f(int a) {"):
    return head + "\n" + "  a();\n" * (lines - 2) + "}\n"


def guarded(text):
    return "#pragma once\n" + text


# check: [(what is wrong, the files, or subjects, that have it)], [the same for what is right]
SAMPLES = {
    "layers": (
        [("an arrow that is not listed", {"daemon/a.cpp": '#include "proto/a.hpp"\n', "proto/a.hpp": ""}),
         ("an include from beside", {"common/base/a.cpp": '#include "../../proto/a.hpp"\n#include "proto/a.hpp"\n'}),
         ("a folder without a line", {"elsewhere/a.cpp": '#include "common/base/a.hpp"\n'}),
         ("a folder below one with a line", {"daemon/pool/a.cpp": ""}),
         ("an import that is not listed", {"client/python/p/_a/x.py": "from .._b.y import Y\n", "client/python/p/_b/y.py": "",
                                           "tests/tidy/layers.txt": "client/python/p/_a:\nclient/python/p/_b:\n"}),
         ("an import of a folder", {"client/python/p/_a/x.py": "from .._b import y\n", "client/python/p/_b/y.py": "",
                                    "tests/tidy/layers.txt": "client/python/p/_a:\nclient/python/p/_b:\n"}),
         ("a use of the tests", {"daemon/a.cpp": '#include "tests/support/a.hpp"\n'}),
         ("a cycle", {"tests/tidy/layers.txt": "common/base: proto\nproto: common/base\n"}),
         ("a target without a line", {"tests/tidy/layers.txt": "proto: common/base\n"}),
         ("no layers", {"tests/tidy/layers.txt": "# none\n"})],
        [("a listed arrow", {"daemon/a.cpp": '#include "common/base/a.hpp"\n#include "daemon/a.hpp"\n'}),
         ("an import in a function", {"client/python/p/_a/x.py": "def f():\n    from .._b.y import Y\n", "client/python/p/_b/y.py": "",
                                      "tests/tidy/layers.txt": "client/python/p/_a:\nclient/python/p/_b:\n"}),
         ("a test", {"tests/unit/a.cpp": '#include "daemon/a.hpp"\n'})]),
    "pure": (
        [("a thread", {"tests/tidy/pure.txt": "daemon/pool:\n", "daemon/pool/a.cpp": "#include <thread>\n"}),
         ("a socket in a folder below", {"tests/tidy/pure.txt": "daemon/pool:\n", "daemon/pool/b/a.hpp": "#  include <sys/socket.h>\n"}),
         ("a file by way of two headers", {"tests/tidy/pure.txt": "client/a:\n", "client/a.cpp": '#include "client/b.hpp"\n',
                                           "client/b.hpp": '#include "c.hpp"\n', "client/c.hpp": "#include <fstream>\n"}),
         ("an exception that another part has", {"tests/tidy/pure.txt": "client/a: client/c.hpp\nclient/b:\n",
                                                 "client/a.cpp": '#include "client/c.hpp"\n', "client/b.cpp": '#include "client/c.hpp"\n',
                                                 "client/c.hpp": "#include <unistd.h>\n"}),
         ("an exception without a use", {"tests/tidy/pure.txt": "client/a: client/c.hpp\n", "client/a.cpp": "", "client/c.hpp": ""}),
         ("a part that is gone", {"tests/tidy/pure.txt": "client/a:\n"}),
         ("a README without a line", {"daemon/README.md": "Decides: no I/O, no\nthreads.\n"}),
         ("a row of a README without a line", {"daemon/README.md": "| `MemberTable` | the list. Pure |\n"}),
         ("a header without a line", {"daemon/a.hpp": "/// The list. Pure: a value.\n"})],
        [("an exception", {"tests/tidy/pure.txt": "client/a: client/c.hpp\n", "client/a.cpp": '#include "client/c.hpp"\n',
                           "client/c.hpp": "#include <unistd.h>\n"}),
         ("what is beside a pure part", {"tests/tidy/pure.txt": "client/a:\n", "client/a.hpp": "", "client/a_b.hpp": "#include <thread>\n"}),
         ("words that have a line", {"tests/tidy/pure.txt": "daemon/member_table:\n", "daemon/README.md": "| `MemberTable` | Pure |\n",
                                     "daemon/member_table.hpp": "/// Pure. \n#include <cstdio>\n"})]),
    "driver-headers": (
        [("a driver's inside", {"daemon/a.cpp": '#include "common/transport/ofi/fabric.hpp"\n'})],
        [("a factory", {"daemon/a.cpp": '#include "common/transport/ofi/ofi_target.hpp"\n'}),
         ("its own", {"common/transport/ofi/a.cpp": '#include "common/transport/ofi/fabric.hpp"\n'})]),
    "lengths": (
        [("a long file", {"daemon/a.cpp": "int a;\n" * 501}),
         ("a very long file with a reason", {"daemon/a.cpp": "// Length: one table.\n" + "int a;\n" * 800}),
         ("a long line", {"daemon/a.cpp": "//" + "x" * 99 + "\n"})],
        [("a file at the limit", {"daemon/a.cpp": "int a;\n" * 500}),
         ("a page in a raw string", {"daemon/a.cpp": 'auto a = R"x(\n' + "x" * 150 + '\n)x";\n'}),
         ("a long file with a reason", {"daemon/a.cpp": "// Length: one table.\n" + "int a;\n" * 700})]),
    "functions": (
        [("a long function", {"daemon/a.cpp": long_function(71)}),
         ("a long member", {"daemon/a.cpp": "class A {\n" + long_function(71, "void g() const {") + "};\n"}),
         ("a long one in a namespace", {"daemon/a.cpp": "namespace ho {\n" + long_function(71) + "}\n"}),
         ("braces in literals", {"daemon/a.cpp": long_function(71, "int f() { g('}', \"}\");")})],
        [("a function at the limit", {"daemon/a.cpp": long_function(70)}),
         ("a long class", {"daemon/a.cpp": "class A {\n" + "  int a;\n" * 100 + "};\n"}),
         ("a long namespace", {"daemon/a.cpp": "namespace a {\n" + long_function(40) * 3 + "}\n"})]),
    "headers": (
        [("using namespace", {"daemon/a.hpp": guarded("using namespace std;\n")}),
         ("no guard", {"daemon/a.hpp": "int a();\n"}),
         ("generated code", {"daemon/a.hpp": guarded('#include "control.pb.h"\n')}),
         ("another header first", {"daemon/a.hpp": guarded("int a();\n"),
                                   "daemon/a.cpp": '#include <vector>\n#include "daemon/a.hpp"\n'}),
         ("its own header not at all", {"daemon/a.hpp": guarded("int a();\n"), "daemon/a.cpp": "int a();\n"})],
        [("its own header first", {"daemon/a.hpp": guarded("int a();\n"),
                                   "daemon/a.cpp": '// What.\n#include "daemon/a.hpp"\n#include <vector>\n'}),
         ("a sound header", {"daemon/a.hpp": guarded("// no using namespace here\nint a();\n")}),
         ("generated code in a source", {"daemon/a.cpp": '#include "control.pb.h"\n'})]),
    "words": (
        [("something unfinished", {"daemon/a.cpp": "// TO" + "DO: later\n"}),
         ("one machine's path", {"tools/a.sh": "cd /wo" + "rk/main\n"}),
         ("one user's path", {"README.md": "see /home/" + "someone/x\n"})],
        [("a word inside a word", {"daemon/a.cpp": "int TODO_LIST_is_a_name_of_its_own;\n"}),
         ("a relative path", {"tools/a.sh": "cd build/work/x\n"})]),
    "backends": (
        [("a backend by the preprocessor", {"client/a.cpp": "#ifdef HO_HAVE_UCX\n#endif\n"}),
         ("one in an expression", {"client/a.cpp": "#if defined(HO_WITH_CUDA)\n#endif\n"})],
        [("the language", {"client/a.h": "#ifdef __cplusplus\n#endif\n"})]),
    "asio": (
        [("Asio in a header", {"daemon/a.hpp": "#include <asio/ip/tcp.hpp>\n"}),
         ("all of Asio", {"daemon/a.cpp": "#include <asio.hpp>\n"})],
        [("a piece in a source", {"daemon/a.cpp": "#include <asio/ip/tcp.hpp>\n"}),
         ("the one header", {"proto/control/frame_channel.hpp": "#include <asio/io_context.hpp>\n"})]),
    "environment": (
        [("getenv", {"daemon/a.cpp": 'auto x = std::getenv("X");\n'})],
        [("getenv in main", {"daemon/main.cpp": 'auto x = std::getenv("X");\n'}),
         ("talk of it", {"daemon/a.cpp": "// getenv() is for main\n"})]),
    "readmes": (
        [("a folder without one", {"daemon/pool/a.cpp": ""}),
         ("a long one", {"daemon/README.md": "line\n" * 61}),
         ("a long one at the top", {"README.md": "line\n" * 76})],
        [("a folder with one", {"daemon/pool/a.cpp": "", "daemon/pool/README.md": "line\n" * 60}),
         ("one page at the top", {"README.md": "line\n" * 75})]),
    "tests": (
        [("a name that is no sentence", {"tests/unit/a.cpp": 'TEST_CASE("allocator") {}\n'}),
         ("a name of one word", {"tests/unit/a.cpp": 'TEST_CASE("allocator: works") {}\n'}),
         ("a name in two parts", {"tests/unit/a.cpp": 'TEST_CASE("a: b c; d") {}\n'}),
         ("a name twice", {"tests/unit/a.cpp": 'TEST_CASE("a: b c") {}\n', "tests/unit/b.cpp": 'TEST_CASE("a: b c") {}\n'}),
         ("a test elsewhere", {"daemon/a.cpp": 'TEST_CASE("a: b c") {}\n'}),
         ("an unknown label", {"tests/unit/CMakeLists.txt": "ho_test_program(a LABEL slow)\n"}),
         ("a skip without needs.py", {"tests/a.py": "sys.exit(77)\n"})],
        [("a sentence", {"tests/unit/a.cpp": 'TEST_CASE("allocator: neighbours merge", "[x]") {}\n'}),
         ("a known label", {"tests/unit/CMakeLists.txt": "ho_test_program(a LABEL \"sim one thread\")\n"}),
         ("the skip of needs.py", {"tests/support/needs.py": "sys.exit(77)\n"})]),
    "invariants": (
        [("a file that is gone", {"common/INVARIANTS.md": "| 1 | Holds. | `daemon/a.cpp` f | `a: b c` |\n",
                                  "tests/a.cpp": 'TEST_CASE("a: b c") {}\n'}),
         ("a test that is gone", {"common/INVARIANTS.md": "| 1 | Holds. | `daemon/a.cpp` f | `a: b c`; `a: b ...` |\n",
                                  "daemon/a.cpp": "", "tests/a.cpp": 'TEST_CASE("a: b d") {}\n'})],
        [("what is there", {"common/INVARIANTS.md": "| 1 | Holds. | `daemon/a.cpp` f | `a: b ... d`; a_fuzz |\n",
                            "daemon/a.cpp": "", "tests/a.cpp": 'TEST_CASE("a: b c d") {}\n'})]),
    "paths": (
        [("a link to a page that is gone", {"daemon/README.md": "See [that](../common/a.md#b).\n"}),
         ("a file that is gone", {"daemon/README.md": "See `common/a.cpp`.\n", "common/b.cpp": ""}),
         ("a file beside that is gone", {"daemon/README.md": "See `pool/a.*`.\n", "daemon/pool/b.cpp": ""}),
         ("a name that no file has", {"daemon/README.md": "| `b.hpp/.cpp` |\n", "common/b.cpp": ""}),
         ("a file in a map", {"README.md": "```text\ncommon/a/  gone\n```\n", "common/b.cpp": ""})],
        [("files and folders", {"daemon/README.md": "`common/`, `common/b`, [b](../common/b.cpp), `b.cpp`, `pool/*`\n",
                                "common/b.cpp": "", "daemon/pool/a.cpp": ""}),
         ("words with a slash", {"README.md": "`get/put` of `a/b.hos`, `/etc/a.md`, [a](https://a.b/c)\n", "common/b.cpp": ""})]),
    "blocks": (
        [("commands without a row", {"daemon/README.md": BLOCK}),
         ("commands called text", {"daemon/README.md": "```text\nhyperoffload status\n```\n"}),
         ("a configuration called text", {"daemon/README.md": '```text\nflash { path: "/a" }\n```\n'}),
         ("a block without a language", {"daemon/README.md": "```\na\n```\n"}),
         ("a block without an end", {"daemon/README.md": "```text\na\n"}),
         ("an indented block", {"daemon/README.md": "* a\n\n  ```sh\n  a\n  ```\n"}),
         ("a row without a block", {TABLE: "a.md sh: not run: why\n"}),
         ("a row without a reason", {"daemon/README.md": BLOCK, TABLE: "daemon/README.md sh: not run:\n"}),
         ("a test that is gone", {"daemon/README.md": BLOCK, TABLE: ROW}),
         ("a test that nothing starts", {"daemon/README.md": BLOCK, TABLE: ROW, **TEST, "tests/integration/docs/CMakeLists.txt": "b_test"}),
         ("a test of another page", {"client/README.md": BLOCK, TABLE: ROW.replace("daemon", "client"), **TEST})],
        [("a test", {"daemon/README.md": BLOCK, TABLE: ROW, **TEST}),
         ("a reason", {"daemon/README.md": BLOCK, TABLE: "daemon/README.md sh: not run: needs a device\n"}),
         ("a picture", {"daemon/README.md": "```text\njob -> hyperoffload (the command) -> a { }\n```\n"})]),
    "prose": (
        [("a sentence that begins with of", {"common/base/a.hpp": "/// A list.\n/// Of equals the first.\n"}),
         ("a comment that begins so", {"common/base/a.hpp": "int a;  ///< of the last step\n"}),
         ("what of", {"common/base/a.hpp": "/// What of it.\n"}),
         ("who", {"common/base/a.hpp": "/// Frees it. Who holds it waits.\n"}),
         ("a relative clause as the subject", {"common/base/a.hpp": "/// What comes back late is dropped.\n"}),
         ("a phrase over two lines", {"common/base/a.hpp": "/// The caller is\n/// told so.\n"}),
         ("an invented term", {"common/base/a.proto": "// Counts the knocks of a peer.\n"}),
         ("a string", {"common/base/a.cpp": 'auto a = "whoever asks is refused";\n'}),
         ("a string in a script", {"common/run": "#!/usr/bin/env python3\nfail('whoever asks is refused')\n"}),
         ("a cell of a table", {"common/README.md": "| a | b |\n| --- | --- |\n| `a` | nobody's memory |\n"}),
         ("long prose", {"common/README.md": "x" * 101 + "\n"}),
         ("a long paragraph", {"common/README.md": "a line\n" * 6}),
         ("a long item", {"common/README.md": "* a line\n" + "  a line\n" * 5})],
        [("plain words", {"common/base/a.hpp": "/// Returns the list of nodes. The caller owns it.\n"}),
         ("a piece of a string", {"common/base/a.cpp": 'auto a = n + " of the next step";\n'}),
         ("a name in code", {"common/README.md": "The function `whoever()` frees it.\n"}),
         ("a paragraph at the limit, and items", {"common/README.md": "a line\n" * 5 + "* an item\n" * 6}),
         ("a long row and fenced code", {"common/README.md": "| " + "x" * 120 + " |\n\n```\n" + "y" * 120 + "\n```\n"})]),
    "top-level": (
        [("a new entry", {"notes.txt": ""}), ("a new folder", {"utils/a.cpp": ""})],
        [("a known one", {"README.md": "", "daemon/a.cpp": ""})]),
    "subjects": (
        [("a long subject", ["x" * 72])],
        [("one at the limit", ["x" * 71]), ("no history", [])]),
}


def findings(name, sample):
    tree = Tree({}, sample) if isinstance(sample, list) else Tree({**LAYERS, **sample})
    return list(CHECKS[name](tree))


class EveryCheck(unittest.TestCase):
    def test_has_samples(self):
        self.assertEqual(set(CHECKS), set(SAMPLES))

    def test_finds_what_is_wrong(self):
        for name, (wrong, _) in SAMPLES.items():
            for what, sample in wrong:
                with self.subTest(check=name, sample=what):
                    self.assertNotEqual(findings(name, sample), [])

    def test_passes_what_is_right(self):
        for name, (_, right) in SAMPLES.items():
            for what, sample in right:
                with self.subTest(check=name, sample=what):
                    self.assertEqual(findings(name, sample), [])


if __name__ == "__main__":
    unittest.main()
