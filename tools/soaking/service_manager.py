"""Stands in for systemd, as far as a service with a descriptor store sees it: takes descriptors on a notify socket,
hands them to the next process, and starts that one when the last one died or ended to be started again."""
import array
import fcntl
import os
import pathlib
import signal
import socket
import threading
import time

RESTART_STATUS = 75  # RestartForceExitStatus of the unit
HIGH = 500  # copies of descriptors lie here, out of the way of those that a process is given


class ServiceManager:
    def __init__(self, folder, command, descriptors_max=64, restart_after=0.1, watchdog_s=None):
        self.command = command
        self.descriptors_max = descriptors_max
        self.restart_after = restart_after
        self.store = []  # pairs of name and descriptor
        self.exits = []  # statuses of the processes, negative for a signal
        self.left = []  # names in the store when the last process ended
        self.before_next = None  # called with the store before the next process starts
        self.marks = set()  # those of drain() that came
        self.follows = True  # whether a next process starts
        self.ready = 0
        self.watchdog_s = watchdog_s
        self.signs = 0  # WATCHDOG=1 that came
        self.pid = None
        self.errors = pathlib.Path(folder) / "daemon.err"
        self.lock = threading.Condition()
        self.stopping = False
        self.notify_path = str(pathlib.Path(folder) / "notify.sock")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.notify_path)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        self.runner = None

    def read(self):
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(16 * 4))
            descriptors = array.array("i")
            for level, kind, value in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    descriptors.frombytes(value[:len(value) - len(value) % descriptors.itemsize])
            if data == b"":  # from end()
                return
            self.take(dict(line.split("=", 1) for line in data.decode().splitlines()), list(descriptors))

    @staticmethod
    def keep(descriptor):
        if descriptor >= HIGH:
            return descriptor
        copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
        os.close(descriptor)
        return copy

    def take(self, said, descriptors):
        with self.lock:
            if said.get("FDSTORE") == "1":
                for descriptor in descriptors:
                    if len(self.store) < self.descriptors_max:  # as systemd: no word to the service
                        self.store.append((said.get("FDNAME", "stored"), self.keep(os.dup(descriptor))))
            if said.get("FDSTOREREMOVE") == "1":
                for name, descriptor in [one for one in self.store if one[0] == said.get("FDNAME")]:
                    os.close(descriptor)
                    self.store.remove((name, descriptor))
            if said.get("READY") == "1":
                self.ready += 1
            if said.get("WATCHDOG") == "1":
                self.signs += 1
            if "MARK" in said:
                self.marks.add(said["MARK"])
            self.lock.notify_all()
        for descriptor in descriptors:
            os.close(descriptor)  # a barrier waits for that

    def spawn(self):
        """Runs the command with the stored descriptors from 3 on."""
        with self.lock:
            self.store = [(name, self.keep(descriptor)) for name, descriptor in self.store]
            names = ":".join(name for name, _ in self.store)
            actions = [(os.POSIX_SPAWN_DUP2, descriptor, 3 + i) for i, (_, descriptor) in enumerate(self.store)]
            environment = {key: value for key, value in os.environ.items() if not key.startswith("LISTEN_")}
            environment.update(NOTIFY_SOCKET=self.notify_path, FDSTORE=str(self.descriptors_max))
            if self.watchdog_s:
                environment["WATCHDOG_USEC"] = str(int(self.watchdog_s * 1e6))
            script = 'exec "$@"'
            if actions:
                environment.update(LISTEN_FDS=str(len(actions)), LISTEN_FDNAMES=names)
                script = 'LISTEN_PID=$$; export LISTEN_PID; exec "$@"'
            # What Python has open is closed on exec; these two say so for themselves.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            actions.append((os.POSIX_SPAWN_OPEN, 2, str(self.errors), flags, 0o600))
            words = ["sh", "-c", script, "sh", *self.command]
            self.pid = os.posix_spawn("/bin/sh", words, environment, file_actions=actions)

    def run(self):
        while True:
            self.spawn()
            _, status = os.waitpid(self.pid, 0)
            self.drain(f"exit {len(self.exits)}")
            with self.lock:
                self.exits.append(os.waitstatus_to_exitcode(status))
                self.pid = None
                self.left = sorted(name for name, _ in self.store)
                again = self.exits[-1] != 0 and not self.stopping and self.follows
                if not again:
                    self.clear()
                self.lock.notify_all()
                if not again:
                    return
            time.sleep(self.restart_after)
            if self.before_next:
                self.before_next(self.store)

    def drain(self, mark):
        """Waits until all that the process said has been read."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(f"MARK={mark}".encode(), self.notify_path)
        with self.lock:
            self.lock.wait_for(lambda: mark in self.marks, 60)

    def clear(self):
        for _, descriptor in self.store:
            os.close(descriptor)
        self.store.clear()

    def start(self):
        self.runner = threading.Thread(target=self.run, daemon=True)
        self.runner.start()
        self.wait_ready(1)

    def wait_until(self, true, what, seconds=60):
        with self.lock:
            assert self.lock.wait_for(true, seconds), (what, self.exits, self.errors.read_text()[-3000:])

    def wait_ready(self, count):
        self.wait_until(lambda: self.ready >= count, f"ready {count} times")

    def kill(self):
        """Kills the process, and waits until the next one is ready."""
        with self.lock:
            ready = self.ready
            os.kill(self.pid, signal.SIGKILL)
        self.wait_ready(ready + 1)

    def end_process(self):
        """Kills the process. None follows if `follows` says so."""
        with self.lock:
            os.kill(self.pid, signal.SIGKILL)

    def descriptor(self, name):
        """A copy of the first one of that name, after all that the process has said until now."""
        self.drain(f"descriptor {time.monotonic_ns()}")
        with self.lock:
            return os.dup(next(descriptor for one, descriptor in self.store if one == name))

    def names(self):
        """Names in the store, after all that the process has said until now."""
        self.drain(f"names {time.monotonic_ns()}")
        with self.lock:
            return sorted(name for name, _ in self.store)

    def stop(self):
        """A real stop: nothing is kept. @return the process's exit status."""
        with self.lock:
            self.stopping = True
            if self.pid is not None:
                os.kill(self.pid, signal.SIGTERM)
        self.runner.join(60)
        assert not self.runner.is_alive(), self.errors.read_text()[-3000:]
        return self.exits[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with self.lock:
            self.stopping = True
            if self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)
        if self.runner is not None:
            self.runner.join(60)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.notify_path)
        self.reader.join(60)
        self.clear()
        self.socket.close()
