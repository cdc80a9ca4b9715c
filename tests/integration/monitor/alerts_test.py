"""Each alert of deploy/prometheus/alerts.yml by a fault, at a real Prometheus that scrapes real daemons; and the
expressions of deploy/grafana/hyperoffload.json there.

Usage: alerts_test.py CLI DAEMON LIBRARY EXAMPLE_JOB DEPLOY_FOLDER [unittest arguments]
"""
import ctypes
import errno
import json
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

from support import FLASH_DURABLE, Daemon, Job, needs

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / folder) for folder in ("membership", "docs")]
import etcd  # noqa: E402
from pages import blocks  # noqa: E402

PROGRAMS, LIBRARY, EXAMPLE, DEPLOY = sys.argv[1:3], sys.argv[3], sys.argv[4], pathlib.Path(sys.argv[5])
del sys.argv[1:6]
MIB = 1 << 20
RULES = (DEPLOY / "prometheus/alerts.yml").read_text()
NAMES = set(re.findall(r"- alert: (\w+)", RULES))


def forbid_io_uring():
    """For the process that is about to be started: io_uring_setup fails, as in many containers."""
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050000 | errno.ENOSYS), (0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, header) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


class Prometheus:
    """Scrapes and evaluates five times a second; the rules' windows and waits are cut to seconds."""

    def __init__(self, targets):
        self.folder = tempfile.TemporaryDirectory(prefix="ho-prometheus-")
        folder = pathlib.Path(self.folder.name)
        (folder / "rules.yml").write_text(re.sub(r"\[\d+[mh]\]", "[10s]", re.sub(r"for: \d+[mh]", "for: 0s", RULES)))
        (folder / "config.yml").write_text(json.dumps({
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(folder / "rules.yml")],
            "scrape_configs": [{"job_name": "hyperoffload", "static_configs": [{"targets": targets}]}]}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/config.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"], stdin=subprocess.DEVNULL)

    def ask(self, path):
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        return self.ask("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def firing(self):
        return {(one["labels"]["alertname"], one["labels"]["instance"]) for one in self.ask("/api/v1/alerts")["alerts"]
                if one["state"] == "firing"}

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.folder.cleanup()


def instance(daemon):
    return daemon.url.removeprefix("http://")


def secured():
    """A daemon with a certificate that ends tomorrow, and with flash that has a budget."""
    daemon = Daemon(PROGRAMS, """tcp {} tcp_listen: "127.0.0.1:0" lease_ms: 600 drain_ms: 60000
tls { certificate: "FOLDER/ca/n/node.crt" key: "FOLDER/ca/n/node.key" authority: "FOLDER/ca/n/ca.crt" }
flash { path: "FOLDER/flash" write_bytes_per_day_max: 134217728 }
""", flash_bytes=32 * MIB, ddr_bytes=64 * MIB)
    for words in (["init"], ["issue", "--role", "daemon", "--name", "n", "--address", "127.0.0.1", "--days", "1"]):
        subprocess.run([PROGRAMS[0], "ca", words[0], str(daemon.folder / "ca"), *words[1:]], check=True, timeout=60,
                       stdout=subprocess.DEVNULL)
    return daemon


class Alerts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.healthy = cls.enterClassContext(Daemon(PROGRAMS, "tcp {}\n", flash_bytes=32 * MIB))
        if cls.healthy.json("status")["nodes"][0]["flash_off"]:
            needs.skip_case("no io_uring")
        cls.secured = cls.enterClassContext(secured())
        cls.broken = cls.enterClassContext(Daemon(PROGRAMS, flash_bytes=32 * MIB))
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ho-etcd-"))
        cls.etcd = cls.enterClassContext(etcd.Etcd(folder, members=1))
        listed = f'etcd {{ endpoints: "{cls.etcd.endpoints[0]}" machine_id: "lacking" id_file: "FOLDER/id" }}'
        cls.lacking = cls.enterClassContext(Daemon(PROGRAMS, f"insecure: true {listed}\n", flash_bytes=32 * MIB,
                                                   before=forbid_io_uring))
        # A pool of two: the second lists the first, which jobs dial, and the other way round.
        cls.other = cls.enterClassContext(Daemon(PROGRAMS, 'tcp {} node_id: 1 lease_ms: 600\n'))
        listed = f'nodes {{ node_id: 1 name: "n1" control_addresses: "{cls.other.pool}" }}'
        cls.doubling = cls.enterClassContext(Daemon(PROGRAMS, f"tcp {{}} lease_ms: 600 {listed}\n"))
        cls.prometheus = Prometheus([instance(one) for one in (cls.healthy, cls.secured, cls.broken, cls.lacking,
                                                               cls.doubling)])
        cls.addClassCleanup(cls.prometheus.stop)
        cls.seen = set()
        end = time.monotonic() + 60
        while True:
            try:
                if len(cls.prometheus.query("up == 1")) == 5:
                    break
            except OSError:
                pass
            assert time.monotonic() < end
            time.sleep(0.2)

    def fires(self, name, daemon, again=lambda: None):
        """Waits until it fires; `again` repeats the fault, since a window counts only what happens in it."""
        end = time.monotonic() + 60
        while (name, instance(daemon)) not in self.prometheus.firing():
            self.assertLess(time.monotonic(), end, f"{name}; firing: {self.prometheus.firing()}")
            again()
            time.sleep(0.3)
        self.seen.add(name)

    def test_1_states_of_daemons(self):
        self.fires("HyperOffloadCertificateEnds", self.secured)
        self.fires("HyperOffloadInsecure", self.lacking)
        self.assertIn("INSECURE", self.lacking.run("status").stdout)
        self.fires("HyperOffloadFlashOff", self.lacking)
        firing = self.prometheus.firing()
        self.assertEqual(firing, {("HyperOffloadCertificateEnds", instance(self.secured)),
                                  ("HyperOffloadInsecure", instance(self.lacking)),
                                  ("HyperOffloadFlashOff", instance(self.lacking))})

    def test_2_jobs_take_everything(self):
        with Job(LIBRARY, self.secured.pool) as job:
            flash = job.flash(2 * MIB, FLASH_DURABLE)
            memory = job.beside(flash, 2 * MIB)
            while job.stage("ho_stage_out", flash, memory, MIB) == 0:
                pass  # until the budget ends
            self.fires("HyperOffloadFlashBudget", self.secured)
            left = self.secured.json("status")["nodes"][0]
            job.allocate(left["ddr_capacity_bytes"] - left["ddr_granted_bytes"])
            self.fires("HyperOffloadMemoryFull", self.secured)
            (path,) = left["flash"]
            job.flash(path["free_bytes"] - MIB)
            self.fires("HyperOffloadFlashFull", self.secured)
            job.call("ho_flash_free", flash)

    def test_3_faults_of_peers(self):
        def wrong():
            for _ in range(15):
                self.secured.run("evict", "0:999")

        self.fires("HyperOffloadRefusals", self.secured, wrong)
        port = int(re.search(r" tcp=tcp:127.0.0.1:(\d+)", self.secured.log.read_text())[1])

        def plain():
            for _ in range(8):
                with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
                    one.sendall(b"\x16\x03\x01\x00\x05hello")  # TLS that is none
                    one.settimeout(10)
                    while one.recv(4096):
                        pass

        self.fires("HyperOffloadTlsFailures", self.secured, plain)

        def killed():
            job = subprocess.Popen([EXAMPLE, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32",
                                    "--batch", "2", "--steps", "1000000", "--device-memory", "60%", "--pool",
                                    self.secured.pool], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            end = time.monotonic() + 30
            while self.secured.json("status")["nodes"][0]["sessions"] == 0:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
            job.kill()
            job.wait()
            time.sleep(1)

        self.fires("HyperOffloadLeaseLapsed", self.secured, killed)

    def test_4_flash_fails(self):
        with Job(LIBRARY, self.broken.pool) as job:
            flash = job.flash(4 * MIB, FLASH_DURABLE)
            memory = job.beside(flash, 2 * MIB)
            self.fires("HyperOffloadOperationErrors", self.broken,
                       lambda: job.stage("ho_stage_in", flash, memory, MIB))  # nothing was written there
            # The file may not be written any more, as if its device had failed.
            resource.prlimit(self.broken.process.pid, resource.RLIMIT_FSIZE, (4096, 4096))
            self.assertNotEqual(job.stage("ho_stage_out", flash, memory, MIB), 0)
            self.fires("HyperOffloadFlashReadOnly", self.broken)

    def test_5_etcd_is_lost(self):
        self.etcd.kill(0)
        self.fires("HyperOffloadMembership", self.lacking)

    def test_6_a_job_waits_for_its_link(self):
        job = subprocess.Popen([EXAMPLE, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32",
                                "--batch", "2", "--steps", "1000000", "--device-memory", "60%", "--link", "20MiB/s",
                                "--pool", self.secured.pool], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.fires("HyperOffloadJobStalls", self.secured)
            for panel in json.loads((DEPLOY / "grafana/hyperoffload.json").read_text())["panels"]:
                for target in panel["targets"]:
                    expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "10s")
                    self.assertTrue(self.prometheus.query(expression), expression)
        finally:
            job.kill()
            job.wait()

    def test_6b_a_job_loses_one_of_two_homes(self):
        job = subprocess.Popen([EXAMPLE, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32",
                                "--batch", "2", "--steps", "1000000", "--device-memory", "60%", "--copies",
                                "2,ACTIVATION=2,GRADIENT=2,INPUT=2", "--pool", self.doubling.pool],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            series, steps = (f'hyperoffload_session_{what}{{session="1",name="gpt"}}' for what in ("copies_missing", "steps_total"))
            end = time.monotonic() + 60
            while self.doubling.metrics().get(steps, 0) < 100:  # it has its plan, and values in their homes
                self.assertLess(time.monotonic(), end)
                time.sleep(0.1)
            self.assertEqual(self.doubling.metrics()[series], 0)
            self.other.stop(kill=True)
            self.fires("HyperOffloadCopiesMissing", self.doubling)
            (session,) = json.loads(self.doubling.read("/status.json"))["sessions"]
            self.assertEqual(session["copies_missing"], self.doubling.metrics()[series])
        finally:
            job.kill()
            job.wait()

    def test_7_the_daemon_ends(self):
        job = Job(LIBRARY, self.secured.pool)
        self.secured.process.send_signal(signal.SIGTERM)
        self.fires("HyperOffloadDraining", self.secured)
        self.secured.stop(kill=True)
        self.fires("HyperOffloadDown", self.secured)
        job.lib.ho_disconnect(job.handle)

    def test_8_each_alert_has_fired_and_none_for_a_healthy_daemon(self):
        self.assertEqual(self.seen, NAMES)
        self.assertEqual([one for one in self.prometheus.query("ALERTS") if
                          one["metric"]["instance"] == instance(self.healthy)], [])


class Documents(unittest.TestCase):
    def test_rules_and_dashboard_name_metrics_that_are_documented(self):
        table = (DEPLOY / "docs/metrics.md").read_text()
        documented = set(re.findall(r"^\| `(hyperoffload_\w+)`", table, re.MULTILINE))
        board = json.loads((DEPLOY / "grafana/hyperoffload.json").read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        self.assertGreater(len(expressions), 20)
        for text in [*expressions, *re.findall(r"expr: (.*)", RULES)]:
            for name in re.findall(r"hyperoffload_\w+", text):
                self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), documented)
        self.assertEqual(set(re.findall(r"^\| `(HyperOffload\w+)`", table, re.MULTILINE)), NAMES)
        ids = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_promtool_accepts_the_rules_and_configuration_of_the_page(self):
        page = DEPLOY / "docs/metrics.md"
        installed, here = "/usr/share/doc/hyperoffload/alerts.yml", str(DEPLOY / "prometheus/alerts.yml")
        (configuration,), (command,) = (blocks(page, kind) for kind in ("yaml", "sh"))
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(configuration.replace(installed, here))
            file.flush()
            for words in (command.replace(installed, here).split(), ["promtool", "check", "config", file.name]):
                done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done)


if __name__ == "__main__":
    needs.program("prometheus", "prometheus")
    etcd.needed()
    unittest.main()
