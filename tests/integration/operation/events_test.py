"""hyperoffload events and --watch: what happened on two real daemons, and what happens, also over a restart."""
import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

cli, daemon, holder = sys.argv[1:4]
PATIENCE_S = 60


class Events(unittest.TestCase):
    def setUp(self):
        name = tempfile.TemporaryDirectory()
        self.addCleanup(name.cleanup)
        self.folder = pathlib.Path(name.name)
        self.pool = f"unix:{self.folder}/0.sock"

    def start(self, node, others):
        config = self.folder / f"{node}.textproto"
        config.write_text(
            f'node_id: {node} node_name: "n{node}" ddr_bytes: "16MiB" segment_bytes: "2MiB" '
            f'unix_socket: "{self.folder}/{node}.sock" insecure: true\n'
            + "".join(f'nodes {{ node_id: {i} name: "n{i}" control_addresses: "unix:{self.folder}/{i}.sock" }}\n'
                      for i in others))
        process = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (process.kill(), process.wait()))
        self.until(lambda: self.run_cli("status", "--pool", f"unix:{self.folder}/{node}.sock").stdout)
        return process

    def run_cli(self, *words):
        words = words if "--pool" in words else (*words, "--pool", self.pool)
        return subprocess.run([cli, *words], capture_output=True, text=True, timeout=PATIENCE_S)

    def until(self, done):
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.05)

    def test_a_group_alone_lists(self):
        self.start(0, [])
        for group in ("objects", "blocks", "flash"):
            listed = self.run_cli(group, "ls", "-o", "json")
            self.assertEqual((listed.returncode, self.run_cli(group, "-o", "json").stdout), (0, listed.stdout), listed.stderr)

    def test_evict_by_number_alone(self):
        self.start(0, [1])
        self.start(1, [0])
        self.assertIn("no node has it", self.run_cli("evict", "7").stderr)
        for node in (0, 1):
            holding = subprocess.Popen([holder, f"unix:{self.folder}/{node}.sock", "4096"], stdout=subprocess.PIPE)
            self.addCleanup(lambda held=holding: (held.kill(), held.communicate()))
            self.assertEqual(holding.stdout.read(1), b"y")

        def sessions():
            nodes = json.loads(self.run_cli("sessions", "-o", "json").stdout)["nodes"]
            return [{one["session_id"] for one in node["sessions"]} for node in nodes]

        number = str(min(set.intersection(*sessions())))
        done = self.run_cli("evict", number)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("nodes 0 and 1 have one; write NODE:SESSION", done.stderr)
        self.assertEqual(self.run_cli("evict", f"0:{number}").returncode, 0)
        done = self.run_cli("evict", number, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), {"sessions": [{"session": number, "evicted": True}]})
        self.until(lambda: not any(sessions()))

    def test_a_drain(self):
        self.start(7, [0])
        self.start(0, [7])
        holding = subprocess.Popen([holder, self.pool, "4096"], stdout=subprocess.PIPE)
        self.addCleanup(lambda: (holding.kill(), holding.communicate()))
        self.assertEqual(holding.stdout.read(1), b"y")
        waiting = subprocess.Popen([cli, "drain", "0", "--wait", "--pool", f"unix:{self.folder}/7.sock"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (waiting.kill(), waiting.communicate()))
        # The state is not cut off. The node that is asked comes first.
        for command in ("status", "nodes"):
            def rows(command=command):
                shown = self.run_cli(command, "--pool", f"unix:{self.folder}/7.sock").stdout.splitlines()
                self.assertLessEqual(max(map(len, shown)), 80)
                return [line.split()[:3] for line in shown[1:]]
            self.until(lambda: rows()[1][2].startswith("drained"))
            self.assertEqual([row[:2] for row in rows()], [["7", "n7"], ["0", "n0"]])
            self.assertEqual(rows()[0][2], "INSECURE")
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=PATIENCE_S)
        self.assertEqual((waiting.returncode, out), (130, ""))
        self.assertIn("stay drained", err)
        self.assertTrue(rows()[1][2].startswith("drained"))

    def test_past(self):
        self.start(0, [1])
        self.start(1, [0])
        self.assertEqual(self.run_cli("evict", "1:77").returncode, 1)
        done = self.run_cli("events", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        events = json.loads(done.stdout)["events"]
        self.assertEqual({e["node"] for e in events if e["event"] == "serving"}, {"n0", "n1"})
        refused = [e for e in events if e["kind"] == "refusal"]
        self.assertEqual([(e["node"], e["event"]) for e in refused], [("n1", "evict: not-found")])
        self.assertIn(f"uid={os.getuid()}", refused[0]["who"])
        table = self.run_cli("events", "--kind", "refusal").stdout.splitlines()
        self.assertEqual(len(table), 2, table)
        self.assertTrue(table[0].startswith("TIME (UTC)"), table)
        self.assertLessEqual(max(map(len, table)), 80)
        self.assertEqual(self.run_cli("events", "--kind", "gossip").returncode, 2)
        self.assertEqual(len(self.run_cli("events", "--last", "1").stdout.splitlines()), 2)
        self.assertEqual(self.run_cli("events", "--pool", "unix:/nowhere.sock").returncode, 4)

    def test_follow(self):
        first = self.start(0, [])
        follow = subprocess.Popen(
            [cli, "events", "--follow", "-o", "json", "--interval", "100ms", "--pool", self.pool],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (follow.kill(), follow.communicate()))
        lines = []

        def next_event():
            ready, _, _ = select.select([follow.stdout], [], [], PATIENCE_S)
            self.assertTrue(ready, f"nothing more after {lines}")
            lines.append(json.loads(follow.stdout.readline()))
            return lines[-1]["event"]

        self.assertEqual(next_event(), "serving")
        self.run_cli("evict", "0:5")
        self.assertEqual(next_event(), "evict: not-found")
        self.run_cli("evict", "0:6")
        self.assertEqual(next_event(), "evict: not-found")
        # The next daemon numbers its events anew.
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.start(0, [])
        self.assertEqual(next_event(), "serving")
        self.assertEqual(len(lines), 4)
        follow.send_signal(signal.SIGINT)
        self.assertEqual(follow.wait(timeout=PATIENCE_S), 130)

    def test_watch(self):
        first = self.start(0, [])
        words = [cli, "status", "--watch", "--interval", "100ms", "--pool", self.pool]
        self.assertEqual(self.run_cli("status", "--watch", "-o", "json").returncode, 2)
        piped = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (piped.kill(), piped.communicate()))

        def wait_for(word):
            for line in iter(piped.stdout.readline, ""):
                if word in line:
                    return
            self.fail(f"no {word}")

        wait_for("INSECURE")
        # It finds the daemon that comes after.
        first.send_signal(signal.SIGKILL)
        first.wait()
        wait_for("unreachable")
        self.start(0, [])
        wait_for("INSECURE")

        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        live = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs)
        self.addCleanup(lambda: (live.kill(), live.wait()))
        out = b""
        while out.count(b"INSECURE") < 2:
            self.assertTrue(select.select([ours], [], [], PATIENCE_S)[0], out)
            out += os.read(ours, 65536)
        os.write(ours, b"q")
        self.assertEqual(live.wait(timeout=PATIENCE_S), 0)
        self.assertEqual(termios.tcgetattr(theirs), before)
        os.close(theirs)
        os.close(ours)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
