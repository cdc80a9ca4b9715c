"""Trains tools/examples/torch on several ranks of one pool, plainly and within 60 % of its memory: each rank has
the same losses and weights, bit for bit, in each way to average gradients.

Usage: see support.py.
"""

import json
import multiprocessing
import os
import unittest

import support  # first: it finds PyTorch and the package
import needs
import torch

SMALL = ["--layers", "2", "--width", "64", "--length", "32", "--batch", "8", "--steps", "8"]


def run_rank(environment, said, *arguments):
    """In a process of its own: see parallel_rank.main()."""
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(said.fileno(), stream)
    parallel_rank.main(*arguments)


class Parallel(support.WithDaemon):
    def start(self, way, ranks, pools):
        """`pools`: an address for each rank, "" without a pool. Returns (process, file that it writes, file of what it prints) of each rank."""
        environment = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(support.free_port()),
                       "GLOO_SOCKET_IFNAME": "lo", "USE_LIBUV": "0"}  # Debian's PyTorch 2 is built without it
        started = []
        for rank in range(ranks):
            out = self.folder / f"{way}.{ranks}.{pools[rank][:4]}.{rank}"
            said = open(f"{out}.said", "w+", encoding="utf-8")
            self.addCleanup(said.close)
            process = FORKS.Process(target=run_rank, args=({**environment, "RANK": str(rank)}, said, way, pools[rank], out, SMALL))
            process.start()
            self.addCleanup(process.join)
            self.addCleanup(process.kill)
            started.append((process, out, said))
        return started

    def end_of(self, process):
        process.join(300)
        return process.exitcode

    def results(self, started):
        ends = [(self.end_of(process), said) for process, _, said in started]
        for _, said in ends:
            said.seek(0)
        texts = [f"rank {rank}: {code}\n{said.read()}" for rank, (code, said) in enumerate(ends)]
        self.assertEqual([code for code, _ in ends], [0] * len(ends), "\n".join(texts))
        return [json.loads(out.read_text()) for _, out, _ in started]

    def check(self, way, ranks=2, pools=None):
        """Both jobs run at a time. `pools`: an address for each rank. Returns what stats() said of each rank."""
        jobs = [self.start(way, ranks, each) for each in ([""] * ranks, pools or [self.pool] * ranks)]
        plain, planned = map(self.results, jobs)
        for rank in range(ranks):
            self.assertEqual(plain[rank]["losses"], planned[rank]["losses"], rank)
            self.assertEqual(plain[rank]["weights"], planned[rank]["weights"], rank)
        self.assertEqual(len({str(each["losses"]) for each in plain}), ranks)  # each has its own windows
        self.assertEqual(len({each["weights"] for each in plain}), 1)
        stats = [each["stats"] for each in planned]
        for each in stats:
            self.assertLess(each["peak_allocated_bytes"], 1.05 * each["budget_bytes"])
        return stats

    def check_planned(self, way, ranks=2, recorded=2, pools=None):
        for each in self.check(way, ranks, pools):
            self.assertEqual((each["planned_steps"], each["departures"]), (8 - recorded, 0))

    def test_two_ranks_have_the_same_bits(self):
        self.check_planned("parameters")

    def test_four_ranks_have_the_same_bits(self):
        self.check_planned("parameters", ranks=4)

    def test_ranks_on_nodes_of_their_own_have_the_same_bits(self):
        with support.Daemons(3, tcp=True, ddr_bytes=32 << 20) as pool:
            self.check_planned("parameters", ranks=3, pools=pool.addresses)

    def test_gradients_in_one_bucket(self):
        self.check_planned("bucket")

    def test_what_a_collective_works_on_stays_until_it_ends(self):
        self.check_planned("async")

    def test_a_sum_that_begins_between_two_steps_has_the_same_bits(self):
        for each in self.check("between"):
            self.assertGreater(each["planned_steps"], 0)

    def test_what_is_sent_and_received_stays(self):
        self.check_planned("p2p")

    def test_distributed_data_parallel_runs_under_the_plan(self):
        self.check_planned("ddp", recorded=3)

    def test_gradients_as_views_of_buckets(self):
        self.check_planned("views", recorded=3)

    def test_collectives_that_do_not_come_here_find_the_values(self):
        self.check("coalesced")  # PyTorch 2.x shows them, and they run under the plan

    def needs_2(self):
        if torch.__version__.startswith("1."):
            needs.skip_case("PyTorch 1 has no functional collectives, DTensor and FSDP2")

    def test_functional_collectives_run_under_the_plan(self):
        self.needs_2()
        self.check_planned("functional")

    def test_an_error_of_a_functional_collective_comes_up(self):
        self.needs_2()
        (first, out, said), (last, _, _) = self.start("functional, one ends", 2, [self.pool] * 2)
        self.assertEqual(self.end_of(last), 3)
        self.assertEqual(self.end_of(first), 1)
        self.assertFalse(out.exists())
        said.seek(0)
        self.assertRegex(said.read(), "RuntimeError: .*closed by peer|RuntimeError: .*[Cc]onnection")

    def test_divided_matrices_run_under_the_plan(self):
        self.needs_2()
        self.check_planned("tensor")

    def test_sharded_parameters_run_under_the_plan(self):
        self.needs_2()
        if not hasattr(torch.cpu, "Stream") or not hasattr(torch.cpu.Stream, "record_event"):
            needs.skip_case(f"PyTorch {torch.__version__} has no FSDP2 on the processor")
        self.check_planned("fsdp")


if __name__ == "__main__":
    if not torch.distributed.is_available():
        needs.skip("this PyTorch was built without torch.distributed")
    import parallel_rank  # it needs that
    FORKS = multiprocessing.get_context("fork")  # which have PyTorch already; importing it takes longer than these steps
    unittest.main()
