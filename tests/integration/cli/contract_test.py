"""One contract for every command of every program: help, usage errors, -o json, a full disk, Ctrl-C, a pool that is not
there. ROWS has a row for each command that a --help names; one without a row fails.

Usage: contract_test.py HYPEROFFLOAD HYPEROFFLOADD HYPEROFFLOAD_GPT [unittest arguments]
"""

import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs
from blocked import interrupt
from inputs import node, training_graph

PROGRAMS = {name: os.path.abspath(sys.argv.pop(1)) for name in ("hyperoffload", "hyperoffloadd", "hyperoffload-gpt", "hyperoffload-compare")}
COLUMNS = 80
CORPUS = pathlib.Path(__file__).resolve().parents[2] / "fuzz"


@dataclasses.dataclass
class Row:
    """A command, how it is called well, and which parts of the contract that lets be seen.

    Words may be {pool} (a running pool), {folder} (of the test), {graph}, {hardware}, {plan}, {trace}, {csv},
    {ca} (a folder with an authority), {new} (a path that does not exist, another each time)."""
    words: str                 # after the command itself; all that is required and little more
    code: int = 0              # how that ends
    pool: bool = False         # has --pool and needs it
    missing: str = "argument"  # what is missing without any words; "": nothing is
    long: str = ""             # words with which it works long enough to be interrupted at it
    flash: bool = False        # needs io_uring and direct I/O, which some machines lack
    outputs: tuple = ()        # options or arguments that name files to write
    tight: str = ""            # words with which the budget cannot be met


LOGGING = ("hyperoffload-gpt", "hyperoffload-compare")  # a log of steps goes to stderr
TINY = "--layers 1 --dim 16 --heads 2 --seq 16 --batch 1"
GENERATE = "--layers 1 --dim 16 --heads 2"
ROWS = {
    "hyperoffload analyze": Row("{graph} --hardware {hardware} --out {folder}/made.hos",
                                outputs=("--out", "--report", "--trace", "--graph-out"),
                                tight="{graph} --hardware {hardware} --out {new} --device-memory 1MiB"),
    "hyperoffload analyze-ranks": Row("{graph} --ranks 2 --hardware {hardware} --out {folder}/plans",
                                      tight="{graph} --ranks 2 --hardware {hardware} --out {new} --device-memory 1MiB"),
    "hyperoffload analyze-programs": Row("{programs} --hardware {hardware} --out {folder}/programs",
                                         tight="{tight_programs} --hardware {hardware} --out {new}"),
    "hyperoffload verify": Row("{plan}"),
    "hyperoffload simulate": Row("{plan}", tight="{reordered} --policy on-demand-lru"),
    "hyperoffload explain": Row("{plan}"),
    "hyperoffload parallel-sweep": Row("--hardware {hardware} --devices 2 --layers 2 --hidden 64 --heads 2 --kv-heads 2 --vocab 64 --context 64"),
    "hyperoffload sweep": Row("{graph} --hardware {hardware} --device-memory 60% --bandwidth 1", outputs=("--report",)),
    "hyperoffload import": Row("chakra {trace} --out {folder}/made.json", outputs=("--out",)),
    "hyperoffload model llama-like": Row("--phase decode --layers 2 --context 64 --out {folder}/model.json", outputs=("--out",)),
    "hyperoffload export": Row("{plan} --out {folder}/made.et", outputs=("--out",)),
    "hyperoffload pack": Row("{csv} --out {new} --seconds 1", outputs=("--out",), tight="{csv} --out {new} --seconds 1 --capacity 10"),
    "hyperoffload status": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload nodes": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload sessions": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload top": Row("--pool {pool} --interval 0.1", pool=True, missing="", long="--pool {pool} --interval 60"),
    "hyperoffload segments": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload events": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload drain": Row("4711 --pool {pool}", code=2, pool=True),
    "hyperoffload undrain": Row("4711 --pool {pool}", code=2, pool=True),
    "hyperoffload evict": Row("0:4711 --pool {pool}", code=1, pool=True),
    "hyperoffload blocks ls": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload objects ls": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload objects reshard": Row("nothing --as new --mesh 2:x --timeout 0.1 --pool {pool}", code=1, pool=True),
    "hyperoffload objects save": Row("nothing --out {new} --timeout 0.1 --pool {pool}", code=1, pool=True),
    "hyperoffload blocks clear": Row("--tenant nobody --pool {pool}", code=1, pool=True),
    "hyperoffload upgrade": Row("0 --pool {pool}", code=1, pool=True),
    "hyperoffload flash ls": Row("--pool {pool}", pool=True, missing=""),
    "hyperoffload flash free": Row("0:1 --pool {pool}", code=1, pool=True),
    "hyperoffload ca init": Row("{new}"),
    "hyperoffload ca issue": Row("{ca} --role reader --name anna --out {new}"),
    "hyperoffload ca show": Row("{ca}"),
    "hyperoffload fsck": Row("{folder}/absent", code=2),
    "hyperoffload doctor": Row("--config {config}", missing=""),
    "hyperoffload bench profile": Row("{folder}/hw.json --pool {pool} --seconds 0.1", pool=True, outputs=("FILE",)),
    "hyperoffload bench transport": Row("--seconds 0.1 --size 64KiB", missing="", long="--seconds 60"),
    "hyperoffload bench blocks": Row("--seconds 0.1 --size 64KiB", missing="", long="--seconds 60"),
    "hyperoffload bench flash": Row("--path {new} --seconds 0.1 --area 4MiB", flash=True),
    "hyperoffload bench stage": Row("--path {new} --size 8MiB --rounds 1", flash=True),
    "hyperoffload bench runtime": Row("", missing=""),
    "hyperoffload bench analyzer": Row("--ops 100", missing="", long="--ops 4000000", tight="--ops 100 --device-memory 1"),
    "hyperoffload bench matrix": Row("--pool {pool} --seconds 0.1", pool=True, missing="", outputs=("--profile",)),
    "hyperoffload layout": Row("--mesh 4x2:dp,tp --layout dp,tp;- --shape 15,5"),
    "hyperoffload reshard": Row("--mesh-from 4x2:dp,tp --from tp;- --to -;tp --shape 64,64 --element-bytes 4"),
    "hyperoffload explain-error": Row("busy", missing=""),
    "hyperoffload completion": Row("bash"),
    "hyperoffloadd": Row("--config {config} --check-config"),
    "hyperoffload-gpt train": Row(TINY + " --steps 2 --pool {pool}", pool=True, missing="", outputs=("--emit-graph",),
                                  long=TINY + " --steps 1000000 --pool {pool}",
                                  tight=TINY + " --steps 2 --pool {pool} --device-memory 1KiB"),
    "hyperoffload-gpt generate": Row(GENERATE + " --prompt some --tokens 4 --pool {pool}", pool=True,
                                     long=GENERATE + " --prompt some --tokens 60000 --block 16384 --pool {pool}",
                                     tight=GENERATE + " --prompt some --tokens 4 --pool {pool} --device-memory 1KiB"),
    "hyperoffload-compare generate": Row(GENERATE + " --prompt some --tokens 4 --rounds 1 --pool {pool}", pool=True,
                                         long=GENERATE + " --prompt some --tokens 60000 --block 16384 --pool {pool}",
                                         tight=GENERATE + " --prompt some --tokens 4 --rounds 1 --pool {pool} --device-memory 1KiB"),
    "hyperoffload-compare all": Row(TINY + " --blocks 1 --out {folder}/all --pool {pool}", pool=True,
                                    long=TINY + " --blocks 10000 --out {folder}/all --pool {pool}",
                                    # One op needs more than two fifths of the peak.
                                    tight="--layers 1 --dim 2 --heads 1 --seq 2 --batch 1 --blocks 1 --out {new} --pool {pool}"),
    "hyperoffload-compare one": Row(TINY + " --steps 2 --pool {pool}", pool=True, missing="", outputs=("--emit-graph",),
                                    long=TINY + " --steps 1000000 --pool {pool}",
                                    tight=TINY + " --steps 2 --pool {pool} --device-memory 1KiB"),
}


class New:
    """Formats as a path that does not exist, another each time, on whatever thread."""
    def __init__(self, folder):
        self.folder, self.numbers = folder, itertools.count(1)

    def __format__(self, _):
        return f"{self.folder}/new-{next(self.numbers)}"


def commands_of(words):
    """All commands below one, as its help pages name them."""
    text = run(words, "--help").stdout
    section = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.M)
    if not section:
        return [" ".join(words)]
    names = re.findall(r"^  (\S+)", section[1], re.M)
    return [command for name in names for command in commands_of([*words, name])]


def for_each(choose=lambda row: True):
    """Runs a test method once a row, as a subtest; rows that wait do so side by side."""
    def decorate(method):
        def test(self):
            with concurrent.futures.ThreadPoolExecutor(6) as threads:
                ends = {name: threads.submit(method, self, name, name.split(), row) for name, row in ROWS.items() if choose(row)}
            for name, end in ends.items():
                with self.subTest(command=name):
                    end.result()
        test.__name__ = method.__name__
        return test
    return decorate


def command_line(words, *more):
    program, *commands = words
    return [PROGRAMS[program], *commands, *more]


def run(words, *more, **how):
    how = {"stdout": subprocess.PIPE, **how}
    return subprocess.run(command_line(words, *more), stderr=subprocess.PIPE, text=True, timeout=120, check=False, **how)


class Contract(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ho-contract-", dir="/var/tmp")  # /tmp may be memory, without direct I/O
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.known = {name: str(cls.folder / name) for name in ("graph", "hardware", "plan", "trace", "csv", "config", "programs", "tight_programs", "reordered")}
        for name, suffix in (("graph", ".json"), ("hardware", ".json"), ("programs", ".textproto"), ("tight_programs", ".textproto")):
            cls.known[name] += suffix
        cls.known.update(folder=folder.name, pool=f"unix:{folder.name}/control.sock", new=New(cls.folder), ca=str(cls.folder / "ca"))
        pathlib.Path(cls.known["graph"]).write_text(json.dumps(training_graph("layers", 6, 100_000, 1 << 20)))
        pathlib.Path(cls.known["hardware"]).write_text(json.dumps(node(10**10, 10**10, deviceBytes=str(4 << 20))))
        for name, memory in (("programs", "60%"), ("tight_programs", "1MiB")):
            pathlib.Path(cls.known[name]).write_text(f'programs {{ name: "p" mesh: "2:x" graph: "graph.json" device_memory: "{memory}" }}')
        pathlib.Path(cls.known["csv"]).write_text("id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
        pathlib.Path(cls.known["trace"]).write_bytes((CORPUS / "importers/corpus/chakra/stg").read_bytes())
        pathlib.Path(cls.known["config"]).write_text(
            f'node_name: "contract" ddr_bytes: 536870912 segment_bytes: 8388608 unix_socket: "{folder.name}/control.sock"')
        order = cls.folder / "order.json"  # its plan runs the last op before the large one; a policy without a plan does not
        order.write_text('{"version":1,"storages":[{"id":1,"bytes":1000,"kind":"ACTIVATION","pinned":true},{"id":2,"bytes":2000,'
                         '"kind":"ACTIVATION"}],"ops":[{"id":1,"writes":[1]},{"id":2,"writes":[2]},{"id":3,"reads":[1]}]}')
        analyze = ["analyze", "--hardware", cls.known["hardware"], "--out"]
        for line in ([*analyze, cls.known["plan"], cls.known["graph"]], ["ca", "init", cls.known["ca"]],
                     [*analyze, cls.known["reordered"], str(order), "--device-memory", "2100"]):
            assert (made := run(["hyperoffload"], *line)).returncode == 0, made
        cls.daemon = subprocess.Popen([PROGRAMS["hyperoffloadd"], "--config", cls.known["config"]], stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.end_daemon)
        end = time.monotonic() + 60
        while run(["hyperoffload", "nodes"], "--pool", cls.known["pool"]).returncode != 0:
            assert time.monotonic() < end and cls.daemon.poll() is None, "the daemon did not come up"
            time.sleep(0.05)
        lacking = []
        needs.program("fio", "fio", lacking.append)
        tried = run(["hyperoffload", "bench", "stage"], "--path", f"{folder.name}/flash", "--size", "4MiB", "--rounds", "1")
        if tried.returncode != 0 and any(why in tried.stderr for why in ("O_DIRECT", "io_uring", "no flash")):
            lacking.append(tried.stderr.strip())
        cls.no_flash = "; ".join(lacking)

    @classmethod
    def end_daemon(cls):
        cls.daemon.terminate()
        cls.daemon.wait()

    def words(self, text, **other):
        return [word.format(**{**self.known, **other}) for word in text.split()]

    def need_what_it_needs(self, row):
        if row.flash and self.no_flash:
            needs.skip_case(self.no_flash)

    def assert_complains(self, name, done, code):
        self.assertEqual(done.returncode, code, done)
        said = done.stderr.splitlines()
        if name.split()[0] in LOGGING:
            said = [line for line in said if line.startswith(f"{name}: ")]
        self.assertTrue(said and said[0].startswith(f"{name}: "), done.stderr)

    def test_every_command_has_a_row(self):
        found = [command for program in PROGRAMS for command in commands_of([program])]
        self.assertEqual(sorted(found), sorted(ROWS))

    @for_each()
    def test_help_is_a_page_with_example_and_exit_codes(self, name, words, _):
        for option in ("--help", "-h"):
            done = run(words, option)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            self.assertTrue(done.stdout.startswith("Usage: " + name), done.stdout)
            for part in ("Example", "Exit codes:", "  0  ", "  2  ", "  130  ", "--output"):
                self.assertIn(part, done.stdout)
            too_long = [line for line in done.stdout.splitlines() if len(line) > COLUMNS]
            self.assertEqual(too_long, [])

    def test_programs_tell_their_version(self):
        for program in PROGRAMS:
            done = run([program], "--version")
            self.assertEqual((done.returncode, done.stderr), (0, ""), done)
            self.assertRegex(done.stdout, rf"^{program} \d+\.\d+\.\d+\n$")

    @for_each()
    def test_an_unknown_option_is_named_with_the_nearest_one(self, name, words, row):
        done = run(words, *self.words(row.words), "--outptu", "json")
        self.assert_complains(name, done, 2)
        self.assertIn('unknown option "--outptu"; did you mean', done.stderr)
        self.assertIn('"--output"', done.stderr)
        self.assertEqual(done.stdout, "")

    def test_an_unknown_command_is_named_with_the_nearest_one(self):
        for words, wrong, near in ((["hyperoffload"], "analyse", "analyze"), (["hyperoffload"], "nope", "nodes"),
                                   (["hyperoffload", "bench"], "transprot", "transport"),
                                   (["hyperoffload", "flash"], "fre", "free")):
            done = run(words, wrong)
            self.assert_complains(" ".join(words), done, 2)
            self.assertIn(f'unknown command "{wrong}"; did you mean', done.stderr)
            self.assertIn(f'"{near}"', done.stderr)
            if words[-1] != "flash":  # alone, it does what its ls does
                self.assert_complains(" ".join(words), run(words), 2)

    @for_each(lambda row: row.missing)
    def test_what_is_missing_is_named(self, name, words, row):
        done = run(words)
        self.assert_complains(name, done, 2)
        self.assertIn("missing", done.stderr)

    @for_each()
    def test_empty_values_are_refused(self, name, words, row):
        done = run(words, *self.words(row.words), "--output", "")
        self.assert_complains(name, done, 2)
        options = set(re.findall(r"^  (--[a-z-]+) [A-Z]", run(words, "--help").stdout, re.M))
        for option in sorted(options - set(row.words.split())):
            done = run(words, *self.words(row.words), option, "")
            self.assert_complains(name, done, 2)
            self.assertIn(option, done.stderr)

    @for_each()
    def test_results_go_to_stdout_as_a_table_or_as_one_object(self, name, words, row):
        self.need_what_it_needs(row)
        for form in ("table", "wide", "json"):
            done = run(words, *self.words(row.words), "-o", form)
            self.assertEqual(done.returncode, row.code, done)
            if row.code != 0:
                self.assertTrue(done.stderr.startswith(f"{name}: "), done.stderr)
            if form == "json" and row.code in (0, 1):
                self.assertIsInstance(json.loads(done.stdout), dict)
                self.assertNotIn("\r", done.stderr)  # progress is for terminals
                if row.code == 0 and words[0] not in LOGGING and name != "hyperoffload explain":  # which says how many it shows
                    self.assertEqual(done.stderr, "")
            elif row.code == 0:
                self.assertTrue(done.stdout.endswith("\n"), done.stdout)
            if form == "table":
                self.assertEqual([line for line in done.stdout.splitlines() if len(line) > COLUMNS], [])
        self.assert_complains(name, run(words, *self.words(row.words), "-o", "xml"), 2)

    @for_each()
    def test_a_full_disk_under_stdout_is_an_error(self, name, words, row):
        lines = [["--help"]]
        if row.code == 0 and not (row.flash and self.no_flash):
            lines += [[*self.words(row.words), "-o", form] for form in ("table", "json")]
        lines += [[*self.words(row.words), again] for again in ("--watch", "--follow") if again in run(words, "--help").stdout]
        with open("/dev/full", "w", encoding="utf-8") as full:
            for line in lines:
                done = run(words, *line, stdout=full)
                self.assertEqual(done.returncode, 2, (name, line, done))
                self.assertEqual(done.stderr.count("No space left on device"), 1, done)

    @for_each(lambda row: row.outputs)
    def test_files_that_cannot_be_written_are_an_error(self, name, words, row):
        for option in row.outputs:
            for target in ("/dev/full", str(self.folder / "none/file.json")):
                done = run(words, *self.with_output(row, option, target))
                self.assert_complains(name, done, 2)
                self.assertIn(target, done.stderr)

    def with_output(self, row, option, target, **other):
        """The row's words, with `target` in place of one of its files."""
        words = self.words(row.words, **other)
        if option == "FILE":
            return [target, *words[1:]]
        if option in words:
            words[words.index(option) + 1] = target
            return words
        return [*words, option, target]

    @for_each(lambda row: row.outputs and not row.pool and re.search(r"{(graph|hardware|plan|trace|csv)}", row.words))
    def test_no_command_overwrites_what_it_reads(self, name, words, row):
        link, hard = (pathlib.Path(tempfile.mkdtemp(dir=self.folder), name) for name in ("link.json", "hard.json"))
        inputs = [word for word in self.words(row.words) if word in self.known.values() and os.path.isfile(word)]
        self.assertTrue(inputs)
        for one in inputs:
            before = pathlib.Path(one).read_bytes()
            for path in (link, hard):
                path.unlink(missing_ok=True)
            link.symlink_to(one)
            hard.hardlink_to(one)
            for option in row.outputs:
                for target in (one, str(link), str(hard)):
                    done = run(words, *self.with_output(row, option, target))
                    self.assert_complains(name, done, 2)
                    self.assertIn("also read", done.stderr)
                    self.assertEqual(pathlib.Path(one).read_bytes(), before)
                    self.assertTrue(link.is_symlink())

    def test_two_results_do_not_go_to_one_file(self):
        row = ROWS["hyperoffload analyze"]
        for options in (("--out", "--report"), ("--report", "--trace"), ("--trace", "--graph-out")):
            with self.subTest(options):
                words = self.words(row.words)
                for option in options:
                    words = [*words, option, str(self.folder / "same.json")] if option != "--out" else \
                        [str(self.folder / "same.json") if words[i - 1] == "--out" else word for i, word in enumerate(words)]
                done = run(["hyperoffload", "analyze"], *words)
                self.assert_complains("hyperoffload analyze", done, 2)
                self.assertIn("one file", done.stderr)
                self.assertFalse((self.folder / "same.json").exists())

    @for_each(lambda row: row.pool)
    def test_a_pool_that_is_not_there_ends_with_4(self, name, words, row):
        done = run(words, *self.words(row.words, pool=f"unix:{self.folder}/nobody.sock"))
        self.assert_complains(name, done, 4)
        done = run(words, *self.words(row.words, pool="nonsense"))
        self.assert_complains(name, done, 2)

    @for_each(lambda row: row.pool)
    def test_a_certificate_that_cannot_be_read_ends_with_2(self, name, words, row):
        if "--tls" in run(words, "--help").stdout:
            done = run(words, *self.words(row.words, pool="tcp:127.0.0.1:1"), "--tls", str(self.folder / "none"))
            self.assert_complains(name, done, 2)
            self.assertIn("none/node.crt", done.stderr)

    @for_each()
    def test_a_budget_that_cannot_be_met_ends_with_3_and_says_what_is_needed(self, name, words, row):
        self.assertEqual(bool(row.tight), "\n  3 " in run(words, "--help").stdout, "a row has such words if the help has the code")
        if row.tight:
            for form in ("table", "json"):
                line = self.words(row.tight)
                done = run(words, *line, "-o", form)
                self.assert_complains(name, done, 3)
                self.assertRegex(done.stderr, r"needs \d|the budget cannot be met|cannot fit into 10: .* is 16")
                if form == "json" and done.stdout:
                    self.assertIsInstance(json.loads(done.stdout), dict)
                else:
                    self.assertEqual(done.stdout, "")
                made = [pathlib.Path(word) for word in line if "/new-" in word]  # files, or folders of them
                self.assertFalse([path for top in made for path in (top, *top.rglob("*")) if path.is_file()])

    def blocked_lines(self, row):
        """The row's command lines, each made to wait for what never comes: a reader of its words, an answer of the pool, the
        other end of a pipe that it reads or writes. @return what it waits for, the words, where it may leave files."""
        def place():
            made = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
            fifo = made.with_suffix(".json")  # graphs are written in the form that the name says
            os.mkfifo(fifo)
            return made, fifo, {"folder": str(made), "new": New(made)}

        made, _, known = place()
        yield "a reader", self.words(row.words, **known), made
        if row.pool:
            made, _, known = place()
            yield "an answer", self.words(row.words, **known, pool=f"unix:{self.mute}"), made
        if "{config}" in row.words:
            made, fifo, known = place()
            yield "its input", self.words(row.words, **known, config=fifo), made
        for option in row.outputs:
            made, fifo, known = place()
            yield option, self.with_output(row, option, str(fifo), **known), made

    def interrupted(self, name, awaited, words, made):
        unread = () if awaited != "a reader" else ("stdout",) if name.split()[0] in LOGGING else ("stdout", "stderr")
        return interrupt(command_line(name.split(), *words), unread, {**os.environ, "TMPDIR": str(made)})

    def test_ctrl_c_ends_a_command_that_waits(self):
        self.mute = self.folder / "mute.sock"  # the kernel takes the connections; nobody answers
        with socket.socket(socket.AF_UNIX) as pool:
            pool.bind(str(self.mute))
            pool.listen(100)
            lines = [(name, *line) for name, row in reversed(ROWS.items()) if not (row.flash and self.no_flash)
                     for line in self.blocked_lines(row)]  # the slow ones first
            with concurrent.futures.ThreadPoolExecutor(16) as runs:
                ends = list(runs.map(lambda line: self.interrupted(*line), lines))
        for (name, awaited, words, made), (code, out, err) in zip(lines, ends):
            with self.subTest(command=name, waits_for=awaited):
                self.assertEqual((code, out), (130, ""), err)
                if name.split()[0] in LOGGING:
                    self.assertNotRegex(err, "terminate|Sanitizer|Check failed")
                else:
                    self.assertEqual(err, "")
                whole = [*words[:1], *(words[i + 1] for i, word in enumerate(words) if word == "--out")]
                left = [str(path) for path in made.rglob("*") if path.is_file()]
                self.assertEqual([path for path in left if ".tmp" in path or not path.startswith(tuple(whole))], [])

    @for_each(lambda row: row.long)
    def test_ctrl_c_at_work_ends_with_130_and_leaves_nothing(self, name, words, row):
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            running = subprocess.Popen(command_line(words, *self.words(row.long)), stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": temporary})
            time.sleep(1)
            self.assertIsNone(running.poll(), running)
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=60)
            self.assertEqual((running.returncode, out), (130, ""))
            self.assertEqual(os.listdir(temporary), [])

    def test_what_is_shown_again_and_again_ends_with_130(self):
        """Every command whose help has --watch or --follow. No line is cut off."""
        shown = {}
        for name, row in ROWS.items():
            text = run(name.split(), "--help").stdout
            for option in re.findall(r"--watch|--follow", text):
                shown.setdefault(name, option)
        self.assertGreaterEqual(len(shown), 8, shown)
        for name, option in shown.items():
            with self.subTest(command=name):
                shows = self.folder / "shown"
                with open(shows, "w", encoding="utf-8") as out:
                    running = subprocess.Popen(command_line(name.split(), *self.words(ROWS[name].words), option, "--interval", "60"),
                                               stdout=out, stderr=subprocess.PIPE, text=True)
                self.addCleanup(running.kill)
                end = time.monotonic() + 60
                while not shows.read_text():
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.02)
                running.send_signal(signal.SIGINT)
                _, err = running.communicate(timeout=60)
                self.assertEqual((running.returncode, err), (130, ""))
                self.assertRegex(shows.read_text(), r"(?s)^[A-Z\d].*\n$")

    def test_values_with_units_and_without(self):
        for option, good, bad in (("--device-memory", ("4MiB", "4194304", "100%"), ("4 MiB", "-1", "0", "much", "1e3")),
                                  ("--ranks-per-node", ("1",), ("0", "-1", "1.5", "many"))):
            for value in good:
                done = run(["hyperoffload", "analyze"], *self.words(ROWS["hyperoffload analyze"].words), option, value)
                self.assertEqual(done.returncode, 0, done)
            for value in bad:
                done = run(["hyperoffload", "analyze"], *self.words(ROWS["hyperoffload analyze"].words), option, value)
                self.assert_complains("hyperoffload analyze", done, 2)
                self.assertIn(option, done.stderr)
        for value, code in (("2.5GB/s", 0), ("2500000000", 0), ("2.5e9", 0), ("2.5 GB/s", 2), ("0", 2), ("fast", 2)):
            done = run(["hyperoffload", "bench", "analyzer"], "--ops", "100", "--bandwidth", value)
            self.assertEqual(done.returncode, code, done)
        self.assert_complains("hyperoffload explain", run(["hyperoffload", "explain"], self.known["plan"], "--top", "-1"), 2)

    def test_every_error_code_is_explained(self):
        codes = json.loads(run(["hyperoffload", "explain-error"], "-o", "json").stdout)["codes"]
        self.assertEqual([one["number"] for one in codes], list(range(1, 15)))
        for one in codes:
            for word in (one["code"], str(one["number"]), "HO_" + one["code"].upper().replace("-", "_")):
                done = run(["hyperoffload", "explain-error"], word)
                self.assertEqual(done.returncode, 0, done)
                self.assertIn("advice", done.stdout)
        done = run(["hyperoffload", "explain-error"], "unavailabel")
        self.assert_complains("hyperoffload explain-error", done, 2)
        self.assertIn('did you mean "unavailable"', done.stderr)


if __name__ == "__main__":
    unittest.main()
