"""deploy/SECURITY.md names tests that exist.

Usage: security_test.py SOURCE_FOLDER [unittest arguments]
"""

import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))


class Security(unittest.TestCase):
    def test_each_line_names_tests_that_exist_or_says_that_nothing_protects(self):
        code = "\n".join(file.read_text() for file in (SOURCE / "tests").rglob("*_test.cpp"))
        known = set(re.findall(r'TEST_CASE\(\s*"((?:[^"\\]|\\.)*)"', re.sub(r'"\n\s*"', "", code)))
        for file in (SOURCE / "tests").rglob("*_test.py"):  # as "FILE: FUNCTION"
            known |= {f"{file.stem}: {name}" for name in re.findall(r"def (test_\w+)", file.read_text())}
        lines = [line.split("|") for line in (SOURCE / "deploy/SECURITY.md").read_text().splitlines()
                 if line.startswith("| ") and line.count("|") == 4]
        rows = [cells for cells in lines if cells[1].strip() not in ("tries to", "---")]
        self.assertGreater(len(rows), 20)
        for _, tries, stopped, tests, _ in rows:
            named = re.findall(r"`([^`]+)`", tests)
            self.assertTrue(named or "**" in stopped, tries)
            self.assertEqual([name for name in named if name not in known], [])


if __name__ == "__main__":
    unittest.main()
