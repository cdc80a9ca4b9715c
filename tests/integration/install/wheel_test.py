"""Makes the wheel, installs it into an environment of its own, and uses it there with a real daemon: nothing of the build, and
no library of the system but those that each has. With PyTorch, a script trains under fit() to the same bits.

Usage: wheel_test.py BUILD SOURCE VERSION DAEMON
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

BUILD, SOURCE, VERSION, DAEMON = sys.argv[1:5]
# Libraries that the wheel's tag stands for, and Python's own.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|expat|ffi|z)|.*cpython-.*|_.*)(-[\d.]+)?\.so.*")
OBJECTS = """
import array, re, sys
import hyperoffload
values, read = array.array("d", range(1000)), array.array("d", bytes(8000))
with hyperoffload.Publisher(sys.argv[1], "wheel", {"values": values}) as publisher:
    publisher.publish(1)
    with hyperoffload.Subscriber(sys.argv[1], "wheel", {"values": read}) as subscriber:
        assert subscriber.acquire(timeout=20) == 1
        subscriber.read()
assert read == values
print("\\n".join(sorted(set(re.findall(r"/\\S+\\.so\\S*", open("/proc/self/maps").read())))))
"""
TRAINING = """
import sys
import torch
import hyperoffload
def run(pool):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(6)])
    optimizer = torch.optim.Adam(model.parameters())
    def steps():
        losses = []
        for step in range(8):
            loss = model(torch.ones(32, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses
    if pool is None:
        return steps()
    with hyperoffload.fit(model, optimizer, device_memory="70%", pool=pool) as run:
        losses = steps()
    assert "6 of 8 steps ran under the plan" in run.summary(), run.summary()
    return losses
print(hyperoffload.__file__)
assert run(sys.argv[1]) == run(None)
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ho-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([f"{SOURCE}/deploy/wheel/make_wheel", BUILD, SOURCE, VERSION, cls.folder], check=True)
        (cls.wheel,) = cls.folder.glob("*.whl")
        cls.pool = f"unix:{cls.folder}/control.sock"
        config = cls.folder / "config"
        config.write_text(f'node_name: "wheel" ddr_bytes: 268435456 segment_bytes: 8388608 unix_socket: "{cls.folder}/control.sock"')
        cls.daemon = subprocess.Popen([DAEMON, "--config", config], stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.end_daemon)
        end = time.monotonic() + 60
        while not (cls.folder / "control.sock").exists():
            assert time.monotonic() < end and cls.daemon.poll() is None, "the daemon did not come up"
            time.sleep(0.05)

    @classmethod
    def end_daemon(cls):
        cls.daemon.terminate()
        cls.daemon.wait()

    def environment(self, *options):
        """@return the folder of programs of a new environment with the wheel."""
        made = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        subprocess.run(["/usr/bin/python3", "-m", "venv", *options, made], check=True)
        subprocess.run([made / "bin/pip", "install", "-q", "--no-index", self.wheel], check=True)
        return made / "bin"

    def run_in(self, *words):
        """Without what this process has in its environment."""
        done = subprocess.run(words, env={"HOME": str(self.folder)}, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done)
        return done.stdout

    def test_it_brings_all_that_it_needs(self):
        self.assertRegex(self.wheel.name, rf"^hyperoffload-{re.escape(VERSION)}-py3-none-manylinux_2_\d+_{os.uname().machine}\.whl$")
        there = self.environment()
        for command in ((there / "hyperoffload",), (there / "python", "-m", "hyperoffload")):
            self.assertEqual(self.run_in(*command, "--version"), f"hyperoffload {VERSION}\n")
            self.assertIn("wheel", self.run_in(*command, "nodes", "--pool", self.pool))
        loaded = self.run_in(there / "python", "-c", OBJECTS, self.pool).split()
        others = [path for path in loaded if not path.startswith(str(there.parent)) and not SYSTEM.fullmatch(pathlib.Path(path).name)]
        self.assertEqual(others, [])
        self.assertTrue([path for path in loaded if "/libprotobuf-" in path], loaded)

    def test_it_has_our_license(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            (name,) = [name for name in wheel.namelist() if re.fullmatch(r"[^/]*\.dist-info/(licenses/)?LICENSE", name)]
            self.assertEqual(wheel.read(name), pathlib.Path(SOURCE, "LICENSE").read_bytes())

    def test_a_library_that_is_not_there_is_named(self):
        build = self.folder / "build"
        for part in ("client/libhyperoffload.so.0", "tools/hyperoffload/hyperoffload"):
            (build / part).parent.mkdir(parents=True)
            shutil.copy(pathlib.Path(BUILD, part), build / part)
        subprocess.run(["patchelf", "--add-needed", "libabsent.so.1", build / "client/libhyperoffload.so.0"], check=True)
        done = subprocess.run([f"{SOURCE}/deploy/wheel/make_wheel", build, SOURCE, VERSION, build], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("needs libabsent.so.1", done.stderr)
        self.assertEqual(list(build.glob("*.whl")), [])

    def test_a_script_trains_with_it(self):
        if subprocess.run(["/usr/bin/python3", "-c", "import torch"], check=False, capture_output=True).returncode != 0:
            needs.missing("PyTorch", "python3-torch", needs.skip_case)
        there = self.environment("--system-site-packages")
        self.assertIn(str(there.parent), self.run_in(there / "python", "-c", TRAINING, self.pool))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
