"""The status page of a real daemon in a headless browser: what it shows is what status and sessions say, of this node and of
the others of its pool. These are a daemon that is reached over TLS, one that hides names, and one that is not there.

Usage: page_test.py CLI DAEMON LIBRARY EXAMPLE_JOB [unittest arguments]
HO_SCREENSHOTS=FOLDER keeps a picture of each case, for people.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from browser import Browser
from support import Daemon, Job, needs

PROGRAMS, LIBRARY, EXAMPLE = sys.argv[1:3], sys.argv[3], sys.argv[4]
del sys.argv[1:5]
MIB = 1 << 20


def ns_of(shown):
    """Reads a time as the page shows it."""
    value, unit = shown.split()
    return float(value) * {"us": 1e3, "ms": 1e6, "s": 1e9}[unit]


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ca = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ho-page-")), "ca")
        for words in (["init"], *(["issue", "--role", "daemon", "--name", name, "--address", "127.0.0.1"]
                                  for name in ("here", "there"))):
            subprocess.run([PROGRAMS[0], "ca", words[0], str(cls.ca), *words[1:]], check=True, capture_output=True)
        cls.there = cls.enterClassContext(Daemon(PROGRAMS, f"""node_id: 3 tcp_listen: "127.0.0.1:0" {cls.tls("there")}
""", flash_bytes=64 * MIB, name="there"))
        cls.shy = cls.enterClassContext(Daemon(PROGRAMS, 'node_id: 5 access { viewers: "nobody" }\n', name="shy"))
        far = cls.there.json("nodes")["nodes"][0]["control_addresses"][1]
        cls.daemon = cls.enterClassContext(Daemon(PROGRAMS, f"""tcp {{}} lease_ms: 600 {cls.tls("here")}
nodes {{ node_id: 3 name: "there" control_addresses: "{far}" }}
nodes {{ node_id: 5 name: "shy" control_addresses: "{cls.shy.pool}" }}
nodes {{ node_id: 7 name: "other" control_addresses: "tcp:127.0.0.1:1" }}
""", flash_bytes=64 * MIB))
        for node, name, size in ((cls.there, b"far away", 3 * MIB), (cls.shy, b"secret", 7 * MIB)):
            cls.enterClassContext(Job(LIBRARY, node.pool, name)).allocate(size)
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
    def tls(cls, name):
        return f'tls {{ certificate: "{cls.ca}/{name}/node.crt" key: "{cls.ca}/{name}/node.key" authority: "{cls.ca}/{name}/ca.crt" }}'

    @classmethod
    def status(cls):
        return json.loads(cls.daemon.read("/status.json"))

    def pool(self):
        """The other nodes, when all that can answer have."""
        end = time.monotonic() + 60
        while True:
            nodes = {one["name"]: one for one in json.loads(self.daemon.read("/pool.json"))["nodes"]}
            if all(nodes[name]["reachable"] for name in ("there", "shy")) and nodes["other"]["asked"]:
                return nodes
            self.assertLess(time.monotonic(), end, nodes)
            time.sleep(0.1)

    def test_its_data_are_what_the_commands_say(self):
        for _ in range(20):  # until nothing changed between the three
            shown = self.status()
            node = self.daemon.json("status", code=1)["nodes"][0]
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
        self.assertEqual([(one["node_id"], one["name"]) for one in shown["others"]], [(3, "there"), (5, "shy"), (7, "other")])
        self.assertEqual(shown["others"][2]["control_addresses"], ["tcp:127.0.0.1:1"])

    def test_other_nodes_say_of_themselves_what_the_commands_say(self):
        moving = ("uptime_ms", "path", "path_reason", "rails", "drivers_off", "asked", "session_list", "seen_ms",
                  "control_addresses", "refusals", "users")
        nodes = self.pool()
        for node, daemon in (("there", self.there), ("shy", self.shy)):
            said, seen = daemon.json("status")["nodes"][0], nodes[node]
            self.assertEqual({key: value for key, value in seen.items() if key not in moving},
                             {key: value for key, value in said.items() if key not in moving})
            self.assertEqual(seen["sessions"], len(seen["session_list"]))
            self.assertLess(seen["seen_ms"], 60_000)
        (own,) = self.there.json("sessions")["nodes"][0]["sessions"]
        (seen,) = nodes["there"]["session_list"]
        for key in ("session_id", "name", "peer", "granted_bytes"):
            self.assertEqual(seen[key], own[key])
        self.assertEqual(seen["name"], "far away")
        # The daemon's user could see the name; but everybody on this machine reads the page.
        self.assertNotIn("secret", json.dumps(nodes))
        self.assertEqual([one["users"] for one in (nodes["there"], nodes["shy"])], [[], []])
        self.assertTrue(self.shy.json("status")["nodes"][0]["users"])
        self.assertIn(8 * MIB, [one["granted_bytes"] for one in nodes["shy"]["session_list"]])
        self.assertFalse(nodes["other"]["reachable"])
        self.assertIn("127.0.0.1:1", nodes["other"]["error"])

    def test_a_node_that_hides_names_shows_the_rest(self):
        """Alerts on stalls and copies need what jobs say of their steps."""
        end = time.monotonic() + 60
        while not any(name.startswith("hyperoffload_session_steps_total{") and 'name="hidden"' in name and value > 0
                      for name, value in self.shy.metrics().items()):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.2)
        shown = json.loads(self.shy.read("/status.json"))["sessions"]
        self.assertEqual({(one["name"], one["peer"], one["pid"]) for one in shown}, {("hidden", "hidden", 0)})
        self.assertTrue(any(one.get("last_steps") for one in shown), shown)
        self.assertNotIn("secret", self.shy.read("/status.json") + self.shy.read("/metrics"))

    def test_others_are_asked_only_while_somebody_looks(self):
        def wait_for_connections(count):
            end = time.monotonic() + 60
            while (now := self.there.metrics()["hyperoffload_control_connections"]) != count:
                self.assertLess(time.monotonic(), end, now)
                time.sleep(0.2)

        self.pool()
        wait_for_connections(1)  # the job's own: nobody looks
        self.pool()              # may be what was seen last, while the daemon connects
        wait_for_connections(2)

    def test_a_stopped_node_is_told_and_keeps_nobody_waiting(self):
        self.pool()
        self.there.process.send_signal(signal.SIGSTOP)
        try:
            end = time.monotonic() + 60
            while (seen := {one["name"]: one for one in json.loads(self.daemon.read("/pool.json"))["nodes"]})["there"]["reachable"]:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.1)
            self.assertIn("no answer before the deadline", seen["there"]["error"])
            self.assertTrue(seen["shy"]["reachable"])
        finally:
            self.there.process.send_signal(signal.SIGCONT)
        self.pool()  # it is there again

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
                    facts: [...document.querySelectorAll(".job:has(svg) .facts > div")].map(
                        one => [...one.children].map(part => part.textContent)),
                    lines: [...document.querySelectorAll("svg line")].map(one => one.y1.baseVal.value),
                    measured: [...document.querySelectorAll("svg title")].map(one => one.textContent),
                    bars: document.querySelectorAll("svg rect").length,
                    bold: document.querySelectorAll("b").length,
                    nodes: [...document.querySelectorAll("[data-node]")].map(one => ({...one.dataset, text: one.innerText})),
                    pool: document.getElementById("poolcount").innerText,
                    total: document.getElementById("total").innerText,
                    traffic: document.getElementById("traffic").innerText,
                    users: document.getElementById("users").innerText,
                    fresh: document.getElementById("fresh").textContent})""")
                node = status["nodes"][0]
                tiers = [["DDR", node["ddr_granted_bytes"], node["ddr_capacity_bytes"]]]
                tiers += [["NUMA node " + str(one["node"]), one["granted_bytes"], one["capacity_bytes"]]
                          for one in node["numa"]]
                tiers += [[path["path"], path["capacity_bytes"] - path["free_bytes"], path["capacity_bytes"]]
                          for path in node["flash"]]
                asked = all(one.get("used") or one["node"] == "7" for one in page["nodes"])
                plans = [one["predicted_step_ns"] for one in status["sessions"] if one.get("last_steps")]
                shown = [ns_of(text) for name, text in page["facts"] if name == "by plan"]
                alike = len(plans) == len(shown) == 1 and abs(shown[0] / plans[0] - 1) < 0.01
                if (page["tiers"] == tiers and asked and alike) or time.monotonic() > end:
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
            self.check_plan_against_measured(page, status)
            self.check_pool(page)
            self.assertIn("tcp get", page["traffic"])
            self.assertIn(f"uid {os.getuid()}", page["users"])
            # A user moved 2 MiB in and 4 MiB out in two seconds, of which its transfers waited for one.
            row = browser.evaluate("""(() => {
                const of = (uptime_ms, moved, link_waited_ms) => ({uptime_ms, users: [{owner: "uid 7", sessions: 2, ddr_bytes: 1024,
                    ddr_bytes_max: 4096, link_in_bytes: moved, link_out_bytes: 2 * moved, link_waited_ms, link_weight: 3}]});
                const kept = before;
                before = of(1000, 0, 0);
                const cells = [...users(of(3000, 2 << 20, 1000)).querySelectorAll("td")].map(one => one.textContent);
                before = kept;
                return cells})()""")
            self.assertEqual(row, ["uid 7", "2", "1.00 KiB of 4.00 KiB", "1.00 MiB/s", "2.00 MiB/s", "50 %", "3"])
            shown = browser.evaluate("""[0, 3].map(copies_missing => job({session_id: 9, name: "x", peer: "", granted_bytes: 0,
                age_ms: 0, lease_left_ms: 0, copies_missing}).textContent)""")
            self.assertEqual(["copies missing" in text for text in shown], [False, True], shown)
            # It goes on by itself.
            before = max(page["steps"])
            more = "Math.max(...[...document.querySelectorAll('[data-session]')].map(one => +one.dataset.steps))"
            while browser.evaluate(more) <= before:
                self.assertLess(time.monotonic(), end + 30)
                time.sleep(0.1)

    def check_plan_against_measured(self, page, status):
        """The job with steps: how long its plan says that a step takes, beside the steps that were measured."""
        (planned,) = [one["predicted_step_ns"] for one in status["sessions"] if one.get("last_steps")]
        facts = dict(page["facts"])
        self.assertLess(abs(ns_of(facts["by plan"]) / planned - 1), 0.01)
        steps = [ns_of(bar.split(", stall ")[0]) for bar in page["measured"]][::2]  # two bars a step
        median = sorted(steps)[len(steps) // 2]
        self.assertEqual(ns_of(facts["step, median"]), median)
        # The line is as high as a step that takes what the plan says.
        largest = min(max(planned, *steps), 4 * max(planned, median))
        (line,) = page["lines"]
        self.assertAlmostEqual(line, 96 - 94 * min(planned / largest, 1), delta=1)

    def check_pool(self, page):
        """All nodes, as the command has them."""
        there = {one["name"]: one for one in self.pool().values()}
        said = {one["node_id"]: one for one in self.daemon.json("status", code=1)["nodes"][:1] + [
            daemon.json("status")["nodes"][0] for daemon in (self.there, self.shy)]}
        self.assertEqual([int(one["node"]) for one in page["nodes"]], [0, 3, 5, 7])
        for shown in page["nodes"][:3]:
            node = said[int(shown["node"])]
            flash = sum(one["capacity_bytes"] - one["free_bytes"] for one in node["flash"])
            self.assertEqual([int(shown[key]) for key in ("used", "capacity", "flash", "sessions")],
                             [node["ddr_granted_bytes"], node["ddr_capacity_bytes"], flash, node["sessions"]])
            self.assertIn(f"{node['node_id']} {node['name']}", shown["text"])
            self.assertIn("serving", shown["text"])
        self.assertIn("far away", page["nodes"][1]["text"])
        self.assertIn(there["other"]["error"], page["nodes"][3]["text"])
        self.assertIn("no answer", page["nodes"][3]["text"])
        self.assertEqual(page["pool"], f"4 nodes, 1 without an answer, {sum(one['sessions'] for one in said.values())} sessions")
        used, capacity = (sum(one[key] for one in said.values()) for key in ("ddr_granted_bytes", "ddr_capacity_bytes"))
        self.assertIn(f"{100 * used / capacity:.0f} %", page["total"])

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
    needs.program("chromium", "chromium")
    unittest.main()
