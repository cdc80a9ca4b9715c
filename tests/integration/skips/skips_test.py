"""No skip looks like a pass: scripts that skip, in a project of their own that CTest runs, and `tools/test --all` on it. Stand-ins
for the build's programs do nothing.

Usage: skips_test.py SOURCE CMAKE CTEST [unittest arguments]
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

SOURCE, CMAKE, CTEST = pathlib.Path(sys.argv[1]), *sys.argv[2:4]
del sys.argv[1:4]
TIMEOUT_S = 120
CASES = """
class Cases(unittest.TestCase):
    def test_one_that_runs(self): pass
    def test_that_does_not(self): {}
if __name__ == "__main__": unittest.main()
"""
# Name of a test, its script, what CTest says of it, and why.
SCRIPTS = (
    ("passes", "", "run", None),
    ("fails", "sys.exit(1)", "fail", None),
    ("skips", 'needs.skip("no tape drive")', "notrun", "no tape drive"),
    ("skips_a_case", CASES.format('needs.skip_case("no moon")'), "notrun", "no moon"),
    ("skips_a_case_its_own_way", CASES.format('self.skipTest("no sun")'), "notrun", "(no reason)"),
    ("skips_and_fails", CASES.format('needs.skip_case("no moon")').replace("pass", "self.fail()"), "fail", None),
    ("lacks_what_all_installs", 'needs.program("no-such-program", "prometheus")', "notrun", "the package prometheus is not installed"),
    ("lacks_what_is_always_installed", 'needs.program("no-such-program", "etcd-server")', "fail", None),
    ("has_what_it_needs", 'needs.program("sh", "etcd-server")', "run", None),
)


class Skips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.top = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ho-skips-")))

    def results(self, names):
        """CTest's results of these scripts."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.top))
        text = (f"cmake_minimum_required(VERSION 3.25)\nproject(skips NONE)\nenable_testing()\n"
                f"include({SOURCE}/tests/script_test.cmake)\n")
        for name, script, *_ in SCRIPTS:
            if name in names:
                (folder / f"{name}.py").write_text(f"import sys, unittest\nsys.path.insert(0, {str(SOURCE / 'tests/support')!r})\n"
                                                   f"import needs\n{script}\n")
                text += f"ho_script_test({name} {name}.py LABEL integration)\n"
        (folder / "CMakeLists.txt").write_text(text)
        subprocess.run([CMAKE, "-S", folder, "-B", folder / "build"], check=True, capture_output=True, timeout=TIMEOUT_S)
        subprocess.run([CTEST, "--test-dir", folder / "build", "--output-junit", folder / "results.xml"], check=False,
                       capture_output=True, timeout=TIMEOUT_S)
        return folder / "results.xml"

    def test_ctest_counts_each_skip_as_one(self):
        junit = self.results([name for name, *_ in SCRIPTS])
        found = {case.get("name"): case.get("status") for case in ElementTree.parse(junit).getroot().iter("testcase")}
        self.assertEqual(found, {name: status for name, _, status, _ in SCRIPTS})
        expected = self.top / "expected"
        for text, code in (("no (tape|moon)", 1), ("no (tape|moon)|no reason|package prometheus", 0)):
            expected.write_text(text)
            done = subprocess.run([SOURCE / "tools/lib/test_results.py", "--strict", expected, junit], text=True,
                                  capture_output=True, check=False, timeout=TIMEOUT_S)
            self.assertEqual(done.returncode, code, done)
            for name, _, status, why in SCRIPTS:
                if status == "notrun":
                    self.assertIn(why, done.stdout, name)
        self.assertIn("2 passed, 3 failed, 4 skipped", done.stdout)

    def tools_test(self, names, *arguments):
        """tools/test of a tree without sources, whose every stage has these scripts' results."""
        tree = pathlib.Path(tempfile.mkdtemp(dir=self.top))
        (tree / "tools").mkdir()
        shutil.copy(SOURCE / "tools/test", tree / "tools")
        shutil.copytree(SOURCE / "tools/lib", tree / "tools/lib")
        for path, text in (("tools/packages.txt", ""), ("tests/expected_skips.txt", "no tape drive  # anywhere\n"),
                           *((path, "#!/bin/sh\n") for path in ("tests/fuzz/run", "bin/cmake", "bin/ninja", "bin/git",
                                                                "bin/clang-format")),
                           ("bin/ctest", f'#!/bin/sh\nshift 4\nexec cp "{self.results(names)}" "$1"\n')):
            file = tree / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        return subprocess.run([tree / "tools/test", *arguments, "--jobs", "1"], text=True, capture_output=True, check=False,
                              timeout=TIMEOUT_S, env={**os.environ, "PATH": f"{tree}/bin:{os.environ['PATH']}"})

    def test_with_all_an_unexpected_skip_is_a_failure(self):
        done = self.tools_test(["passes", "skips"], "--all")
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("skipped: no tape drive\n", done.stdout)
        names = ["skips_a_case", "skips_a_case_its_own_way", "lacks_what_all_installs"]
        done = self.tools_test(["passes", *names], "--all")
        self.assertEqual(done.returncode, 1, done)
        self.assertRegex(done.stdout, r"FAILED after \S+: unexpected skips\n")
        for name in names:
            self.assertRegex(done.stdout, rf"\(unexpected: .*\)\n +{name}\n")
        done = self.tools_test(["skips_a_case"])  # only shown
        self.assertEqual(done.returncode, 0, done)
        self.assertIn("(unexpected: ", done.stdout)


if __name__ == "__main__":
    unittest.main()
