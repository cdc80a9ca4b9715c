"""Halves the link to the pool under a running job, which is in a network namespace of its own.

Usage: see support.py.
"""

import contextlib
import ctypes
import functools
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import support  # first: it finds PyTorch, the package and needs
import needs
import torch

import hyperoffload
from hyperoffload._run.drift import Drift as Judge

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_OURS, _DAEMONS, _PORT = "10.98.0.1", "10.98.0.2", 7000


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Link:
    """This process and a daemon in two network namespaces with a limited link between them."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="ho-drift-")
        folder = pathlib.Path(self.folder.name)
        self.daemon = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c",
             'read -r go; mount -t tmpfs none "$2"; exec "$0" --config "$1"',
             support.DAEMON, str(folder / "far"), str(folder / "own")], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        (folder / "own").mkdir()  # a file system of the daemon's: its socket is out of reach
        (folder / "far").write_text(
            f'node_name: "far" ddr_bytes: 268435456 segment_bytes: 8388608 insecure: true '
            f'unix_socket: "{folder}/own/far.sock" tcp_listen: "{_DAEMONS}:{_PORT}" '
            f'tcp {{ address: "{_DAEMONS}" }}')
        self.pool = f"tcp:{_DAEMONS}:{_PORT}"

    def __enter__(self):
        pid = str(self.daemon.pid)
        while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert self.daemon.poll() is None, "the daemon's network namespace cannot be made"
            time.sleep(0.01)
        ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", pid)
        self._configure([], "near", _OURS)
        self._configure(["nsenter", "-t", pid, "-n"], "far", _DAEMONS)
        return self

    def _configure(self, prefix, device, address):
        for words in (["addr", "add", f"{address}/24", "dev", device], ["link", "set", device, "up"]):
            subprocess.run([*prefix, "ip", *words], check=True)

    def start(self):
        print("go", file=self.daemon.stdin, flush=True)
        support.wait_for_pool(self.pool, self.daemon)

    def limit(self, mbit):
        """Bits a second each way."""
        for prefix, device in (([], "near"), (["nsenter", "-t", str(self.daemon.pid), "-n"], "far")):
            subprocess.run([*prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                            f"{mbit}mbit", "burst", "64k", "latency", "100ms"], check=True)

    def __exit__(self, *_):
        self.daemon.terminate()
        self.daemon.wait()
        # The kernel takes a namespace's devices away some time after its last process; the next link has the same name.
        subprocess.run(["ip", "link", "del", "near"], check=False, capture_output=True)
        self.daemon.stdin.close()
        self.folder.cleanup()


class Script:
    """Trains a network whose steps move some megabytes under a budget of 50 %."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.losses = []

    def step(self):
        loss = self.model(torch.randn(64, 128)).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


class Drift(unittest.TestCase):
    def test_a_slow_link_is_one_message_and_a_new_plan(self):
        script, count = Script(), 6
        with contextlib.redirect_stderr(io.StringIO()) as out, Link() as link:
            link.start()
            link.limit(80)
            with hyperoffload.fit(script.model, script.optimizer, device_memory="50%", pool=link.pool,
                                  replan="auto") as run:
                for _ in range(count):
                    script.step()
                before, replans = len(out.getvalue()), run.stats()["replans"]
                link.limit(10)
                while run.stats()["replans"] == replans and count < 80:
                    script.step()
                    count += 1
                script.step()
        said = out.getvalue()[before:]
        self.assertRegex(said, r"^hyperoffload: step \d+ waited \d+ ms for transfers, planned \d+ ms; "
                               r"its operators took \d+ ms, planned \d+ ms; planning again\n$")
        stats = run.stats()
        self.assertEqual((stats["replans"], stats["departures"]), (replans + 1, 0), run.summary())
        self.assertEqual(stats["planned_steps"], count - 1, run.summary())
        self.assertIn("planned again", run.summary())
        plain = Script()
        for _ in range(count + 1):
            plain.step()
        self.assertEqual(plain.losses, script.losses)

    def test_a_link_that_halves_is_one_message_and_a_new_plan(self):
        script, count = Script(), 0
        with contextlib.redirect_stderr(io.StringIO()) as out, Link() as link:
            link.start()
            link.limit(40)  # so that a step is mostly transfers, also on a busy machine
            with hyperoffload.fit(script.model, script.optimizer, device_memory="50%", pool=link.pool,
                                  replan="auto") as run:
                for _ in range(6):
                    script.step()
                before, replans = len(out.getvalue()), run.stats()["replans"]
                link.limit(20)
                while run.stats()["replans"] == replans and count < 20:
                    script.step()
                    count += 1
                script.step()
        said = out.getvalue()[before:]
        # How many steps that takes depends on the machine's other work; replan_test has steps of planned times.
        self.assertEqual(run.stats()["replans"], replans + 1, said + run.summary())
        self.assertEqual(said.count("planning again\n"), 1, said)

    @staticmethod
    def late_steps(drift, steps):
        """The places of those of (step, stall, and what was beside the plan) in ms at which it is time to say so."""
        def ops_s(step, stall, beside=0):
            return (step - stall - beside) / 1e3

        return [i for i, times in enumerate(steps)
                if drift.found(times[0] / 1e3, times[1] / 1e3, functools.partial(ops_s, *times))]

    def test_two_late_steps_in_succession_are_enough_and_are_said_once(self):
        plan = (100_000_000, 10_000_000)
        made = Judge(*plan)
        steps = [(105, 12)] * 3 + [(190, 90)] + [(105, 12)] + [(190, 90)] * 4
        self.assertEqual(self.late_steps(made, steps), [6])
        # Half of the stall once more is another drift; less than a fifth of a second is none.
        self.assertEqual(self.late_steps(made, [(200, 100)] * 3 + [(300, 200)] * 3), [4])

    def test_a_plan_that_keeps_its_word_is_followed_by_the_next(self):
        again = Judge(100_000_000, 10_000_000).planned_again(200_000_000, 90_000_000)
        self.assertEqual(self.late_steps(again, [(200, 95)] * 5 + [(400, 290)] * 5), [6])

    def test_what_a_new_plan_does_not_mend_is_not_planned_forever(self):
        again = Judge(100_000_000, 10_000_000).planned_again(100_000_000, 10_000_000)
        self.assertEqual(self.late_steps(again, [(190, 90)] * 20), [])
        # Only twice as many steps that are later still.
        self.assertEqual(self.late_steps(again, [(400, 300)] * 9), [3])

    def test_five_slow_steps_in_succession_are_enough_and_are_said_once(self):
        made = Judge(100_000_000, 10_000_000)
        # A step that is slow four times in succession may have a busy machine.
        steps = [(105, 12)] * 3 + [(190, 12)] * 4 + [(105, 12)] + [(190, 12)] * 9
        self.assertEqual(self.late_steps(made, steps), [12])
        # As much once more is another drift; a fifth is none.
        self.assertEqual(self.late_steps(made, [(220, 12)] * 9 + [(300, 12)] * 9), [13])

    def test_what_the_script_does_between_operators_is_not_slow(self):
        made = Judge(100_000_000, 10_000_000)
        self.assertEqual(self.late_steps(made, [(400, 12)] * 20), [])
        # The plan that follows has it, with the operators.
        self.assertEqual(self.late_steps(made, [(700, 12)] * 5), [4])
        self.assertEqual(self.late_steps(made.planned_again(700_000_000, 10_000_000), [(750, 12)] * 20), [])

    def test_what_the_script_does_beside_the_plan_is_not_slow(self):
        made = Judge(100_000_000, 10_000_000)
        steps = [(105, 12)] * 3 + [(205, 12, 100)] * 20
        self.assertEqual(self.late_steps(made, steps), [])
        # Operators that are slow with that are, and so are transfers.
        self.assertEqual(self.late_steps(made, [(400, 12, 200)] * 9 + [(600, 300, 200)] * 3), [4, 10])
        self.assertEqual(self.late_steps(made, [(1000, 300, 200)] * 9), [4])


if __name__ == "__main__":
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
        needs.skip("a network namespace of its own needs root")
    ip("link", "set", "lo", "up")
    unittest.main()
