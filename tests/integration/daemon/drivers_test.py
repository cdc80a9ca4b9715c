"""Which drivers a real daemon has: forbidden and forced by its configuration, told by status, mistakes by line."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

cli, daemon = sys.argv[1:3]


def config(folder, more):
    file = folder / "daemon.textproto"
    file.write_text(f'ddr_bytes: 16777216 segment_bytes: 2097152 unix_socket: "{folder}/d.sock"\n{more}\n')
    return str(file)


class Running:
    """A daemon that answers."""

    def __init__(self, folder, more):
        self.pool = f"unix:{folder}/d.sock"
        self.process = subprocess.Popen([daemon, "--config", config(folder, more)], stderr=subprocess.DEVNULL)

    def __enter__(self):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.ask("json").returncode == 0:
                return self
            time.sleep(0.05)
        raise AssertionError("the daemon does not come up")

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(20) == 0

    def ask(self, form):
        return subprocess.run([cli, "status", "-o", form, "--pool", self.pool], capture_output=True, text=True, timeout=30)

    def status(self):
        return json.loads(self.ask("json").stdout)["nodes"][0]

    def listens_on_tcp(self):
        own = {os.readlink(fd) for fd in pathlib.Path(f"/proc/{self.process.pid}/fd").iterdir()}
        rows = pathlib.Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]
        return any(row.split()[3] == "0A" and f"socket:[{row.split()[9]}]" in own for row in rows)


def off(status):
    return {one["driver"]: one["reason"] for one in status["drivers_off"]}


def refused(folder, more, codes, *words):
    """@param codes  of a start, which is 1 where what the machine lacks may come, and of --check-config, if that finds it."""
    for code, check in zip(codes, ([], ["--check-config"])):
        done = subprocess.run([daemon, "--config", config(folder, more), *check], capture_output=True, text=True, timeout=30)
        assert done.returncode == code, (done.returncode, done.stderr)
        for word in words:
            assert word in done.stderr, (word, done.stderr)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    has_rdma = any(pathlib.Path("/sys/class/infiniband").glob("*"))

    with Running(folder, "tcp { }") as running:
        status = running.status()
        assert status["drivers"] == ["local", "tcp"] and status["drivers_off"] == [], status
        assert status["path"] == "local" and running.listens_on_tcp(), status

    with Running(folder, 'tcp { } transport: "local"') as running:
        status = running.status()
        assert status["drivers"] == ["local"] and not running.listens_on_tcp(), status
        assert off(status)["tcp"] == "forbidden by its configuration", status
        assert "no tcp: forbidden by its configuration" in running.ask("wide").stdout

    with Running(folder, 'tcp { } transport: "tcp"') as running:
        status = running.status()
        assert status["drivers"] == ["tcp"] and status["path"] == "tcp", status
        assert "local: not offered by it: forbidden by its configuration" in status["path_reason"], status

    with Running(folder, 'tcp { } tcp { address: "127.0.0.2" }') as running:
        status = running.status()
        assert status["drivers"] == ["local", "tcp"] and {"driver": "tcp", "count": 2} in status["rails"], status
        assert "local,tcp (tcp: 2 rails)" in running.ask("wide").stdout

    if not has_rdma:
        with Running(folder, "tcp { } insecure: true ucx { }") as running:
            status = running.status()
            assert off(status) == {"ucx": "this node has no RDMA device"}, status
        refused(folder, 'insecure: true ucx { } transport: "ucx"', (1,), "ucx: this node has no RDMA device")

    at = f"{folder}/daemon.textproto"
    refused(folder, 'ofi {\n provider: "nonesuch" address: "127.0.0.1" allow_emulation: true\n}', (1, 2), f"{at}:3: ofi: provider: ", "nonesuch", "tcp")
    refused(folder, 'tcp { }\ntcp {\n address: "192.0.2.1"\n}\ninsecure: true', (1, 2), f"{at}:4: tcp: address: ", "192.0.2.1")
    refused(folder, 'ofi { allow_emulation: true }\nofi {\n address: "192.0.2.1"\n}\ninsecure: true', (1, 2), f"{at}:4: ofi: address: ", "192.0.2.1")
    refused(folder, 'ofi {\n domain: "nonesuch0"\n allow_emulation: true\n}', (1, 2), f"{at}:3: ofi: domain: ", "nonesuch0", "lo")
    refused(folder, 'insecure: true\ntcp {\n\n interface: "nonesuch0"\n}', (1, 2), f"{at}:5: tcp: interface: ", "nonesuch0")
    refused(folder, 'insecure: true\nofi { allow_emulation: true\n\n interface: "nonesuch0"\n}', (1, 2), f"{at}:5: ofi: interface: ", "nonesuch0")
    refused(folder, 'insecure: true ofi { allow_emulation: true\n address: "192.0.2.77"\n}', (1, 2),
            f"{at}:3: ofi: address: 192.0.2.77 is not an address")
    refused(folder, 'ofi {\n provider: "tcp"\n}', (2, 2), f"{at}:3: ofi: provider: ", "write tcp { } in place of ofi { }")
