"""hyperoffload flash against a real daemon: a job leaves a durable extent, which is listed and freed. Without io_uring
the daemon serves its memory all the same, and says why it has no flash."""
import ctypes
import errno
import json
import os
import pathlib
import struct
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


def forbid_io_uring(error):
    """For the process that is about to be started: io_uring_setup fails, as where the kernel has none or forbids it."""
    io_uring_setup = 425  # the same number on every architecture
    load, jump_if, answer, allow, fail = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000
    steps = [(load, 0, 0, 0), (jump_if, 0, 1, io_uring_setup), (answer, 0, 0, fail | error), (answer, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(set_seccomp, filter_mode, header) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def run(*words):
    return subprocess.run([cli, *words, "--pool", pool], capture_output=True, text=True, timeout=60)


def extents():
    done = run("flash", "ls", "-o", "json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)["nodes"][0]["extents"]


def start(before=None):
    return subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.PIPE, text=True, preexec_fn=before)


def wait_for_status():
    end = time.monotonic() + 20
    while run("status").returncode != 0:
        assert time.monotonic() < end and process.poll() is None, "the daemon did not come up"
        time.sleep(0.1)
    return json.loads(run("status", "-o", "json").stdout)["nodes"][0]


with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp may be memory
    folder = pathlib.Path(name)
    pool = f"unix:{folder}/c.sock"
    with open(folder / "flash", "wb") as flash:
        flash.truncate(16 << 20)
    (folder / "flash").chmod(0o600)
    config = folder / "config.textproto"
    config.write_text(f'''
node_id: 5 ddr_bytes: 16777216 segment_bytes: 2097152 unix_socket: "{folder}/c.sock"
flash {{ path: "{folder}/flash" }}
''')
    setting = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
    disabled = setting.exists() and int(setting.read_text()) != 0
    for error, why in ((errno.ENOSYS, "this kernel does not support it"),
                       (errno.EPERM, "disabled by the kernel" if disabled else "this process may not use it")):
        process = start(lambda error=error: forbid_io_uring(error))
        try:
            status = wait_for_status()
            assert why in status["flash_off"], status
            assert "off" in run("status").stdout
        finally:
            process.terminate()
            said = process.communicate(timeout=20)[1]
        assert process.returncode == 0 and "running without flash" in said and why in said, (process.returncode, said)

    process = start()
    try:
        status = wait_for_status()
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
        refused = run("flash", "free", named)
        assert refused.returncode == 1 and "in use by session" in refused.stderr, refused
        lib.ho_disconnect(handle)

        (one,) = extents()
        assert one["session_id"] == 0, one
        table = run("flash", "ls").stdout
        assert "durable" in table and "3.00 MiB" in table and "leaver" in table, table
        assert one["owner"] == f"uid {os.getuid()}" and one["label"] == "leaver", one
        assert one["age_s"] < 600 and one["unused_s"] < 600 and "left_s" not in one, one
        freed = run("flash", "free", named)
        assert freed.returncode == 0 and named in freed.stdout and freed.stderr == "", freed
        assert extents() == []
        again = run("flash", "free", named)
        assert again.returncode == 1 and "no such extent" in again.stderr, again
    finally:
        process.terminate()
        process.wait(20)

    # A daemon without stderr, or any of the three streams, does not write its log into the flash file.
    for first in (2, 0):
        process = start(lambda first=first: os.closerange(first, 3))
        try:
            wait_for_status()
            for stream in range(first, 3):
                assert os.readlink(f"/proc/{process.pid}/fd/{stream}") == "/dev/null"
        finally:
            process.terminate()
            process.wait(20)
        with open(folder / "flash", "rb") as flash:
            assert flash.read(8) == b"Hflash01"
    checked = subprocess.run([cli, "fsck", str(folder / "flash"), "-o", "json"], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and json.loads(checked.stdout)["notes"] == [], checked
