"""Users and groups of the Unix socket: who may open sessions, see others and administer, and quotas. Needs root, to be others."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from needs import skip, skip_case  # noqa: E402

cli, daemon, gpt, library, package = sys.argv[1:6]
PATIENCE_S = 60
# Numbers that no user of this machine needs to have. All are in the socket's group, which is root's here.
ALICE, BOB, CAROL, OPS = 61001, 61002, 61003, 61900


JOB = """
import ctypes, os, sys
from hyperoffload._pool import blocks as _blocks, library as _library
lib, user = _library.library(), int(sys.argv[2])
os.setgroups([0]), os.setgid(user), os.setuid(user)  # from here on: others may not run this interpreter
pool = _library.Pool(sys.argv[1], "job")
lib.ho_flash_allocate.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p]
def flash(size, policy):
    held = ctypes.c_void_p()
    return None if lib.ho_flash_allocate(pool.handle, size, policy, ctypes.byref(held)) == 0 else lib.ho_last_error().decode()
def blocks(count):
    data = ctypes.create_string_buffer(1 << 20)
    store = _blocks.Blocks(sys.argv[1])
    return sum(store.run(_blocks.PUT, [(f"key {i}", ctypes.addressof(data), 1 << 20)])[0] for i in range(count))
def fetch(count):
    import threading
    store, data = _blocks.Blocks(sys.argv[1]), ctypes.create_string_buffer(2 * count << 20)
    places = [ctypes.addressof(data) + (i << 20) for i in range(2 * count)]
    blocks = [(f"key {i}", place, 1 << 20) for i, place in enumerate(places)]
    while not all(store.run(_blocks.PUT, blocks)): pass  # on a busy machine a put may miss its deadline
    def again(first):
        mine = [(f"key {i}", places[i], 1 << 20) for i in range(first, first + count)]
        while sum(store.run(_blocks.GET, mine)) >= 0: pass
    threading.Thread(target=again, args=(0,)).start()
    again(count)
def shared(op, secret=""):
    data = ctypes.create_string_buffer(1 << 20)
    store = _blocks.Blocks(sys.argv[1], tenant="chat", secret=secret)
    keys = [f"key {i}" for i in range(4)]
    return sum(store.run(op, keys if op == _blocks.EXISTS else [(key, ctypes.addressof(data), 1 << 20) for key in keys]))
"""


# Opens and greets connections, says how many were served and what the first one heard that was not, and waits.
CROWD = """
import os, resource, socket, sys
path, user, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setgroups([0]), os.setgid(user), os.setuid(user)
hello = b"\\x08\\x01\\x12\\x09\\x08\\x01\\x12\\x03job\\x18\\x01"
served, refused, held = 0, "", []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX)
    held.append(one)
    one.connect(path)
    one.sendall(len(hello).to_bytes(4, "little") + b"\\0\\0HO" + hello)
    answer = one.recv(4096)
    if b"connections" in answer:
        refused = refused or answer.decode(errors="replace")
    else:
        served += 1
print(served, repr(refused), flush=True)
sys.stdin.read()
"""


class Access(unittest.TestCase):
    def setUp(self):
        # Other users reach it there, whatever TMPDIR is.
        name = tempfile.TemporaryDirectory(prefix="ho-access-", dir="/var/tmp")
        self.addCleanup(name.cleanup)
        self.folder = pathlib.Path(name.name)
        self.folder.chmod(0o755)
        self.pool = f"unix:{self.folder}/c.sock"
        self.config = self.folder / "c.textproto"

    def write(self, more):
        self.config.write_text(f'node_name: "n" ddr_bytes: "128MiB" segment_bytes: "2MiB" lease_ms: 600000\n'
                               f'unix_socket: "{self.folder}/c.sock"\n{more}\n')

    def start(self, more, descriptors=None):
        self.write(more)
        limit = ["prlimit", f"--nofile={descriptors}"] if descriptors else []
        self.daemon = subprocess.Popen([*limit, daemon, "--config", str(self.config)], stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (self.daemon.kill(), self.daemon.communicate()))
        self.until(lambda: self.run_as(0, "status").returncode == 0)

    def start_with_flash(self, more):
        flash = self.folder / "flash"
        os.close(os.open(flash, os.O_CREAT | os.O_RDWR, 0o600))
        os.truncate(flash, 64 << 20)
        self.start(f'flash {{ path: "{flash}" }} {more}')
        if json.loads(self.run_as(0, "status", "-o", "json").stdout)["nodes"][0]["flash_off"]:
            skip_case("no io_uring")

    def until(self, done):
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.assertLess(time.monotonic(), end, "waited in vain")
            time.sleep(0.05)

    def run_as(self, user, *words, groups=()):
        return subprocess.run([cli, *words, "--pool", self.pool], capture_output=True, text=True, timeout=PATIENCE_S,
                              user=user, group=user, extra_groups=[0, *groups])

    def job(self, user, size="4KiB", **more):
        """Opens a session, takes memory and moves bytes."""
        return self.run_as(user, "bench", "transport", "--transport", "local", "--size", size, "--inflight", "1",
                           "--seconds", "0.1", **more)

    def check_refused(self, done, words):
        self.assertNotEqual(done.returncode, 0, done.stdout)
        self.assertIn(words, done.stderr)

    def test_roles(self):
        self.start(f'access {{ jobs: "{ALICE}" admins: "@{OPS}" }}')
        self.assertEqual(self.job(ALICE).returncode, 0)
        self.check_refused(self.job(BOB), "access { jobs }")
        self.assertEqual(self.run_as(BOB, "status").returncode, 0)
        for words in (("evict", "0:9"), ("drain", "0"), ("undrain", "0"), ("upgrade", "0"), ("flash", "free", "0:1"),
                      ("blocks", "clear", "--tenant", "a")):
            self.check_refused(self.run_as(ALICE, *words), "access { admins }")
        # A group that is not the user's first one; and root, who is in no list.
        for done in (self.run_as(BOB, "evict", "0:9", groups=[OPS]), self.run_as(0, "evict", "0:9")):
            self.check_refused(done, "no session 9")
        events = json.loads(self.run_as(0, "events", "--kind", "refusal", "-o", "json").stdout)["events"]
        self.assertIn(("evict: permission-denied", ALICE), [
            (one["event"], int(one["who"].split("uid=")[1].split()[0])) for one in events])
        # SIGHUP changes it for connections from then on; a wrong file changes nothing.
        self.write(f'access {{ jobs: "nobody-of-this-name" }}')
        self.daemon.send_signal(signal.SIGHUP)
        self.until(lambda: "stays as it was" in self.run_as(0, "events", "--kind", "state").stdout
                   or "users of the conf" in self.run_as(0, "events", "-o", "wide").stdout)
        self.check_refused(self.job(BOB), "access { jobs }")
        self.write("")
        self.daemon.send_signal(signal.SIGHUP)
        self.until(lambda: self.job(BOB).returncode == 0)

    def test_names(self):
        self.start(f'access {{ viewers: "{CAROL}" }}')
        holder = subprocess.Popen(
            [cli, "bench", "transport", "--transport", "local", "--size", "4KiB", "--inflight", "1", "--seconds", "60",
             "--pool", self.pool], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=ALICE, group=ALICE,
            extra_groups=[0])
        self.addCleanup(lambda: (holder.kill(), holder.wait()))

        def seen_by(user):
            done = self.run_as(user, "sessions", "-o", "json")
            return [one["peer"] for one in json.loads(done.stdout)["nodes"][0]["sessions"]]

        self.until(lambda: seen_by(0))
        for user in (ALICE, CAROL, 0):
            self.assertIn(f"uid={ALICE}", seen_by(user)[0], user)
        self.assertEqual(seen_by(BOB), ["hidden"])
        events = json.loads(self.run_as(BOB, "events", "-o", "json").stdout)["events"]
        self.assertFalse([one for one in events if f"uid={ALICE}" in one["who"]], events)
        self.check_refused(self.run_as(BOB, "blocks", "ls"), "access { viewers }")
        self.assertEqual(self.run_as(CAROL, "blocks", "ls").returncode, 0)

    def test_quotas(self):
        self.start(f'quotas {{ user: "{ALICE}" ddr_bytes: "16MiB" }}\nquotas {{ user: "{CAROL}" ddr_bytes: "100MiB" }}\n'
                   "quotas { sessions: 0 }")
        for user in (0, CAROL):
            done = self.job(user)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.job(ALICE).returncode, 4)
        self.check_refused(self.job(BOB), f"uid {BOB} has 0 sessions on n, the quota")
        # A job hears the node's reason, not only what the pool has.
        trained = subprocess.run([gpt, "train", "--layers", "2", "--dim", "256", "--heads", "2", "--seq", "32", "--batch", "2",
                                  "--device-memory", "40%", "--pool", self.pool, "--steps", "1"], capture_output=True,
                                 text=True, timeout=PATIENCE_S, user=ALICE, group=ALICE, extra_groups=[0])
        self.assertEqual(trained.returncode, 4, trained)
        self.check_refused(trained, f"the quota of uid {ALICE} on n is 16.0 MiB, of which it has ")
        events = json.loads(self.run_as(0, "events", "--kind", "refusal", "-o", "json").stdout)["events"]
        self.assertEqual({one["event"] for one in events}, {"quota"})
        for words in (f"the quota of uid {ALICE} on n is 16.0 MiB, of which it has ", f"uid {BOB} has 0 sessions on n, the quota"):
            self.assertTrue([one for one in events if words in one["detail"]], (words, events))

    def test_nobody_takes_all_sessions(self):
        """So many descriptors allow 40 sessions; one user gets half."""
        self.start('tcp { address: "127.0.0.1" } insecure: true', descriptors=160)
        script = """
held = []
try:
    while True: held.append(_library.Pool(sys.argv[1], "job"))
except _library.Error as error: print(1 + len(held), error, flush=True)
sys.stdin.read()
"""
        taker = subprocess.Popen([sys.executable, "-c", JOB + script, self.pool, str(BOB)], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True, env=self.environment())
        self.addCleanup(lambda: (taker.kill(), taker.communicate()))
        told = taker.stdout.readline()
        self.assertTrue(told.startswith("20 exhausted: "), told)
        self.assertIn(f"uid {BOB} has 20 sessions on n, the quota", told)
        for user in (ALICE, 0):
            self.assertEqual(self.job(user).returncode, 0)

    def test_nobody_takes_all_connections(self):
        self.start("")
        crowd = subprocess.Popen([sys.executable, "-c", CROWD, f"{self.folder}/c.sock", str(BOB), "560"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (crowd.kill(), crowd.communicate()))
        served, refused = crowd.stdout.readline().split(" ", 1)
        self.assertEqual(int(served), 512)
        self.assertIn(f"uid {BOB} has 512 connections, the limit", refused)
        for user in (ALICE, 0):
            self.assertEqual(self.run_as(user, "status").returncode, 0)
            self.assertEqual(self.job(user).returncode, 0)

    def test_quotas_of_flash_and_blocks(self):
        self.start_with_flash(f'blocks {{ ddr_bytes: "32MiB" flash_bytes: "32MiB" }}\n'
                              f'quotas {{ user: "{ALICE}" flash_bytes: "8MiB" blocks_bytes: "4MiB" }}')
        for user, most in ((ALICE, 8), (BOB, 32), (0, 32)):
            done = self.python_as(user, f"flash({most - 1} << 20, 0); flash(1 << 20, 1); print(flash(1 << 20, 0))")
            self.assertEqual(done.returncode, 0, done.stderr)
            words = f"needs 1.00 MiB of flash, but the quota of uid {ALICE} is 8.00 MiB, of which it has 8.00 MiB"
            self.assertIn(words if user == ALICE else "None", done.stdout)
        # Scratch ended with its job; durable flash counts for its user until somebody frees it.
        used = {one["owner"]: one for one in json.loads(self.run_as(0, "status", "-o", "json").stdout)["nodes"][0]["users"]}
        alice = used[f"uid {ALICE}"]
        self.assertEqual((alice["flash_bytes"], alice["flash_bytes_max"], alice["sessions"]), (1 << 20, 8 << 20, 0))
        self.assertNotIn("flash_bytes_max", used[f"uid {BOB}"])
        self.assertIn(f"uid {ALICE}: DDR 0 B, flash 1.00 MiB of 8.00 MiB", self.run_as(0, "status", "-o", "wide").stdout)
        # Beyond its quota a user's own blocks make room.
        for user, most in ((ALICE, 4 << 20), (BOB, 32 << 20)):
            done = self.python_as(user, "print(blocks(20))")
            self.assertEqual((done.returncode, done.stdout), (0, "20\n"), done.stderr)
            nodes = json.loads(self.run_as(0, "status", "-o", "json").stdout)["nodes"]
            held = {one["owner"]: one["blocks_bytes"] for one in nodes[0]["users"]}[f"uid {user}"]
            self.assertTrue(0 < held <= most, (user, held))
            self.assertEqual(held == 4 << 20, user == ALICE, held)
        # Blocks on flash are a part of the user's flash: beside 1 MiB there is room for three extents of 2 MiB.
        self.until(lambda: self.python_as(ALICE, "blocks(20)").returncode == 0 and self.flash_of(ALICE) >= 7 << 20)
        self.assertEqual(self.flash_of(ALICE), 7 << 20)

    def links(self):
        """By user: bytes in, bytes out, and milliseconds that transfers waited for their turn."""
        (node,) = json.loads(self.run_as(0, "status", "-o", "json").stdout)["nodes"]
        return {one["owner"]: (one["link_in_bytes"], one["link_out_bytes"], one["link_waited_ms"]) for one in node["users"]}

    def test_users_share_a_link_by_weight(self):
        self.start(f'transport: "tcp" tcp {{ link_bytes_per_s: "32MiB" }} blocks {{ ddr_bytes: "64MiB" }}\n'
                   f'quotas {{ user: "{ALICE}" link_weight: 3 }}')
        # Bob asks for twice as much at a time as Alice, and has three jobs.
        for user, count in ((ALICE, 8), *3 * [(BOB, 16)]):
            job = subprocess.Popen([sys.executable, "-c", JOB + f"fetch({count})", self.pool, str(user)], env=self.environment())
            self.addCleanup(lambda job=job: (job.kill(), job.wait()))
        alice, bob = f"uid {ALICE}", f"uid {BOB}"
        self.until(lambda: min(self.links().get(one, (0, 0, 0))[1] for one in (alice, bob)) > 8 << 20)
        start = time.monotonic()
        before = self.links()
        self.until(lambda: self.links()[alice][1] - before[alice][1] > 64 << 20)
        after = self.links()
        took = time.monotonic() - start
        moved = {one: after[one][1] - before[one][1] for one in (alice, bob)}
        self.assertTrue(2.4 < moved[alice] / moved[bob] < 3.6, moved)
        self.assertLess(sum(moved.values()), took * (32 << 20) + (1 << 20))
        self.assertGreater(after[bob][2], before[bob][2])
        words = self.run_as(0, "status", "-o", "wide").stdout
        self.assertRegex(words, f"{alice}: DDR [^;]*, tcp in .* out .* waited ")

    def test_a_user_beyond_the_quota_of_flash_takes_none_from_others(self):
        self.start_with_flash(f'blocks {{ ddr_bytes: "8MiB" flash_bytes: "8MiB" }}\n'
                              f'quotas {{ user: "{BOB}" flash_bytes: "1MiB" }}')
        self.until(lambda: self.python_as(ALICE, "blocks(20)").returncode == 0 and self.flash_of(ALICE) == 8 << 20)
        for _ in range(4):  # the store asks again after a second
            self.assertEqual(self.python_as(BOB, "print(blocks(20))").returncode, 0)
            time.sleep(1)
            self.assertEqual((self.flash_of(ALICE), self.flash_of(BOB)), (8 << 20, 0))

    def test_each_user_who_is_refused_is_in_the_log(self):
        self.start("")
        for user in (ALICE, BOB, ALICE):
            self.assertNotEqual(self.run_as(user, "evict", "0:999").returncode, 0)
        self.daemon.send_signal(signal.SIGINT)
        log = self.daemon.communicate(timeout=PATIENCE_S)[1]
        self.assertEqual(self.daemon.returncode, 130)
        refused = [line for line in log.splitlines() if "kind=refusal" in line]
        for user in (ALICE, BOB):
            self.assertEqual(sum(f"uid={user}" in line for line in refused), 1, log)

    def flash_of(self, user):
        (node,) = json.loads(self.run_as(0, "status", "-o", "json").stdout)["nodes"]
        return {one["owner"]: one["flash_bytes"] for one in node["users"]}.get(f"uid {user}", 0)

    def test_users_share_the_blocks_of_a_tenant_by_its_secret_only(self):
        self.start('blocks { ddr_bytes: "32MiB" }')
        secret = "sixteen bytes or more"
        for user, call, found in ((ALICE, "_blocks.PUT", 4), (ALICE, "_blocks.EXISTS", 4), (BOB, "_blocks.EXISTS", 0),
                                  (BOB, "_blocks.GET", 0), (BOB, f"_blocks.EXISTS, '{secret}'", 0),
                                  (ALICE, f"_blocks.PUT, '{secret}'", 4), (BOB, f"_blocks.GET, '{secret}'", 4),
                                  (BOB, "_blocks.GET, 'another secret of as many bytes'", 0)):
            done = self.python_as(user, f"print(shared({call}))")
            self.assertEqual((done.returncode, done.stdout), (0, f"{found}\n"), (user, call, done.stderr))
        listed = json.loads(self.run_as(0, "blocks", "ls", "-o", "json").stdout)["nodes"][0]["tenants"]
        self.assertLessEqual({f"uid {ALICE}/chat", "shared/chat"}, {one["tenant"] for one in listed})

    def python_as(self, user, script):
        """Runs Python with flash(bytes, policy), which returns what went wrong or None; blocks(count), which puts
        so many of 1 MiB and returns how many were taken; and shared(op, secret), which returns for how many of four
        blocks of the tenant "chat" it went well."""
        return subprocess.run([sys.executable, "-c", JOB + script + "; pool.close()", self.pool, str(user)], capture_output=True,
                              text=True, timeout=PATIENCE_S, env=self.environment())

    @staticmethod
    def environment():
        return dict(os.environ, HYPEROFFLOAD_LIBRARY=library, PYTHONPATH=package, PYTHONDONTWRITEBYTECODE="1")

    def test_unknown_names(self):
        for more, words in ((f'access {{ jobs: "nobody-of-this-name" }}', 'there is no user "nobody-of-this-name"'),
                            (f'access {{ admins: "@no-such-group" }}', 'there is no group "no-such-group"'),
                            (f'quotas {{ user: "nobody-of-this-name" }}', "quotas: user"),
                            (f'quotas {{ user: "1" certificate: "a" }}', "not both"),
                            (f"quotas {{ }} quotas {{ }}", "given twice"),
                            ('quotas { user: "root" } quotas { user: "0" }', "two for user 0, who is uid 0"),
                            ('quotas { link_weight: 101 }', "link_weight: 101 is not in 1 .. 100"),
                            ('quotas { link_weight: 0 }', "link_weight: 0 is not in 1 .. 100"),
                            ('quotas { link_bytes_per_s_min: "1MiB" }', "name a user or certificate"),
                            ('quotas { user: "1" link_bytes_per_s_min: "6MiB" } tcp { link_bytes_per_s: "10MiB" } '
                             'quotas { user: "2" link_bytes_per_s_min: "5MiB" }', "is more than link_bytes_per_s of tcp"),
                            (f'access {{ viewers: "" }}', "an empty name")):
            self.write(more)
            for mode in ([], ["--check-config"]):
                if not mode and ("there is no" in words or words.startswith(("quotas: user", "two for"))):
                    continue  # see the next test
                done = subprocess.run([daemon, "--config", str(self.config), *mode], capture_output=True, text=True,
                                      timeout=PATIENCE_S)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("c.textproto:3: ", done.stderr)
                self.assertIn(words, done.stderr)

    def test_a_start_goes_on_without_names_that_are_unknown(self):
        # Else a daemon that takes over would end for a directory service that is down, and all jobs with it.
        self.start('access { jobs: "nobody-of-this-name" admins: "@no-such-group" }\nquotas { user: "no-such-user" }')
        self.check_refused(self.job(BOB), "access { jobs }")
        self.assertEqual(self.job(0).returncode, 0)
        self.daemon.kill()
        err = self.daemon.stderr.read()
        for name in ('user \\"nobody-of-this-name\\"', 'group \\"no-such-group\\"', 'user \\"no-such-user\\"'):
            self.assertIn(f"there is no {name}", err)


if os.geteuid() != 0 or subprocess.run([cli, "--help"], user=ALICE, group=ALICE, extra_groups=[0],
                                       capture_output=True).returncode != 0:
    skip("needs root, and a build that other users can run")
unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
