"""A GPT trains to the same bits while its daemon is killed again and again, and upgraded. Then: what a job hears when
nobody takes its memory over."""
import concurrent.futures
import sys
import tempfile
import time

from node import Node
from patience import within
from takeover import flip_manifest

STALL_S_MAX = 2  # a step's longest, while the job's daemon is restarted


def train_through(transport, plan, steps):
    with tempfile.TemporaryDirectory() as folder, Node(folder) as node:
        node.start()
        quiet = node.train(transport, steps).result()
        disturbed = node.train(transport, steps, "--link", "100MiB/s")  # some 70 steps a second, however fast the machine
        disturbed.wait_for("step 10:")
        done = []
        for what in plan:
            time.sleep(0.25)
            if disturbed.ended():
                break
            if what == "kill":
                node.kill()
            else:
                answer = node.ask("upgrade", "n3")
                assert answer["upgraded"] and answer["taken_sessions"] == 1, answer
            done.append(what)
        run, gaps = disturbed.result(), disturbed.gaps_ms()
        if done != plan:  # it was faster than the kills
            assert steps < 100_000, done
            return train_through(transport, plan, 2 * steps)
        assert run["transport"] == transport, run["transport"]
        assert run["losses"] == quiet["losses"], (run["losses"][-3:], quiet["losses"][-3:])
        assert len(gaps) == len(plan), gaps
        assert max(run["step_ms"]) <= 1000 * within(STALL_S_MAX), max(run["step_ms"])
        # Nothing is left of it.
        assert node.names()[0] == "control" and len(node.names()) == 2, node.names()
        assert node.stop() == 0 and node.left == [], node.left
        return print(f"{transport}: {plan.count('kill')} kills and {plan.count('upgrade')} upgrades, without a daemon for "
              f"{min(gaps)} to {max(gaps)} ms; longest step {max(run['step_ms']):.0f} ms, "
              f"mean {sum(run['step_ms']) / len(run['step_ms']):.1f} ms")


def fails_clearly(transport, break_it, why):
    with tempfile.TemporaryDirectory() as folder, Node(folder, lease_ms=6000) as node:
        node.start()
        job = node.train(transport, 1_000_000)
        node.wait_for_steps()
        begin = time.monotonic()
        break_it(node)
        assert job.end() == 4, (job.process.returncode, job.said()[-3000:])
        last = job.said().splitlines()[-1]
        for word in ("n3", why, "tensors at home there"):
            assert word in last, (word, last)
        print(f"{transport}: after {time.monotonic() - begin:.1f} s: {last}")


def without_its_memory(node):
    node.before_next = flip_manifest
    node.kill()


def without_a_daemon(node):
    node.follows = False
    node.end_process()


if __name__ == "__main__":
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 3
    for way in ("local", "tcp"):
        train_through(way, ["kill", "upgrade"] * rounds, 120 * rounds)
    # A job of the same machine may run into the cut memory first, and must not hear of rights.
    faults = ((without_its_memory, "did not take this job's memory over"), (without_a_daemon, "control connection closed"))
    cases = [(way, *fault) for way in ("local", "tcp") for fault in faults]
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as threads:  # each waits for renewals while its job computes
        list(threads.map(lambda case: fails_clearly(*case), cases))
