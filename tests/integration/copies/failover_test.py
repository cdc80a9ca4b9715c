"""A GPT whose values have two homes trains on to the same bits when one of three daemons is killed, whichever it is.
When a second one is lost, and with it the last home of a value, the job ends with an error that names both nodes."""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

daemon, gpt = sys.argv[1:3]
NODES = 3
ALL_TWICE = "2,ACTIVATION=2,GRADIENT=2,INPUT=2"


# Runs a program on what it takes for another machine: the kernel's id of the boot is from the first argument.
ELSEWHERE = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
             'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"']


class Pool:
    def __init__(self, folder, machines="000"):
        """machines: on which each node runs; 0 is this one."""
        self.folder = pathlib.Path(folder)
        self.daemons = []
        for node in range(NODES):
            peers = "".join(f'nodes {{ node_id: {n} name: "n{n}" control_addresses: "{self.address(n)}" }}\n'
                            for n in range(NODES) if n != node)
            config = self.folder / f"n{node}.textproto"
            config.write_text(f"""
node_id: {node} node_name: "n{node}" ddr_bytes: 67108864 segment_bytes: 2097152 lease_ms: 600000 drain_ms: 500
unix_socket: "{self.folder}/n{node}.sock" tcp {{ address: "127.0.0.1" }}
{peers}""")
            errors = open(self.folder / f"n{node}.err", "w")
            command = [daemon, "--config", str(config)]
            if machines[node] != "0":
                boot = self.folder / f"boot{machines[node]}"
                boot.write_text(f"{machines[node]}0000000-0000-4000-8000-000000000000\n")
                command = [*ELSEWHERE, str(boot), *command]
            self.daemons.append(subprocess.Popen(command, stderr=errors))
        end = time.monotonic() + 30
        while not all((self.folder / f"n{n}.sock").exists() for n in range(NODES)):
            assert time.monotonic() < end, "the daemons did not start"
            time.sleep(0.02)

    def address(self, node):
        return f"unix:{self.folder}/n{node}.sock"

    def kill(self, node):
        self.daemons[node].send_signal(signal.SIGKILL)
        self.daemons[node].wait(timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.daemons:
            process.kill()
            process.wait(timeout=30)


class Job:
    """A training run, whose words come by way of a file: nobody reads while it runs."""

    def __init__(self, pool, transport, steps, copies=ALL_TWICE):
        self.words = pool.folder / f"job{time.monotonic_ns()}.err"
        self.out = tempfile.TemporaryFile("w+")
        with open(self.words, "w") as words:
            self.process = subprocess.Popen(
                [gpt, "train", "--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2",
                 "--device-memory", "40%", "--transport", transport, "--pool", pool.address(0), "--copies", copies,
                 "--steps", str(steps), "-o", "json"], stdout=self.out, stderr=words)

    def wait_for_step(self, step):
        end = time.monotonic() + 60
        while f"step {step}:" not in self.words.read_text():
            assert self.process.poll() is None, self.words.read_text()[-2000:]
            assert time.monotonic() < end, "the job does not train"
            time.sleep(0.005)

    def end(self):
        """Waits for it. @return the exit code, the result or None, and its words."""
        code = self.process.wait(timeout=120)
        self.out.seek(0)
        text = self.out.read()
        return code, json.loads(text) if code == 0 else None, self.words.read_text()


def survives(transport, victim, steps=60):
    with tempfile.TemporaryDirectory() as folder, Pool(folder) as pool:
        code, expected, words = Job(pool, transport, steps).end()
        assert code == 0, words[-2000:]
        job = Job(pool, transport, steps)
        job.wait_for_step(steps // 4)
        pool.kill(victim)
        code, run, words = job.end()
        assert code == 0, (victim, words[-3000:])
        assert "a node is lost to this job" in words, words[-2000:]
        lost_at = words[:words.index("a node is lost to this job")].count(": loss ")
        assert 0 < lost_at < steps, lost_at
        assert run["losses"] == expected["losses"], (victim, run["losses"][-3:], expected["losses"][-3:])
        around = run["step_ms"][max(lost_at - 1, 0):lost_at + 3]
        print(f"{transport}, n{victim} killed at step {lost_at}: longest step around it {max(around):.1f} ms, "
              f"mean of all {sum(run['step_ms']) / len(run['step_ms']):.2f} ms")


def names_what_is_lost(transport, copies, victims, words_wanted):
    with tempfile.TemporaryDirectory() as folder, Pool(folder) as pool:
        job = Job(pool, transport, 1_000_000, copies)
        job.wait_for_step(5)
        for victim in victims:
            pool.kill(victim)
        code, _, words = job.end()
        assert code == 4, (code, words[-2000:])
        last = words.splitlines()[-1]
        for word in words_wanted:
            assert word in last, (word, last)
        print(f"{transport}, {copies}, without n{victims}: {last}")


if __name__ == "__main__":
    what, transport = sys.argv[3:5]
    if what == "survive":
        survives(transport, int(sys.argv[5]))
    else:
        names_what_is_lost(transport, ALL_TWICE, [1, 2], ["no home of", "is left that has its value", "n1", "n2"])
        names_what_is_lost(transport, "1", [1], ["n1", "tensors at home there"])
