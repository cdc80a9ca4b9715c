"""A daemon that reserves its memory (ddr_reserve) has it from the start on, gives it to grants, takes it back, and leaves
it to the next daemon. It does not start where the memory is not free."""
import os
import pathlib
import re
import subprocess
import tempfile
import time

from node import Node, SEGMENT, daemon

ALL = 67108864
COUNT = ALL // SEGMENT


def reserved(node):
    """Inodes of the memory in the store that is not granted."""
    names = [name for name in node.names() if name.startswith("r")]
    out = set()
    for name in names:
        copy = node.descriptor(name)
        out.add(os.fstat(copy).st_ino)
        assert os.fstat(copy).st_size == SEGMENT
        os.close(copy)
    return out


def has(node, segments):
    """Waits until so many segments are granted, and all others are reserved."""
    end = time.monotonic() + 60
    while True:
        status = node.ask("status")
        if (status["ddr_granted_bytes"], status["ddr_reserved_bytes"]) == (segments * SEGMENT, ALL - segments * SEGMENT):
            return
        assert time.monotonic() < end, status
        time.sleep(0.05)


def resident_bytes(node):
    text = pathlib.Path(f"/proc/{node.pid}/status").read_text()
    return int(re.search(r"RssShmem:\s+(\d+) kB", text)[1]) * 1024


def takes_gives_and_leaves():
    with tempfile.TemporaryDirectory() as folder, Node(folder, more="ddr_reserve: true") as node:
        node.start()
        has(node, 0)
        assert resident_bytes(node) >= ALL, resident_bytes(node)
        first = reserved(node)
        assert len(first) == COUNT, len(first)
        client = node.hold(3)
        try:
            has(node, 3)
            left = reserved(node)
            assert left < first and len(left) == COUNT - 3, (len(left), len(left & first))
            granted = {os.fstat(copy).st_ino for copy in map(node.descriptor, ("s1", "s2", "s3"))}
            assert granted == first - left
            node.kill()
            has(node, 3)
            assert reserved(node) == left
            answer = node.ask("upgrade", "3")
            assert answer["taken_segments"] == 3, answer
            has(node, 3)
            assert reserved(node) == left
            # Granted memory goes back to the system; new memory takes its place.
            assert node.cli("evict", "3:1").returncode == 0
            has(node, 0)
            again = reserved(node)
            assert len(again) == COUNT and left < again and not granted & again
        finally:
            client.kill()
            client.wait()
        # The next one reserves nothing: what was reserved is free again.
        node.file.write_text(node.text.replace("ddr_reserve: true", ""))
        node.kill()
        assert node.ask("status")["ddr_reserved_bytes"] == 0 and reserved(node) == set()
        assert resident_bytes(node) < ALL / 2
        assert node.stop() == 0 and node.left == [], node.left


def granted_memory_is_not_taken_for_reserved():
    """A descriptor that was granted, under the name of one that was not: it is sealed, so nobody believes that."""
    with tempfile.TemporaryDirectory() as folder, Node(folder, more="ddr_reserve: true") as node:
        node.start()
        has(node, 0)
        client = node.hold(1)

        def rename(store):
            descriptor = os.dup(next(one for name, one in store if name == "s1"))
            store.append(("r999", descriptor))

        try:
            node.before_next = rename
            node.kill()
            has(node, 1)
            assert "r999" not in node.names()
        finally:
            client.kill()
            client.wait()


def refuses_what_is_not_free():
    def memory(key):
        return int(re.search(rf"{key}:\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024

    most = memory("MemTotal") - memory("MemTotal") // 50 - (65 << 20)
    if memory("MemAvailable") > most:
        return print("not tried: nearly all memory is free")
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "c.textproto"
        text = f'ddr_bytes: {most // SEGMENT * SEGMENT} segment_bytes: {SEGMENT} unix_socket: "{folder}/c.sock"\n'
        for mode, code in (([], 1), (["--check-config"], 2)):
            config.write_text(text + "ddr_reserve: true")
            done = subprocess.run([daemon, "--config", str(config), *mode], capture_output=True, text=True, timeout=60)
            assert done.returncode == code and "c.textproto:2: ddr_reserve: " in done.stderr, done
            assert " are needed, but " in done.stderr, done
        config.write_text(text)
        done = subprocess.run([daemon, "--config", str(config), "--check-config"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done


takes_gives_and_leaves()
granted_memory_is_not_taken_for_reserved()
refuses_what_is_not_free()
