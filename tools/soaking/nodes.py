"""The pool of a soak: four daemons on this machine, each with another promise."""
import json
import os
import pathlib
import re
import subprocess
import time

from service_manager import ServiceManager

MIB = 1 << 20
SEGMENT = 2 * MIB
FLASH_BYTES = 96 * MIB
LEASE_MS = 5000
EVENTS_KEPT = 1100  # a little more than daemon/control/events.hpp keeps of each kind
ENDS_KEPT = 4200  # a little more sessions than daemon/pool/pool.cpp keeps the ends of
LAPSES = 140  # sessions that one process opens


class Failure(Exception):
    """Something that must not happen was seen."""


class Node(ServiceManager):
    """A daemon. `keeps`: its memory outlives it, by a descriptor store; `falls`: it is killed at times."""

    def __init__(self, pool, number, name, keeps, falls, flash=False):
        self.number, self.name, self.keeps, self.falls, self.flash = number, name, keeps, falls, flash
        self.pool = pool
        self.folder = pool.folder / name
        self.folder.mkdir()
        self.address = f"unix:{self.folder}/control.sock"
        self.config = self.folder / "config.textproto"
        super().__init__(self.folder, [str(pool.programs["hyperoffloadd"]), "--config", str(self.config)],
                         descriptors_max=1024 if keeps else 0)

    def write_config(self):
        flash, blocks = "", 'ddr_bytes: "16MiB"'
        if self.flash:
            blocks = 'ddr_bytes: "4MiB" flash_bytes: "16MiB"'  # less than its share of the keys needs
            path = self.folder / "flash"
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            os.truncate(path, FLASH_BYTES)
            flash = f'flash {{ path: "{path}" }}\n'
        peers = "".join(f'nodes {{ node_id: {one.number} name: "{one.name}" control_addresses: "{one.address}" }}\n'
                        for one in self.pool.nodes if one is not self)
        self.config.write_text(f"""
node_id: {self.number} node_name: "{self.name}" ddr_bytes: "128MiB" segment_bytes: {SEGMENT}
lease_ms: {LEASE_MS} drain_ms: 500 unix_socket: "{self.folder}/control.sock" tcp {{ address: "127.0.0.1" }} http_listen: "127.0.0.1:0"
blocks {{ {blocks} }}
{flash}{peers}""")


class Pool:
    def __init__(self, folder, programs):
        self.folder, self.programs = pathlib.Path(folder), programs
        self.nodes = []
        for number, (name, keeps, falls, flash) in enumerate((
                ("keeps", True, True, False), ("flash", True, True, True), ("loses", False, True, False),
                ("stays", False, False, False))):
            self.nodes.append(Node(self, number, name, keeps, falls, flash))
        for node in self.nodes:
            node.write_config()

    def start(self):
        for node in self.nodes:
            node.start()

    def run(self, *words, at=None, timeout_s=60):
        """A command of an administrator. It must keep to the contract: an exit code, and words where it is not 0."""
        node = at or self.nodes[-1]  # which is always there
        line = [str(self.programs["hyperoffload"]), *words, "--pool", node.address, "-o", "json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False, start_new_session=True)
        if done.returncode not in (0, 1, 4) or (done.returncode != 0 and not done.stderr.strip()):
            raise Failure(f"`hyperoffload {' '.join(words)}` ended with {done.returncode}: {done.stderr[-2000:]!r}")
        return done

    def ask(self, *words, at):
        """What one node says of itself. None: it does not answer now."""
        done = self.run(*words, at=at)
        if done.returncode == 4:
            return None
        found = [one for one in json.loads(done.stdout)["nodes"] if one["name"] == at.name]
        return found[0] if found and found[0]["reachable"] else None

    def quiet(self, patience_s):
        """Waits until no job holds anything, then ends the blocks, which are a cache. The rest is a leak."""
        end = time.monotonic() + patience_s
        for node in self.nodes:
            while True:
                self.run("undrain", node.name, at=node)
                left = self._left(node)
                if not left:
                    break
                if time.monotonic() > end:
                    raise Failure(f"{node.name} holds for nobody: {left}")
                time.sleep(0.3)

    def _left(self, node):
        blocks = self.ask("blocks", "ls", at=node)
        for tenant in blocks["tenants"] if blocks else []:
            self.run("blocks", "clear", "--tenant", tenant["tenant"], at=node)
        status, objects = self.ask("status", at=node), self.ask("objects", "ls", at=node)
        if not status or not objects:
            return "it does not answer"
        left = {key: status[key] for key in ("sessions", "ddr_granted_bytes", "drained") if status[key]}
        if objects["objects"]:
            left["objects"] = objects["objects"]
        if node.flash:
            scratch = [one for one in self.ask("flash", "ls", at=node)["extents"] if one["policy"] == "scratch"]
            if scratch:
                left["scratch extents"] = scratch
        return left

    def stop(self):
        """A real stop of all. @return what is wrong with their ends."""
        wrong = []
        for node in self.nodes:
            status = node.stop()
            if status != 0:
                wrong.append(f"{node.name} ended with {status} after SIGTERM")
        return wrong

    def check_logs(self):
        """Words that no log may have."""
        for node in self.nodes:
            text = node.errors.read_text() if node.errors.exists() else ""
            bad = re.search(r"^.*(Sanitizer|HO_CHECK|check failed|terminate called|runtime error).*$", text, re.M)
            if bad:
                raise Failure(f"{node.name} logged: {bad[0]}")
