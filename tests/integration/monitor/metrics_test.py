"""/metrics of a real daemon: what a job did is in it, and deploy/docs/metrics.md lists each metric.

Usage: metrics_test.py CLI DAEMON LIBRARY METRICS_MD [unittest arguments]
"""
import ctypes
import pathlib
import re
import statistics
import subprocess
import sys
import time
import unittest

from support import FLASH_DURABLE, Daemon, Job, needs
from patience import within

PROGRAMS, LIBRARY, TABLE = sys.argv[1:3], sys.argv[3], pathlib.Path(sys.argv[4])
del sys.argv[1:5]
MIB = 1 << 20


class Metrics(unittest.TestCase):
    def test_figures_agree_with_what_a_job_did_and_with_status(self):
        with Daemon(PROGRAMS, "tcp {}\n", flash_bytes=64 * MIB) as daemon:
            if daemon.json("status")["nodes"][0]["flash_off"]:
                needs.skip_case("no io_uring")
            before = daemon.metrics()
            buffer = ctypes.create_string_buffer(b"x" * (3 * MIB), 3 * MIB)
            with Job(LIBRARY, daemon.pool, b"worker \"one\"", b"tcp") as job:
                job.call("ho_register", buffer, ctypes.c_size_t(len(buffer)))
                allocation = job.allocate(3 * MIB)
                for name in ("ho_put", "ho_put", "ho_get"):
                    self.assertEqual(job.move(name, allocation, buffer), 0)
                flash = job.flash(2 * MIB, FLASH_DURABLE)
                memory = job.beside(flash, 2 * MIB)
                self.assertEqual(job.stage("ho_stage_out", flash, memory, MIB), 0)
                self.assertEqual(job.stage("ho_stage_in", flash, memory, MIB), 0)
                node = daemon.json("status")["nodes"][0]
                now = daemon.metrics()
                job.call("ho_unregister", buffer)

            tcp = 'driver="tcp",tier="ddr",direction='
            staged = 'driver="flash",tier="flash",direction='
            for way, size in ((tcp + '"put"', 6 * MIB), (tcp + '"get"', 3 * MIB), (staged + '"get"', MIB),
                              (staged + '"put"', MIB)):
                self.assertEqual(now[f"hyperoffload_operation_bytes_total{{{way}}}"], size, way)
                count = now[f"hyperoffload_operations_total{{{way}}}"]
                self.assertGreaterEqual(count, 1)
                self.assertEqual(now[f'hyperoffload_operation_duration_seconds_bucket{{{way},le="+Inf"}}'], count)
                self.assertGreater(now[f"hyperoffload_operation_duration_seconds_sum{{{way}}}"], 0)
                self.assertEqual(now[f"hyperoffload_operation_errors_total{{{way}}}"], 0)
            self.assertEqual(now['hyperoffload_tier_capacity_bytes{tier="ddr"}'], node["ddr_capacity_bytes"])
            self.assertEqual(now['hyperoffload_tier_used_bytes{tier="ddr"}'], node["ddr_granted_bytes"])
            self.assertGreater(node["ddr_granted_bytes"], 0)
            self.assertEqual(now["hyperoffload_grants_total"], 2)
            self.assertEqual(now["hyperoffload_granted_bytes_total"], node["ddr_granted_bytes"])
            self.assertEqual(now['hyperoffload_segments{state="live"}'], node["ddr_granted_bytes"] / (2 * MIB))
            self.assertEqual([now[f'hyperoffload_queue_requests{{queue="{queue}"}}'] for queue in ("data", "flash")], [0, 0])
            (path,) = node["flash"]
            self.assertEqual(now['hyperoffload_tier_used_bytes{tier="flash"}'],
                             path["capacity_bytes"] - path["free_bytes"])
            self.assertGreaterEqual(now[f'hyperoffload_flash_written_bytes_total{{path="{path["path"]}"}}'], MIB)
            self.assertEqual(now["hyperoffload_sessions"], 1)
            self.assertEqual(now["hyperoffload_flash_extents"], 1)
            held = [value for name, value in now.items() if name.startswith("hyperoffload_session_granted_bytes")
                    and r'name="worker \"one\""' in name]
            self.assertEqual(held, [node["ddr_granted_bytes"]])
            after = daemon.metrics()
            self.assertEqual(after['hyperoffload_sessions_ended_total{reason="closed"}'], 1)
            for name, value in before.items():  # counters never fall
                if name.partition("{")[0].endswith(("_total", "_count", "_bucket")):
                    self.assertGreaterEqual(after[name], value, name)

    def test_the_documentation_lists_each_metric_and_promtool_finds_nothing(self):
        documented = {}
        for line in TABLE.read_text().splitlines():
            if cells := re.match(r"\| `(hyperoffload_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", line):
                documented[cells[1]] = cells
        folder = "FOLDER/tls"
        more = (f'tcp {{}}\ntls {{ certificate: "{folder}/n/node.crt" key: "{folder}/n/node.key" '
                f'authority: "{folder}/n/ca.crt" }}\n')
        more += 'blocks { ddr_bytes: "4MiB" flash_bytes: "4MiB" }\n'
        daemon = Daemon(PROGRAMS, more, flash_bytes=16 * MIB)
        tls = str(daemon.folder / "tls")
        for words in (["init", tls], ["issue", tls, "--role", "daemon", "--name", "n", "--address", "127.0.0.1"]):
            done = subprocess.run([PROGRAMS[0], "ca", *words], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done)
        with daemon, Job(LIBRARY, daemon.pool):
            daemon.run("evict", "0:999")  # an error and a refusal
            text = daemon.read("/metrics")
            now = daemon.metrics()
            self.assertEqual(now['hyperoffload_request_errors_total{request="evict",code="not-found"}'], 1)
            for queue in ("data", "flash"):
                self.assertIn(f'hyperoffload_queue_requests{{queue="{queue}"}}', now)
            shown = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
            labels = {name: set() for name in shown}
            for series, pairs in re.findall(r"^(\w+)\{(.*)\} ", text, re.MULTILINE):
                name = series if series in labels else re.sub(r"_(bucket|sum|count)$", "", series)
                labels[name] |= set(re.findall(r'(\w+)="', pairs)) - {"le"}
        for name, kind in shown.items():
            self.assertIn(name, documented)
            self.assertEqual(documented[name][2], kind, name)
            self.assertIn(f"# HELP {name} ", text)
            self.assertLessEqual(labels[name], set(re.findall(r"`(\w+)`", documented[name][3])), name)
        for name, cells in documented.items():
            self.assertTrue(name in shown or "absent" in cells[4], name)
        needs.program("promtool", "prometheus", needs.skip_case)
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True,
                                 timeout=60, check=False)
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))

    def test_a_scrape_of_a_node_with_many_extents_is_short(self):
        extents = 10_000
        with Daemon(PROGRAMS, flash_bytes=2 << 30) as daemon:
            if daemon.json("status")["nodes"][0]["flash_off"]:
                needs.skip_case("no io_uring")
            with Job(LIBRARY, daemon.pool) as job:
                with_session = len(daemon.read("/metrics").splitlines())
                for _ in range(extents):
                    job.flash(4096)
                times = []
                for _ in range(50):
                    begun = time.monotonic()
                    daemon.read("/metrics")
                    times.append(time.monotonic() - begun)
                time.sleep(1.2)  # the flash thread publishes its figures once a second
                self.assertEqual(daemon.metrics()["hyperoffload_flash_extents"], extents)
                self.assertLess(len(daemon.read("/metrics").splitlines()), with_session + 10)
            status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
            print(f"scrape with {extents} extents: median {statistics.median(times) * 1e3:.2f} ms, longest "
                  f"{max(times) * 1e3:.2f} ms; " + " ".join(re.findall(r"VmRSS.*|RssAnon.*", status)))
            self.assertLess(statistics.median(times), within(0.02))
            own_kib = sum(int(kib) for kib in re.findall(r"(?:RssAnon|RssFile):\s+(\d+) kB", status))
            self.assertLess(own_kib, 50 << 10)  # all but the pool's memory


if __name__ == "__main__":
    unittest.main()
