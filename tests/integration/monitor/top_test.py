"""hyperoffload top beside a job that trains: as a table, as JSON, and live on a terminal.

Usage: top_test.py CLI DAEMON LIBRARY EXAMPLE_JOB [unittest arguments]
"""
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import unittest

from support import Daemon

PROGRAMS, EXAMPLE = sys.argv[1:3], sys.argv[4]
del sys.argv[1:5]


class Top(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon(PROGRAMS, "lease_ms: 600 tcp {}\n"))
        cls.example = subprocess.Popen(
            [EXAMPLE, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2", "--steps",
             "1000000", "--device-memory", "60%", "--transport", "tcp", "--pool", cls.daemon.pool],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.example.wait)
        cls.addClassCleanup(cls.example.kill)
        end = time.monotonic() + 60
        while not any(one.get("steps") for one in cls.daemon.json("sessions")["nodes"][0]["sessions"]):
            assert time.monotonic() < end and cls.example.poll() is None
            time.sleep(0.1)

    def test_json_has_what_moves_by_node_and_session(self):
        (node,) = self.daemon.json("top", "--interval", "2s")["nodes"]
        (session,) = node["sessions"]
        self.assertEqual((node["reachable"], session["name"]), (True, "gpt"))
        self.assertEqual(node["granted_bytes"], session["granted_bytes"])
        for key in ("in_bytes_per_s", "out_bytes_per_s"):
            self.assertGreater(session[key], 0)
            # The daemon counts what the job reports, in times that differ by a renewal at most.
            self.assertGreater(node[key], session[key] / 10)
            self.assertLess(node[key], session[key] * 10)
        self.assertGreater(session["steps_per_s"], 0)
        self.assertTrue(0 <= session["stall_share"] < 1, session)

    def test_without_a_terminal_it_prints_as_many_tables_as_asked_for(self):
        done = self.daemon.run("top", "--interval", "0.3", "--count", "2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.count("NODE"), 2)
        self.assertTrue(all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout)
        self.assertIn(" gpt ", done.stdout)
        self.assertEqual(self.daemon.run("top", "-o", "json", "--count", "2").returncode, 2)

    def test_a_table_is_there_before_the_next_one(self):
        with subprocess.Popen([PROGRAMS[0], "top", "--interval", "0.3", "--count", "1000", "--pool", self.daemon.pool],
                              stdout=subprocess.PIPE) as process:
            shown = select.select([process.stdout], [], [], 30)[0]
            process.kill()
        self.assertTrue(shown)

    def live(self, end, rows=0):
        """Runs it on a terminal until it has shown two tables, then ends it. @return exit code, all that it wrote."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (rows, 80))
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen([PROGRAMS[0], "top", "--interval", "0.3", "--pool", self.daemon.pool], stdin=theirs,
                                   stdout=theirs, stderr=theirs)
        out, limit, ended = b"", time.monotonic() + 30, False
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            self.assertLess(time.monotonic(), limit, out)
            if select.select([ours], [], [], 0.1)[0]:
                out += os.read(ours, 65536)
            if out.count(b"NODE") >= 2 and not ended:
                ended = True
                end(process, ours)
        self.assertEqual(termios.tcgetattr(theirs), before)
        os.close(theirs)
        os.close(ours)
        self.assertTrue(out.startswith(b"\x1b[?1049h") and out.endswith(b"\x1b[?25h\x1b[?1049l"), out)
        if rows:
            for table in out.split(b"\x1b[H")[1:]:
                self.assertLess(table.count(b"\n"), rows, table)
                self.assertIn(b"more lines", table)
                self.assertIn(b"quit", table)
        return process.returncode

    def test_a_low_terminal_shows_the_beginning(self):
        self.assertEqual(self.live(lambda process, terminal: os.write(terminal, b"q"), rows=4), 0)

    def test_on_a_terminal_q_and_ctrl_c_end_it_and_restore_the_screen(self):
        self.assertEqual(self.live(lambda process, terminal: os.write(terminal, b"xq")), 0)
        self.assertEqual(self.live(lambda process, terminal: process.send_signal(signal.SIGINT)), 130)


if __name__ == "__main__":
    unittest.main()
