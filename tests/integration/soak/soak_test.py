"""tools/soak for a short time: it passes, it finds what is wrong, and it leaves nothing behind."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest

SOAK, *PROGRAMS = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(6))
ROOT = SOAK.parents[1]
sys.path[:0] = [str(ROOT / "tools/soaking"), str(ROOT / "client/python")]
os.environ["HYPEROFFLOAD_LIBRARY"] = str(PROGRAMS[-1])
import client  # noqa: E402
import figures  # noqa: E402
import jobs  # noqa: E402

# A reference whose losses are all a little off.
LIAR = """#!{python}
import json, subprocess, sys
done = subprocess.run(["{program}", *sys.argv[1:]], capture_output=True, text=True)
result = json.loads(done.stdout)
result["losses"] = [one + 1e-6 for one in result["losses"]]
print(json.dumps(result))
"""


class Soak(unittest.TestCase):
    def setUp(self):
        name = tempfile.TemporaryDirectory(prefix="ho-soaks-", dir="/var/tmp")  # /tmp may be memory
        self.addCleanup(name.cleanup)
        self.programs, self.temporary = pathlib.Path(name.name) / "programs", pathlib.Path(name.name) / "t"
        self.programs.mkdir()
        self.temporary.mkdir()
        for program in PROGRAMS[:-1]:
            (self.programs / program.name).symlink_to(program)
        (self.programs / "libhyperoffload.so.0").symlink_to(PROGRAMS[-1])

    def start(self, *words):
        process = subprocess.Popen([sys.executable, str(SOAK), *words, "--programs", str(self.programs)], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, "TMPDIR": str(self.temporary)})
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.terminate()
        process.communicate()

    def run_to_end(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=250)
        return process.returncode, out, err

    def assert_no_process(self):
        """None of those that used the folder."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            self.assertNotIn(str(self.temporary).encode(), words)

    def test_all_goes_as_promised(self):
        code, out, err = self.run_to_end("0.1", "--seed", "5", "--round-seconds", "6", "-o", "json")
        self.assertEqual(code, 0, err)
        result = json.loads(out)
        self.assertEqual((result["seed"], result["rounds"]), (5, 1))
        self.assertGreater(result["counts"]["bytes_checked"] + result["counts"].get("steps_checked", 0), 0)
        self.assertEqual([one["node"] for one in result["daemons"]], ["keeps", "flash", "loses", "stays"])
        self.assertGreater(result["daemons"][3]["memory_bytes_max"], 0)
        self.assertGreater(result["daemons"][3]["heap_bytes"], 100_000)
        self.assertEqual(os.listdir(self.temporary), [])
        self.assert_no_process()

    def test_wrong_results_are_found_and_told_with_the_seed(self):
        liar = self.programs / "hyperoffload-compare"
        real = liar.resolve()
        liar.unlink()
        liar.write_text(LIAR.format(python=sys.executable, program=real))
        liar.chmod(0o755)
        code, out, err = self.run_to_end("1", "--seed", "6", "--round-seconds", "30")
        self.assertEqual((code, out), (1, ""), err)
        for word in ("seed 6", "round 0", "trained to other bits from step 0 on", "logs are in"):
            self.assertIn(word, err)
        self.assertEqual(len(os.listdir(self.temporary)), 1)
        self.assert_no_process()

    def test_ctrl_c_leaves_nothing(self):
        process = self.start("4", "--seed", "7")
        end = time.monotonic() + 200
        while not list(self.temporary.glob("*/job-*")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
        self.assertEqual((process.returncode, out), (130, ""), err)
        self.assertEqual(os.listdir(self.temporary), [])
        self.assert_no_process()

    def test_wrong_usage(self):
        for words in ([], ["0"], ["-1"], ["much"], ["1", "--jobs", "0"], ["1", "--nope"]):
            done = subprocess.run([sys.executable, str(SOAK), *words], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn("usage: tools/soak", done.stderr)
        done = subprocess.run([sys.executable, str(SOAK), "1", "--programs", str(self.temporary)], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("does not have all of", done.stderr)


class Parts(unittest.TestCase):
    def test_a_slope_and_its_error(self):
        value, error = figures.slope([[(t, 100 + 3 * t) for t in range(10)], [(t, 7 + 3 * t) for t in range(50, 90)]])
        self.assertAlmostEqual(value, 3)
        self.assertAlmostEqual(error, 0)
        value, error = figures.slope([[(t, (-1) ** t) for t in range(1000)]])
        self.assertLess(abs(value), 2 * error)
        self.assertIsNone(figures.slope([[(0, 1)], [(1, 1), (2, 2)]]))

    def test_growth_is_found_where_it_can_be_judged(self):
        class Nodes:
            nodes = [types.SimpleNamespace(name="stays")]

        def summary(heap, rounds=36, processes=1):
            samples = figures.Samples.__new__(figures.Samples)
            samples.nodes, samples.busy, samples.quiet = Nodes.nodes, {}, {}
            for process in range(processes):
                rows = [(50 * i, 20_000_000 + i % 3 * 4096, 30, heap(50 * i)) for i in range(rounds)]
                samples.busy["stays", process] = samples.quiet["stays", process] = rows
            return samples.summary()

        for per_hour in (0, 40 << 10, -(1 << 20)):
            self.assertEqual(figures.find_growth(summary(lambda t, one=per_hour: 2_000_000 + one * t / 3600)), [])
        leak = lambda t: 2_000_000 + (100 << 10) * t / 3600 + t % 7  # noqa: E731
        self.assertRegex(figures.find_growth(summary(leak))[0], "stays grows: heap_bytes by 102... ")
        self.assertEqual(figures.find_growth(summary(leak, rounds=12)), [])  # too few to tell
        self.assertEqual(figures.find_growth(summary(leak, processes=2)), [])  # levels differ
        noise = lambda t: 2_000_000 + (t * 7919) % 400_000  # noqa: E731
        self.assertEqual(figures.find_growth(summary(noise)), [])

    def test_one_wrong_byte_is_found(self):
        wanted = client.pattern("a", 1, size=1000)
        client.compare(bytes(wanted), wanted, "x")
        with self.assertRaisesRegex(client.Wrong, "1 of 1000 bytes are wrong, the first at 577"):
            client.compare(wanted[:577] + bytes([wanted[577] ^ 1]) + wanted[578:], wanted, "x")

    def excuse(self, kind, worked, *events, said="unavailable", evicted=False):
        job = jobs.Job.__new__(jobs.Job)
        job.kind, job.began, job.worked, job.evicted = kind, 100, worked, evicted
        nodes = {keeps: types.SimpleNamespace(keeps=keeps) for keeps in (False, True)}
        return job._find_excuse([(at, act, nodes[keeps]) for at, act, keeps in events], said)

    def test_what_may_end_a_job(self):
        lost, restarted, upgraded, drained = (120, "kill", False), (120, "kill", True), (120, "upgrade", True), (120, "drain", True)
        for kind in ("train", "memory", "objects"):
            for event in (restarted, upgraded, drained):
                self.assertIsNone(self.excuse(kind, 110, event), (kind, event))
            self.assertIsNone(self.excuse(kind, 110, (50, "kill", False)))
            self.assertEqual(self.excuse(kind, 110, lost), "node lost")
            self.assertEqual(self.excuse(kind, 130, restarted), "daemon restarted while it started")
        self.assertIsNone(self.excuse("train with copies", 110, lost))
        self.assertEqual(self.excuse("train with copies", 110, lost, (130, "kill", False)), "node lost")
        self.assertEqual(self.excuse("train with copies", None, lost), "node lost")
        self.assertEqual(self.excuse("flash", 110, upgraded), "flash or blocks ended with their daemon")
        self.assertEqual(self.excuse("train", 110, evicted=True), "evicted")


if __name__ == "__main__":
    unittest.main()
