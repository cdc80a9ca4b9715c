"""A daemon whose flash is encrypted: no byte of a job is in the file, what was written outlives a kill, and a wrong or
missing key keeps it from starting, with the reason. fsck needs the key, too.

Usage: encryption_test.py CLI DAEMON LIBRARY
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "monitor"))
from support import FLASH_DURABLE, Job, needs  # noqa: E402

cli, daemon, library = sys.argv[1:4]
MIB = 1 << 20
PATTERN = b"these are the weights of a model" * (MIB // 32)


def run(*words):
    return subprocess.run([cli, *words], capture_output=True, text=True, timeout=60)


class Node:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config, self.flash, self.key = (self.folder / name for name in ("config", "flash", "key"))
        self.pool = f"unix:{folder}/c.sock"
        self.new_key(self.key)
        os.close(os.open(self.flash, os.O_CREAT | os.O_RDWR, 0o600))
        os.truncate(self.flash, 32 * MIB)
        self.process = None

    @staticmethod
    def new_key(file, mode=0o600):
        file.write_bytes(os.urandom(64))
        file.chmod(mode)

    def write(self, key):
        named = f'key_file: "{key}"' if key else ""
        self.config.write_text(f'node_name: "n" ddr_bytes: "64MiB" segment_bytes: "2MiB" unix_socket: "{self.folder}/c.sock"\n'
                               f'flash {{ path: "{self.flash}" {named} }}')

    def start(self, key):
        self.write(key)
        self.process = subprocess.Popen([daemon, "--config", str(self.config)], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while run("status", "--pool", self.pool).returncode != 0:
            assert time.monotonic() < end and self.process.poll() is None
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def refused(self, key, words):
        self.write(key)
        for mode, code in (([], 1), (["--check-config"], 2)):
            done = subprocess.run([daemon, "--config", str(self.config), *mode], capture_output=True, text=True, timeout=60)
            assert done.returncode == code and words in done.stderr and "config:2: " in done.stderr, done


with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ho-encryption-") as name:  # /tmp may be memory
    node = Node(name)
    try:
        node.start(node.key)
        if run("status", "--pool", node.pool, "-o", "wide").stdout.count(" off ") > 0:
            needs.skip("no io_uring")
        assert '"encrypted": true' in run("status", "--pool", node.pool, "-o", "json").stdout.replace('":true', '": true')
        with Job(library, node.pool) as job:
            flash, name_of = job.flash(4 * MIB, FLASH_DURABLE), ctypes.create_string_buffer(64)
            memory = job.beside(flash, 2 * MIB)
            data = ctypes.create_string_buffer(PATTERN, MIB)
            job.call("ho_register", data, ctypes.c_size_t(MIB))
            ticket = ctypes.c_uint64()
            job.call("ho_put", memory, ctypes.c_uint64(0), data, ctypes.c_size_t(MIB), ctypes.byref(ticket))
            job.call("ho_wait", ticket)
            assert job.stage("ho_stage_out", flash, memory, MIB) == 0
            job.call("ho_flash_name", flash, name_of, ctypes.c_size_t(64))
            node.kill()
            raw = node.flash.read_bytes()
            assert PATTERN[:32] not in raw and b"uid " not in raw and b"Hflash01" in raw
            job.give_up()
        other = node.folder / "other"
        node.new_key(other)
        node.refused(other, "it is encrypted with another key than the one in its key_file")
        node.refused("", "it is encrypted: name its key_file")
        node.refused(node.folder / "none", "key_file " + str(node.folder / "none"))
        node.new_key(other, 0o644)
        node.refused(other, f"run: chmod 0600 {other}")
        other.write_bytes(b"short")
        other.chmod(0o600)
        node.refused(other, "not 64 bytes")
        assert node.flash.read_bytes() == raw
        done = run("fsck", str(node.flash), "--key-file", str(node.key), "-o", "json")
        assert done.returncode == 0 and '"damaged_blocks": 0' in done.stdout.replace('":0', '": 0'), done
        assert "name its key_file" in run("fsck", str(node.flash)).stderr
        node.start(node.key)
        with Job(library, node.pool) as job:
            flash = ctypes.c_void_p()
            job.call("ho_flash_open", name_of, ctypes.byref(flash))
            memory = job.beside(flash, 2 * MIB)
            assert job.stage("ho_stage_in", flash, memory, MIB) == 0
            data, ticket = ctypes.create_string_buffer(MIB), ctypes.c_uint64()
            job.call("ho_register", data, ctypes.c_size_t(MIB))
            job.call("ho_get", memory, ctypes.c_uint64(0), data, ctypes.c_size_t(MIB), ctypes.byref(ticket))
            job.call("ho_wait", ticket)
            assert data.raw == PATTERN
    finally:
        if node.process is not None:
            node.kill()
print("encrypted, and read again")
