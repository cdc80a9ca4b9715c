"""A job over TLS from its start to its end, with the commands around it.

Usage: tls_job_test.py HYPEROFFLOAD HYPEROFFLOADD HYPEROFFLOAD_GPT [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

COMMAND, DAEMON, GPT = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
MODEL = "--layers 2 --dim 64 --heads 2 --seq 32 --batch 2 --device-memory 60%".split()


class Job(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-tls-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ca = self.folder / "ca"
        self.call_well("ca", "init", self.ca)
        self.issue("daemon", "node1", "--address", "127.0.0.1")
        for role in ("job", "reader", "admin"):
            self.issue(role, role)
        self.tls = self.folder / "tls"
        shutil.copytree(self.ca / "node1", self.tls)
        self.config = config = self.folder / "config"
        config.write_text(f'''node_name: "n1" ddr_bytes: 134217728 segment_bytes: 8388608 unix_socket: "{self.folder}/control.sock"
            tcp_listen: "127.0.0.1:0" tcp {{ }} tls {{ certificate: "{self.tls}/node.crt" key: "{self.tls}/node.key"
            authority: "{self.tls}/ca.crt" }}''')
        self.log = self.folder / "log"
        with open(self.log, "wb") as log:
            self.daemon = subprocess.Popen([DAEMON, "--config", config], stderr=log)
        self.addCleanup(self.end_daemon)
        near = f"unix:{self.folder}/control.sock"
        self.eventually(lambda: self.call("nodes", "--pool", near).returncode == 0)
        nodes = json.loads(self.call_well("nodes", "--pool", near, "-o", "json").stdout)["nodes"]
        self.pool = nodes[0]["control_addresses"][1]

    def end_daemon(self):
        self.daemon.terminate()
        self.assertEqual(self.daemon.wait(timeout=60), 0, self.log.read_text())

    def eventually(self, done):
        end = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), end, self.log.read_text())
            self.assertIsNone(self.daemon.poll() if hasattr(self, "daemon") else None)
            time.sleep(0.05)

    def call(self, *words, tls=None):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HYPEROFFLOAD_")}
        if tls:
            environment["HYPEROFFLOAD_TLS"] = str(self.ca / tls)
        return subprocess.run([COMMAND, *map(str, words)], capture_output=True, text=True, check=False, timeout=120,
                              env=environment)

    def call_well(self, *words, tls=None):
        done = self.call(*words, tls=tls)
        self.assertEqual(done.returncode, 0, done)
        return done

    def issue(self, role, name, *more):
        self.call_well("ca", "issue", self.ca, "--role", role, "--name", name, *more)

    def gpt(self, *words):
        return [GPT, *MODEL, "--pool", self.pool, *map(str, words), "-o", "json"]

    def train(self, *words):
        done = subprocess.run(self.gpt("--steps", "4", *words), capture_output=True, text=True, check=False, timeout=120)
        return done

    def test_a_job_trains_over_tls_to_the_same_losses(self):
        certificate = ("--tls", self.ca / "job")
        over_tls = self.train("--transport", "tcp", *certificate)
        self.assertEqual(over_tls.returncode, 0, over_tls)
        near = self.train("--transport", "local", *certificate)
        self.assertEqual(near.returncode, 0, near)
        self.assertEqual(json.loads(over_tls.stdout)["losses"], json.loads(near.stdout)["losses"])
        self.assertEqual(json.loads(over_tls.stdout)["transport"], "tcp")

    def test_a_job_without_the_right_certificate_learns_why(self):
        for words, why in (((), "this daemon wants TLS; name the folder"),
                           (("--tls", self.ca / "reader"), "sessions need a certificate of role job")):
            done = self.train("--transport", "tcp", *words)
            self.assertEqual(done.returncode, 4, done)
            self.assertIn(why, done.stderr)

    def test_a_certificate_for_another_address_is_noticed(self):
        words = 'the certificate "other" is for other, 10.0.0.4, and not for 127.0.0.1, by which others reach this node'

        def check():
            done = subprocess.run([DAEMON, "--config", self.config, "--check-config"], capture_output=True, text=True,
                                  timeout=120)
            self.assertEqual(done.returncode, 0, done)
            return done.stdout

        self.assertNotIn("warning", check())
        self.assertNotIn("by its certificate", self.log.read_text())
        shutil.rmtree(self.tls)
        self.issue("daemon", "other", "--address", "10.0.0.4", "--out", self.tls)
        self.assertIn(f"warning: {self.config}:2: tls: ", check())
        self.assertIn(words, check())
        doctor = json.loads(self.call("doctor", "--config", self.config, "-o", "json").stdout)
        tls, = (each for each in doctor["checks"] if each["name"] == "tls")
        self.assertEqual(tls["state"], "warning")
        self.assertIn(words, tls["found"])
        self.daemon.send_signal(signal.SIGHUP)
        self.eventually(lambda: "others will refuse this node by its certificate" in self.log.read_text())
        self.eventually(lambda: "certificates reloaded" in self.log.read_text())

    def test_status_says_how_the_node_is_protected(self):
        status = json.loads(self.call_well("status", "--pool", self.pool, "-o", "json", tls="reader").stdout)["nodes"][0]
        self.assertEqual((status["insecure"], status["unprotected"]), (False, []))
        self.assertRegex(status["certificate_ends"], r"^\d{4}-\d\d-\d\d ")
        self.assertIn("serving ", self.call_well("status", "--pool", self.pool, tls="reader").stdout)
        done = self.call("status", "--pool", self.pool)
        self.assertEqual(done.returncode, 4)
        self.assertIn("HYPEROFFLOAD_TLS", done.stderr)

    def test_the_matrix_is_measured_over_tls(self):
        done = self.call_well("bench", "matrix", "--pool", self.pool, "--seconds", "0.2", "--transport", "tcp", "-o", "json",
                              tls="job")
        node, = json.loads(done.stdout)["nodes"]
        self.assertEqual(node["driver"], "tcp")
        self.assertGreater(len(node["rows"]), 0)

    def test_certificates_are_renewed_under_a_running_job(self):
        job = subprocess.Popen(self.gpt("--steps", "100000", "--transport", "tcp", "--tls", self.ca / "job"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.communicate)
        self.addCleanup(job.kill)

        def sessions():
            return json.loads(self.call_well("sessions", "--pool", self.pool, "-o", "json",
                                            tls="admin").stdout)["nodes"][0]["sessions"]

        self.eventually(lambda: sessions() and sessions()[0]["granted_bytes"] > 0)
        shutil.rmtree(self.tls)
        self.issue("daemon", "node1", "--address", "127.0.0.1", "--out", self.tls)
        self.daemon.send_signal(signal.SIGHUP)
        self.eventually(lambda: "certificates reloaded" in self.log.read_text())
        time.sleep(1)
        self.assertIsNone(job.poll(), "the job goes on")
        mine = sessions()[0]
        self.assertIn("(job job)", mine["peer"])
        self.call_well("evict", f"0:{mine['session_id']}", "--pool", self.pool, tls="admin")
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 4, (out, err))
        self.assertIn("node 0 (n1, tcp:", err)  # the lease or a transfer, whichever comes first


if __name__ == "__main__":
    unittest.main()
