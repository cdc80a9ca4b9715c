"""`hyperoffload ca`, and what `doctor` says of certificates.

Usage: ca_test.py HYPEROFFLOAD [unittest arguments]
"""

import json
import os
import pathlib
import ssl
import stat
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv.pop(1))


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=60)


def shake_hands(server, client, name):
    """A handshake between two bundles, by Python's ssl. Raises ssl.SSLError where one end refuses the other."""
    pipes = [ssl.MemoryBIO() for _ in range(4)]
    ends = []
    for folder, side, into, out in ((server, True, pipes[0], pipes[1]), (client, False, pipes[1], pipes[0])):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side else ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(folder / "node.crt", folder / "node.key")
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        ends.append(context.wrap_bio(into, out, server_side=side, server_hostname=None if side else name))
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ends[0].getpeercert()


class Authority(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="ho-ca-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ca = self.folder / "ca"
        self.assertEqual(run("ca", "init", self.ca).returncode, 0)

    def issue(self, role, name, *more):
        done = run("ca", "issue", self.ca, "--role", role, "--name", name, *more, "-o", "json")
        self.assertEqual(done.returncode, 0, done)
        return json.loads(done.stdout)["certificates"][0]

    def refused(self, *words):
        done = run("ca", *words)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done)
        return done.stderr

    def shown(self, path, code=0):
        done = run("ca", "show", path, "-o", "json")
        self.assertEqual(done.returncode, code, done)
        return json.loads(done.stdout)["certificates"]

    def test_keys_are_private_and_nothing_is_replaced(self):
        self.issue("daemon", "node1", "--address", "10.0.0.1")
        bundle = self.ca / "node1"
        for folder in (self.ca, bundle):
            self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        for key in (self.ca / "ca.key", bundle / "node.key"):
            self.assertEqual(stat.S_IMODE(key.stat().st_mode), 0o600)
        before = {file: file.read_bytes() for file in self.ca.rglob("*") if file.is_file()}
        self.assertEqual(len(before), 5)
        self.assertIn("exists; it is not replaced", self.refused("init", self.ca))
        self.assertIn("exists; it is not replaced", self.refused("issue", self.ca, "--role", "job", "--name", "node1"))
        self.assertEqual(before, {file: file.read_bytes() for file in self.ca.rglob("*") if file.is_file()})

    def test_what_it_issues_works_between_two_ends(self):
        long = ".".join(["n" * 62] * 4)
        made = self.issue("daemon", "node1", "--address", "10.0.0.1", "--address", "::1", "--address", "n1.cluster",
                          "--address", long)
        self.assertEqual((made["role"], made["addresses"]), ("daemon", ["node1", "10.0.0.1", "::1", "n1.cluster", long]))
        self.assertEqual(made["days_left"], 365)
        for role in ("job", "admin", "reader"):
            self.issue(role, "me-" + role)
            for name in ("node1", "n1.cluster", "10.0.0.1", "::1", long):
                subject = dict(pair for part in shake_hands(self.ca / "node1", self.ca / f"me-{role}", name)["subject"]
                               for pair in part)
                self.assertEqual(subject, {"commonName": "me-" + role, "organizationalUnitName": "hyperoffload-" + role})
        with self.assertRaisesRegex(ssl.SSLError, "mismatch"):
            shake_hands(self.ca / "node1", self.ca / "me-job", "10.0.0.2")
        with self.assertRaisesRegex(ssl.SSLError, "(?i)purpose"):  # a job cannot stand for a daemon
            shake_hands(self.ca / "me-job", self.ca / "me-admin", "me-job")

    def test_requests_that_make_no_sense_are_refused(self):
        self.assertIn("needs the addresses", self.refused("issue", self.ca, "--role", "daemon", "--name", "n"))
        self.assertIn("none of daemon, job", self.refused("issue", self.ca, "--role", "root", "--name", "n"))
        for name in ("../n", "a/b", "", "-n", ".n", "a b", "n" * 65):
            self.refused("issue", self.ca, "--role", "job", "--name=" + name)
        self.assertIn("1 to 253", self.refused("issue", self.ca, "--role", "daemon", "--name", "n", "--address", "n" * 254))
        self.refused("issue", self.ca, "--role", "job", "--name", "n", "--days", "0")
        self.assertIn("has no authority", self.refused("issue", self.folder, "--role", "job", "--name", "n"))
        (self.ca / "ca.key").chmod(0o640 | stat.S_IROTH)
        self.assertIn("chmod 0600", self.refused("issue", self.ca, "--role", "job", "--name", "n"))
        self.assertEqual(sorted(file.name for file in self.ca.iterdir()), ["ca.crt", "ca.key"])

    def test_show_lists_all_and_names_what_cannot_be_used(self):
        self.issue("job", "trainer", "--days", "10")
        self.issue("reader", "anna")
        shown = self.shown(self.ca)
        self.assertEqual([(each["name"], each["role"], each["days_left"], each["problem"]) for each in shown],
                         [("hyperoffload-ca", "authority", 3650, ""), ("anna", "reader", 365, ""), ("trainer", "job", 10, "")])
        self.assertEqual(self.shown(self.ca / "anna/node.crt"), [shown[1]])
        (self.ca / "anna/node.key").write_bytes((self.ca / "trainer/node.key").read_bytes())
        self.assertIn("not the key of the certificate", self.shown(self.ca / "anna", 1)[1]["problem"])

    def test_doctor_looks_at_a_daemons_certificates(self):
        self.issue("daemon", "node1", "--address", "127.0.0.1")
        self.issue("daemon", "brief", "--address", "127.0.0.1", "--days", "7")
        self.issue("job", "trainer")

        def check(name, block="tls", endpoint=""):
            files = self.ca / name
            config = self.folder / "config"
            config.write_text(f'ddr_bytes: 67108864 segment_bytes: 8388608 unix_socket: "{self.folder}/s" {block} {{ {endpoint} certificate: '
                              f'"{files}/node.crt" key: "{files}/node.key" authority: "{files}/ca.crt" }}')
            checks = json.loads(run("doctor", "--config", config, "-o", "json").stdout)["checks"]
            return next(each for each in checks if each["name"] == block)

        self.assertEqual((check("node1")["state"], check("node1")["fix"]), ("ok", ""))
        self.assertEqual(check("brief")["state"], "warning")
        self.assertEqual(check("trainer")["state"], "failed")
        self.assertIn("--role daemon", check("trainer")["fix"])
        (self.ca / "node1/node.key").chmod(0o644)
        self.assertEqual(check("node1")["state"], "failed")
        self.assertIn("chmod 0600", check("node1")["found"])
        endpoint = 'endpoints: "https://127.0.0.1:2379"'
        self.assertEqual(check("trainer", "etcd", endpoint)["state"], "ok")
        self.assertEqual(check("node1", "etcd", endpoint)["state"], "failed")
        self.assertIn("chmod 0600", check("node1", "etcd", endpoint)["found"])


if __name__ == "__main__":
    unittest.main()
