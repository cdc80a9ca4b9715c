"""Jobs of a soak: what they run, and what their ends must look like."""
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from nodes import ENDS_KEPT, EVENTS_KEPT, LAPSES, Failure

MODEL = ["--layers", "2", "--dim", "64", "--heads", "2", "--seq", "32", "--batch", "2"]
STEPS_MAX = 400
SEEDS = 3  # each gives another model
HERE = pathlib.Path(__file__).resolve().parent
TRAIN = ("train", "train with copies")
KINDS = (*TRAIN, "memory", "flash", "blocks", "objects")
JOB_S_MAX = 400  # a job that has not ended by then hangs
EVERY_HOME_TWICE = "2,ACTIVATION=2,GRADIENT=2,INPUT=2"


def resident_losses(programs, seed):
    """What every training run with this seed must arrive at, step by step."""
    done = subprocess.run([str(programs["hyperoffload-compare"]), "one", "--policy", "resident", *MODEL, "--seed", str(seed),
                           "--steps", str(STEPS_MAX), "-o", "json"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise Failure(f"the resident run failed: {done.stderr[-1000:]}")
    return json.loads(done.stdout)["losses"]


def environment(pool):
    """For client.py."""
    return {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "client/python"), "PYTHONDONTWRITEBYTECODE": "1",
            "HYPEROFFLOAD_LIBRARY": str(pool.programs["libhyperoffload.so.0"])}


def fill_events(pool):
    """A daemon keeps its last events of each kind, with their texts. Its memory grows, as with a leak, until it has so
    many, with texts as long as those that the soak makes: so these are made of the same acts."""
    last = pool.nodes[-1]  # the one that lives throughout
    acts = itertools.cycle((("undrain", last.name), ("undrain", last.name), ("drain", last.name), ("undrain", last.name),
                            ("blocks", "clear", "--tenant", "soak")))
    refusals = itertools.cycle((("flash", "ls"), ("evict", f"{last.number}:999999999")))
    for _ in range(EVENTS_KEPT * 5 // 4):
        for words in next(acts), next(refusals):
            done = pool.run(*words)
            if done.returncode == 4:
                raise Failure(f"`hyperoffload {' '.join(words)}` ended with 4: {done.stderr[-1000:]}")
    pool.run("undrain", last.name)
    done = subprocess.run(_client(pool, "events"), env=environment(pool), capture_output=True, text=True, timeout=600,
                          check=False, start_new_session=True)
    if done.returncode != 0:
        raise Failure(f"sessions one after the other: {done.stderr[-1000:]}")
    for _ in range(0, ENDS_KEPT, LAPSES):
        with subprocess.Popen(_client(pool, "lapse"), env=environment(pool), stdout=subprocess.PIPE, text=True,
                              start_new_session=True) as process:
            said = process.stdout.readline()
            process.kill()
        if said != "working\n":
            raise Failure("many sessions at once cannot be opened")


def _client(pool, kind):
    return [sys.executable, str(HERE / "client.py"), kind, pool.nodes[-1].address, "tcp", "0", "0", "-"]


class Job:
    def __init__(self, pool, kind, chance, number, seconds, losses):
        self.pool, self.kind, self.number = pool, kind, number
        self.losses = losses  # by seed: those of a resident run
        self.began, self.worked, self.killed, self.evicted = time.monotonic(), None, False, False
        self.excuse = None
        # The last one is always there. Sessions are on all nodes, whichever is named.
        self.address = chance.choice(pool.nodes).address + "," + pool.nodes[-1].address
        self.transport = chance.choice(["local", "tcp"])
        self.model_seed = chance.randrange(1, SEEDS + 1)
        self.steps = chance.randrange(40, STEPS_MAX + 1)
        stem = pool.folder / f"job-{number}"
        self.out_path, self.err_path = stem.with_suffix(".out"), stem.with_suffix(".err")
        with open(self.out_path, "w", encoding="utf-8") as out, open(self.err_path, "w", encoding="utf-8") as err:
            self.process = subprocess.Popen(self._line(chance, seconds), stdout=out, stderr=err,
                                            env=environment(pool), start_new_session=True)

    def _line(self, chance, seconds):
        if self.kind in TRAIN:
            line = [str(self.pool.programs["hyperoffload-gpt"]), "train", *MODEL, "--seed", str(self.model_seed),
                    "--steps", str(self.steps), "--device-memory", chance.choice(["40%", "60%"]), "--transport",
                    self.transport, "--pool", self.address, "-o", "json"]
            return line + (["--copies", EVERY_HOME_TWICE] if self.kind == "train with copies" else [])
        ledger = self.pool.folder / "ledger"
        ledger.mkdir(exist_ok=True)
        return [sys.executable, str(HERE / "client.py"), self.kind, self.address, self.transport,
                str(chance.randrange(1 << 30)), f"{chance.uniform(0.3, 1) * seconds:.1f}", str(ledger)]

    def look(self):
        """@return whether it has ended."""
        if self.worked is None:
            mark, path = ("step 3:", self.err_path) if self.kind in TRAIN else ("working", self.out_path)
            if mark in path.read_text():
                self.worked = time.monotonic()
        if self.process.poll() is not None:
            return True
        if time.monotonic() - self.began > JOB_S_MAX:
            raise Failure(f"{self.words()} hangs: {self.err_path.read_text()[-2000:]}")
        return False

    def kill(self):
        self.killed = True
        self.process.kill()
        self.process.wait()

    def words(self):
        return f"job {self.number} ({self.kind} over {self.transport}, pid {self.process.pid})"

    def judge(self, events):
        """Whether it may have ended so, after what happened to nodes: (time, act, node's name). @return a word for the
        table, and what it counted."""
        code, err = self.process.returncode, self.err_path.read_text()
        if code == -signal.SIGKILL and self.killed:
            return "killed", {}
        if code == 0:
            return "done", self._check_result()
        said = [line for line in err.splitlines() if line.startswith(("hyperoffload-gpt train: ", "the pool failed: "))]
        if code == 4 and said:
            excuse = self._find_excuse(events, said[0])
            if excuse:
                return f"ended: {excuse}", {}
            raise Failure(f"{self.words()} ended without a cause that it must not survive: {err[-3000:]}")
        raise Failure(f"{self.words()} ended with {code}: {err[-3000:]}")

    def _check_result(self):
        if self.kind not in TRAIN:
            return json.loads(self.out_path.read_text().splitlines()[-1])
        losses = json.loads(self.out_path.read_text())["losses"]
        wanted = self.losses(self.model_seed)[:self.steps]
        if losses != wanted:
            at = next((i for i, (a, b) in enumerate(zip(losses, wanted)) if a != b), min(len(losses), len(wanted)))
            raise Failure(f"{self.words()} trained to other bits from step {at} on: {losses[at:at + 3]} is not "
                          f"{wanted[at:at + 3]}")
        return {"steps_checked": len(losses)}

    def _find_excuse(self, events, said):
        """The cause that may have ended it, among all that happened while it ran."""
        if self.evicted:
            return "evicted"
        seen = [(at, act, node) for at, act, node in events if at >= self.began - 1]
        acts = {act for _, act, _ in seen}
        lost = [at for at, act, node in seen if act == "kill" and not node.keeps]
        restarts = [at for at, act, node in seen if act in ("kill", "upgrade") and node.keeps]
        if self.kind == "train with copies":
            # One node is lost while it runs: it goes on. With more, or one that missed bytes meanwhile, it may end.
            if lost and not (len(lost) == 1 and self.worked and lost[0] > self.worked + 1 and not restarts):
                return "node lost"
        elif lost:
            return "node lost"
        if restarts and self.kind in ("flash", "blocks"):
            return "flash or blocks ended with their daemon"
        if restarts and (self.worked is None or any(at < self.worked for at in restarts)):
            return "daemon restarted while it started"
        if "drain" in acts and (self.worked is None or "drain" in said):
            return "node drained"
        # A drain lasts some seconds: it may have begun before the job did.
        if "is drained" in said and any(act == "drain" and at >= self.began - 10 for at, act, _ in events):
            return "node drained"
        if "exhausted" in said:
            return "pool full"
        return None
