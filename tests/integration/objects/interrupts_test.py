"""Ctrl-C while an object is published or read at a low rate: the call ends soon, nothing of it is visible, and no byte
is written afterwards.

Usage: interrupts_test.py CLI DAEMON LIBRARY PACKAGE [ADDRESS WHAT]
"""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
sys.path.insert(0, sys.argv[4])
os.environ["HYPEROFFLOAD_LIBRARY"] = sys.argv[3]
import hyperoffload  # noqa: E402
from one_node import Node  # noqa: E402

BYTES, SLOW = 8 << 20, 50_000  # together minutes


def interrupted(call, words):
    """Calls, and has Ctrl-C raised twice meanwhile: the second one while the first one is acted on."""
    came = False
    print(words, flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            call()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the second one may be late
    except KeyboardInterrupt:
        came = True
    assert came, "not interrupted"
    print("interrupted", flush=True)
    sys.stdin.readline()


def publisher(pool):
    data = bytearray(b"x" * BYTES)
    with hyperoffload.Publisher(pool, "slow", {"x": data}, link=SLOW) as mine, \
            hyperoffload.Subscriber(pool, "slow", {"x": data}) as reader:
        for _ in range(2):
            interrupted(lambda: mine.publish(1), "publishing")
        try:
            reader.acquire()
            raise AssertionError("acquired what was not published as a whole")
        except hyperoffload.Error as error:
            assert error.name == "not-found", error


def reader(pool):
    data = bytearray(BYTES)
    with hyperoffload.Publisher(pool, "whole", {"x": bytearray(b"y" * BYTES)}) as writer, \
            hyperoffload.Subscriber(pool, "whole", {"x": data}, link=SLOW) as mine:
        writer.publish(1)
        assert mine.acquire() == 1
        for _ in range(2):
            interrupted(mine.read, "reading")
        data[:] = bytes(BYTES)
        time.sleep(0.3)
        assert not any(data)


def check(address, what):
    words = [sys.executable, *sys.argv[:5], address, what]
    with subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            for _ in range(2):
                assert process.stdout.readline().strip() in ("publishing", "reading"), process.stderr.read()
                time.sleep(0.3)
                begun = time.monotonic()
                process.send_signal(signal.SIGINT)
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline().strip() == "interrupted", process.stderr.read()
                took = time.monotonic() - begun
                print(f"{what}: {took:.3f} s")
                assert took < 5  # 0.1 s where nothing else runs
                process.stdin.write("go on\n")
                process.stdin.flush()
            said = process.communicate(timeout=60)
            assert process.returncode == 0, said
        finally:
            process.kill()


if len(sys.argv) > 5:
    {"publisher": publisher, "reader": reader}[sys.argv[6]](sys.argv[5])
    sys.exit(0)
with Node(sys.argv[1], sys.argv[2]) as node:
    for each in ("publisher", "reader"):
        check(node.pool, each)
