"""Plans the programs of client/docs/programs.md and runs its Python: two of the trainer's tiles are published on ranks of
their own, and a sampler reads them at the planned rate.

Usage: programs_test.py SOURCE CLI DAEMON LIBRARY
"""
import array
import json
import os
import sys

from one_node import Node
from pages import blocks

SOURCE, CLI, DAEMON, LIBRARY = sys.argv[1:5]
PAGE = f"{SOURCE}/client/docs/programs.md"
ROWS, COLUMNS = 64, 1024
LINK = {"bytesPerS": "37000000000", "latencyNs": "3000"}
HARDWARE = {"name": "node", "localDdr": {"capacityBytes": str(1 << 36), "read": LINK, "write": LINK}}
POLICY = {"tensors": [{"name": "up", "shape": [ROWS, COLUMNS], "elementBytes": 4, "from": "tp;-", "to": "-;tp"}]}


def describe(node):
    (programs, own), (links,) = blocks(PAGE, "textproto"), blocks(PAGE, "json")
    hardware = {**HARDWARE, **json.loads("{" + links + "}")}
    for name, text in (("programs.textproto", programs), ("node.json", json.dumps(hardware)), ("policy.json", json.dumps(POLICY))):
        (node.folder / name).write_text(text)
    node.run("hyperoffload model llama-like --phase train --layers 2 --hidden 512 --heads 8 --kv-heads 8 --vocab 500 --context 512 "
             "--batch 1 --element-bytes 2 --device-flops 10e12 --device-bandwidth 1e12 --out step.json")
    # Readers with layouts and tensors of their own.
    (node.folder / "own").mkdir()
    (node.folder / "own/policy.json").write_text(json.dumps({"tensors": [
        {"name": "up", "shape": [ROWS, COLUMNS], "elementBytes": 4}, {"name": "head.weight", "shape": [8, 8], "elementBytes": 1},
        {"name": "head.bias", "shape": [8], "elementBytes": 1}]}))
    judge = 'programs { name: "judge" mesh: "1:x@6" period: "80ms" }\n'
    (node.folder / "own/programs.textproto").write_text(programs[:programs.index("objects")].replace("step.json", "../step.json") + judge + own)
    node.run("hyperoffload analyze-programs own/programs.textproto --hardware node.json --out own/plan")


def refused(programs, node, half):
    """Names and sizes that are not in the plan, and a folder without one."""
    weights = {"up": half.cast("f")}
    for words, call in (("no publisher of 'policy' 'sampler'", lambda: programs.publisher(node.pool, "policy", "sampler", weights, rank=4)),
                        ("has no rank 7", lambda: programs.subscriber(node.pool, "policy", "sampler", weights, rank=7)),
                        ("not in the plan: ['down']", lambda: programs.subscriber(node.pool, "policy", "sampler", {"down": half}, rank=4)),
                        ("missing: ['up']", lambda: programs.publisher(node.pool, "policy", "trainer", {}, rank=0)),
                        ("1 bytes an element; the plan is for 4",
                         lambda: programs.subscriber(node.pool, "policy", "sampler", {"up": half}, rank=4)),
                        ("not in the plan: ['up']",
                         lambda: type(programs)("own/plan").subscriber(node.pool, "policy", "judge", weights, rank=6)),
                        ("no schedule of 'sampler' rank 4", lambda: programs.schedule("sampler", 4)),
                        ("not a plan of", lambda: type(programs)(node.folder / "broken"))):
        (node.folder / "broken").mkdir(exist_ok=True)
        (node.folder / "broken/programs.json").write_text('{"programs": [], "objects": [{"name": "policy"}]}')
        try:
            call()
        except ValueError as error:
            assert words in str(error), (words, error)
        else:
            raise AssertionError(words)


def main():
    os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
    sys.path.insert(0, f"{SOURCE}/client/python")
    with Node(CLI, DAEMON) as node:
        describe(node)
        (plan,) = blocks(PAGE)
        print(node.run(plan))
        os.chdir(node.folder)
        publish, read = blocks(PAGE, "python")
        whole = array.array("f", range(ROWS * COLUMNS))
        opened = []
        code = "import hyperoffload\n"
        for rank in range(4):  # ranks 0 and 2 have the first half of the rows, 1 and 3 the second
            begin = rank % 2 * ROWS // 2 * COLUMNS
            mine = {"up": memoryview(whole[begin:begin + ROWS // 2 * COLUMNS]).cast("B").cast("f", (ROWS // 2, COLUMNS))}
            names = {"pool": node.pool, "weights": mine, "rank": rank, "run": 4711, "step": 7}
            exec(code + publish, names)  # pylint: disable=exec-used
            opened.append(names["publisher"])
        for rank in (4, 5):
            tile = array.array("f", bytes(ROWS * COLUMNS // 2 * 4))
            shaped = memoryview(tile).cast("B").cast("f", (ROWS, COLUMNS // 2))
            names = {"pool": node.pool, "weights": {"up": shaped}, "rank": rank, "last": 6}
            exec(code + read, names)  # pylint: disable=exec-used
            assert names["version"] == 7
            half = (rank - 4) * COLUMNS // 2
            wanted = [row * COLUMNS + half + column for row in range(ROWS) for column in range(COLUMNS // 2)]
            assert tile == array.array("f", wanted), rank
            opened.append(names["subscriber"])
        refused(names["programs"], node, memoryview(bytearray(8)))
        schedule, start_ns, link = names["programs"].schedule("trainer", 1)
        assert node.json(f"hyperoffload verify {schedule}")["legal"] and start_ns >= 0 and link == 0
        for one in opened:
            one.close()
    print("the page's programs run as planned")


main()
