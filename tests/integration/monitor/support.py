"""A daemon with http_listen, its figures, and a job in this process, for the tests of this folder."""
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402, F401
import patience  # noqa: E402, F401

FLASH_SCRATCH, FLASH_DURABLE = 0, 1


class ConnectOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("pool", ctypes.c_char_p), ("name", ctypes.c_char_p),
                ("transport", ctypes.c_char_p), ("op_deadline_ms", ctypes.c_uint32)]


class Daemon:
    """A daemon on a port that the system chose. Ends with the block."""

    def __init__(self, programs, more="", flash_bytes=0, ddr_bytes=256 << 20, before=None, name="n0"):
        self.cli, self.program = programs[:2]
        self.holder = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ho-monitor-")  # /tmp may be memory
        self.folder = pathlib.Path(self.holder.name)
        self.pool = f"unix:{self.folder}/c.sock"
        self.log = self.folder / "log"
        text = f"""node_name: "{name}" ddr_bytes: {ddr_bytes} segment_bytes: 2097152
unix_socket: "{self.folder}/c.sock" http_listen: "127.0.0.1:0"
""" + more.replace("FOLDER", str(self.folder))
        if flash_bytes:
            flash = self.folder / "flash"
            os.close(os.open(flash, os.O_CREAT | os.O_RDWR, 0o600))
            os.truncate(flash, flash_bytes)
            if "flash {" not in more:
                text += f'flash {{ path: "{flash}" }}\n'
        (self.folder / "config").write_text(text)
        self.before = before
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def start(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([self.program, "--config", str(self.folder / "config")], stderr=log,
                                            preexec_fn=self.before, restore_signals=False)
        end = time.monotonic() + 30
        while not (found := re.search(r"page at=(http://[^/]+)/", self.log.read_text())) or " serving " not in self.log.read_text():
            assert time.monotonic() < end and self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        self.url = found.group(1)

    def stop(self, kill=False):
        if self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()
        return self.process.wait(30)

    def __exit__(self, *_):
        self.stop()
        self.holder.cleanup()

    def read(self, path):
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return answer.read().decode()

    def metrics(self):
        """The value of each series, by its text: 'hyperoffload_segments{state="live"}'."""
        lines = (line.rpartition(" ") for line in self.read("/metrics").splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def run(self, *words):
        return subprocess.run([self.cli, *words, "--pool", self.pool], capture_output=True, text=True, timeout=60,
                              check=False)

    def json(self, *words, code=0):
        done = self.run(*words, "-o", "json")
        assert done.returncode == code, done
        return json.loads(done.stdout)


class Job:
    """A session of this process. Calls fail the test where the library does not answer HO_OK."""

    def __init__(self, library, pool, name=b"job", transport=b"auto"):
        self.lib = ctypes.CDLL(library)
        self.lib.ho_last_error.restype = ctypes.c_char_p
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), pool.encode(), name, transport, 0)
        self.handle, self.held = ctypes.c_void_p(), []
        self.call("ho_connect", ctypes.byref(options), ctypes.byref(self.handle), first=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for allocation in self.held:
            self.lib.ho_free(self.handle, allocation)
        self.call("ho_disconnect")

    def give_up(self):
        """Its daemon is gone. The block's end does nothing more."""
        for allocation in self.held:
            self.lib.ho_free(self.handle, allocation)
        self.lib.ho_disconnect(self.handle)
        self.handle, self.held = None, []

    def call(self, name, *arguments, first=True):
        status = getattr(self.lib, name)(*([self.handle] if first else []), *arguments)
        assert status == 0, (name, status, self.lib.ho_last_error())

    def allocate(self, size):
        out = ctypes.c_void_p()
        self.call("ho_allocate", ctypes.c_uint64(size), ctypes.byref(out))
        self.held.append(out)
        return out

    def flash(self, size, policy=FLASH_SCRATCH):
        out = ctypes.c_void_p()
        self.call("ho_flash_allocate", ctypes.c_uint64(size), policy, ctypes.byref(out))
        return out

    def beside(self, flash, size):
        out = ctypes.c_void_p()
        self.call("ho_allocate_beside", flash, ctypes.c_uint64(size), ctypes.byref(out))
        self.held.append(out)
        return out

    def wait(self, ticket):
        return self.lib.ho_wait(self.handle, ticket)

    def stage(self, name, flash, memory, size):
        """The outcome of one stage_in or stage_out of the first bytes."""
        ticket, zero = ctypes.c_uint64(), ctypes.c_uint64(0)
        self.call(name, flash, zero, memory, zero, ctypes.c_size_t(size), ctypes.byref(ticket))
        return self.wait(ticket)

    def move(self, name, allocation, buffer):
        """One get or put of a registered buffer."""
        ticket = ctypes.c_uint64()
        self.call(name, allocation, ctypes.c_uint64(0), buffer, ctypes.c_size_t(len(buffer)), ctypes.byref(ticket))
        return self.wait(ticket)
