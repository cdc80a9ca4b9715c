"""The status page of a real daemon in a headless browser: what it shows is what status and sessions say.

Usage: page_test.py CLI DAEMON LIBRARY EXAMPLE_JOB [unittest arguments]
HO_SCREENSHOTS=FOLDER keeps a picture of each case, for people.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

from browser import Browser
from support import Daemon, Job

PROGRAMS, LIBRARY, EXAMPLE = sys.argv[1:3], sys.argv[3], sys.argv[4]
del sys.argv[1:5]
MIB = 1 << 20


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if shutil.which("chromium") is None:
            raise unittest.SkipTest("no chromium")
        cls.daemon = cls.enterClassContext(Daemon(PROGRAMS, """tcp {}
lease_ms: 600 nodes { node_id: 7 name: "other" control_addresses: "tcp:127.0.0.1:1" }
""", flash_bytes=64 * MIB))
        cls.example = subprocess.Popen(
            [EXAMPLE, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2", "--steps",
             "1000000", "--device-memory", "60%", "--pool", cls.daemon.pool], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.example.wait)
        cls.addClassCleanup(cls.example.terminate)
        # Its name must not become markup.
        cls.job = cls.enterClassContext(Job(LIBRARY, cls.daemon.pool, b"<b>bold</b>"))
        cls.job.allocate(5 * MIB)
        end = time.monotonic() + 60
        while not any(one.get("last_steps") for one in cls.status()["sessions"]):
            assert time.monotonic() < end and cls.example.poll() is None, cls.status()
            time.sleep(0.1)

    @classmethod
    def status(cls):
        return json.loads(cls.daemon.read("/status.json"))

    def test_its_data_are_what_the_commands_say(self):
        for _ in range(20):  # until nothing changed between the three
            shown = self.status()
            (node,) = [one for one in self.daemon.json("status", code=1)["nodes"] if one["reachable"]]
            sessions = self.daemon.json("sessions", code=1)["nodes"][0]["sessions"]
            moving = ("uptime_ms", "path", "path_reason")
            same = {key: value for key, value in node.items() if key not in moving}
            (own,) = shown["nodes"]
            if same == {key: value for key, value in own.items() if key not in moving}:
                break
        self.assertEqual(same, {key: value for key, value in own.items() if key not in moving})
        self.assertLess(abs(own["uptime_ms"] - node["uptime_ms"]), 60_000)
        steady = ("session_id", "name", "pid", "peer", "granted_bytes", "predicted_step_ns")
        self.assertEqual([[one.get(key) for key in steady] for one in shown["sessions"]],
                         [[one.get(key) for key in steady] for one in sessions])
        self.assertEqual(shown["others"], [{"node_id": 7, "name": "other", "control_addresses": ["tcp:127.0.0.1:1"]}])

    def test_a_job_reports_its_steps(self):
        before = next(one for one in self.status()["sessions"] if one.get("steps"))
        end = time.monotonic() + 30
        while (now := next(one for one in self.status()["sessions"] if one.get("steps")))["steps"] == before["steps"]:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        self.assertGreaterEqual(now["stall_ns"], before["stall_ns"])
        self.assertGreater(now["prefetch_bytes"], before["prefetch_bytes"])
        self.assertGreater(now["store_bytes"], 0)
        self.assertGreater(now["predicted_step_ns"], 0)
        self.assertLessEqual(1, len(now["last_steps"]))
        self.assertLessEqual(len(now["last_steps"]), 32)
        for step in now["last_steps"]:
            self.assertLess(step["stall_ns"], step["duration_ns"])
        metrics = self.daemon.metrics()
        steps = [value for name, value in metrics.items() if name.startswith("hyperoffload_session_steps_total")]
        self.assertEqual(len(steps), 1)
        self.assertGreaterEqual(steps[0], now["steps"])
        table = self.daemon.run("sessions", "-o", "wide").stdout
        self.assertRegex(table, r"STEPS +STEP +PLANNED +STALL")

    def test_a_browser_shows_it(self):
        with Browser() as browser:
            browser.open(self.daemon.url + "/")
            end = time.monotonic() + 30
            while True:  # until nothing changed between the two
                status, page = self.status(), browser.evaluate("""({
                    title: document.title,
                    state: document.getElementById("state").textContent,
                    tiers: [...document.querySelectorAll("[data-tier]")].map(
                        one => [one.dataset.tier, +one.dataset.used, +one.dataset.capacity]),
                    jobs: [...document.querySelectorAll("[data-session]")].map(
                        one => [+one.dataset.session, +one.dataset.granted, one.querySelector("h3").textContent]),
                    steps: [...document.querySelectorAll("[data-session]")].map(one => +one.dataset.steps),
                    timelines: document.querySelectorAll("svg").length,
                    bars: document.querySelectorAll("svg rect").length,
                    bold: document.querySelectorAll("b").length,
                    nodes: document.getElementById("nodes").innerText,
                    traffic: document.getElementById("traffic").innerText,
                    fresh: document.getElementById("fresh").textContent})""")
                node = status["nodes"][0]
                tiers = [["DDR", node["ddr_granted_bytes"], node["ddr_capacity_bytes"]]]
                tiers += [["NUMA node " + str(one["node"]), one["granted_bytes"], one["capacity_bytes"]]
                          for one in node["numa"]]
                tiers += [[path["path"], path["capacity_bytes"] - path["free_bytes"], path["capacity_bytes"]]
                          for path in node["flash"]]
                if page["tiers"] == tiers or time.monotonic() > end:
                    break
                time.sleep(0.5)
            self.assertEqual(page["tiers"], tiers)
            self.assertEqual((page["title"], page["state"], page["fresh"]), ("n0 - HyperOffload", "serving", "live"))
            self.assertEqual(page["jobs"], [[one["session_id"], one["granted_bytes"], one["name"]]
                                            for one in status["sessions"]])
            self.assertIn("<b>bold</b>", [name for _, _, name in page["jobs"]])
            self.assertEqual(page["bold"], 0)
            self.assertGreater(max(page["steps"]), 0)
            self.assertEqual(page["timelines"], 1)
            self.assertGreaterEqual(page["bars"], 2)
            self.assertIn("7 other", page["nodes"])
            self.assertIn("tcp get", page["traffic"])
            shown = browser.evaluate("""[0, 3].map(copies_missing => job({session_id: 9, name: "x", peer: "", granted_bytes: 0,
                age_ms: 0, lease_left_ms: 0, copies_missing}).textContent)""")
            self.assertEqual(["copies missing" in text for text in shown], [False, True], shown)
            # It goes on by itself.
            before = max(page["steps"])
            more = "Math.max(...[...document.querySelectorAll('[data-session]')].map(one => +one.dataset.steps))"
            while browser.evaluate(more) <= before:
                self.assertLess(time.monotonic(), end + 30)
                time.sleep(0.1)

    def test_it_fits_a_phone_and_is_dark_where_that_is_wished(self):
        shots = os.environ.get("HO_SCREENSHOTS")
        colors = {}
        with Browser() as browser:
            for name, options in (("desktop", {}), ("phone", {"width": 390, "height": 844, "phone": True}),
                                  ("small", {"width": 320, "height": 640, "phone": True}), ("dark", {"dark": True}),
                                  ("dark-phone", {"width": 390, "height": 844, "phone": True, "dark": True})):
                browser.open(self.daemon.url + "/", **options)
                wide, room = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
                self.assertEqual((wide, room), (options.get("width", 1280),) * 2, name)
                cut = browser.evaluate("""[...document.querySelectorAll("main *")].filter(one =>
                    one.getBoundingClientRect().right > window.innerWidth + 0.5).map(one => one.outerHTML)""")
                self.assertEqual(cut, [], name)
                colors[name] = browser.evaluate("""[document.body, document.querySelector(".card")].map(
                    one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).color].join(" on "))""")
                if shots:
                    pathlib.Path(shots, name + ".png").write_bytes(browser.picture())
        self.assertEqual(colors["desktop"], colors["phone"])
        self.assertEqual(colors["dark"], colors["dark-phone"])
        for light, dark in zip(colors["desktop"], colors["dark"]):
            self.assertNotEqual(light, dark)

    def test_nothing_is_loaded_from_elsewhere(self):
        page = self.daemon.read("/")
        self.assertNotIn("NONCE", page)
        self.assertEqual(re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"' )>]*)""", page), ["data:,"])
        self.assertEqual(set(re.findall(r"https?://[^\s\"']*", page)), {"http://www.w3.org/2000/svg"})


if __name__ == "__main__":
    unittest.main()
