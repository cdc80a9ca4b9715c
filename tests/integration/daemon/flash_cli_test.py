"""hyperoffload flash against a real daemon: a job leaves a durable extent, which is listed and freed."""
import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile
import time

cli, daemon, library = sys.argv[1:4]
DURABLE = 1
SKIPPED = 77


class ConnectOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("pool", ctypes.c_char_p), ("name", ctypes.c_char_p),
                ("transport", ctypes.c_char_p), ("op_deadline_ms", ctypes.c_uint32)]


def run(*words):
    return subprocess.run([cli, *words, "--pool", pool], capture_output=True, text=True, timeout=60)


def extents():
    done = run("flash", "-o", "json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)["nodes"][0]["extents"]


with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp may be memory
    folder = pathlib.Path(name)
    pool = f"unix:{folder}/c.sock"
    with open(folder / "flash", "wb") as flash:
        flash.truncate(16 << 20)
    config = folder / "config.textproto"
    config.write_text(f'''
node_id: 5 ddr_bytes: 16777216 segment_bytes: 2097152 unix_socket: "{folder}/c.sock"
flash {{ path: "{folder}/flash" }}
''')
    process = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while run("status").returncode != 0:
            assert time.monotonic() < end and process.poll() is None, "the daemon did not come up"
            time.sleep(0.1)
        status = json.loads(run("status", "-o", "json").stdout)["nodes"][0]
        if status["flash_off"]:
            print("SKIPPED:", status["flash_off"])
            sys.exit(SKIPPED)
        assert extents() == []

        lib = ctypes.CDLL(library)
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), pool.encode(), b"leaver", b"auto", 0)
        handle, extent = ctypes.c_void_p(), ctypes.c_void_p()
        assert lib.ho_connect(ctypes.byref(options), ctypes.byref(handle)) == 0
        assert lib.ho_flash_allocate(handle, ctypes.c_uint64(3 << 20), DURABLE, ctypes.byref(extent)) == 0
        (one,) = extents()
        assert one["policy"] == "durable" and one["bytes"] == 3 << 20 and one["session_id"] > 0, one
        named = f"5:{one['extent_id']}"
        refused = run("flash", "--free", named)
        assert refused.returncode == 1 and "in use by session" in refused.stderr, refused
        lib.ho_disconnect(handle)

        (one,) = extents()
        assert one["session_id"] == 0, one
        table = run("flash").stdout
        assert "durable" in table and "3.00 MiB" in table, table
        freed = run("flash", "--free", named)
        assert freed.returncode == 0 and freed.stdout == freed.stderr == "", freed
        assert extents() == []
        again = run("flash", "--free", named)
        assert again.returncode == 1 and "no such extent" in again.stderr, again
    finally:
        process.terminate()
        process.wait(20)
