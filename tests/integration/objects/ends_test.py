"""The ends of publishers and readers: calls after close(), close() during a call of another thread or from a signal's
handler, and processes that were forked.

Usage: ends_test.py CLI DAEMON LIBRARY PACKAGE
"""
import os
import pathlib
import signal
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "docs"))
sys.path.insert(0, sys.argv[4])
os.environ["HYPEROFFLOAD_LIBRARY"] = sys.argv[3]
from hyperoffload import Publisher, Subscriber  # noqa: E402
from one_node import Node  # noqa: E402

SLOW = 50_000  # bytes/s: minutes for an object of some MiB
PATIENCE_S = 60


def refuses(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("no RuntimeError")


def calls_after_close(pool):
    writer, reader = Publisher(pool, "after", {"x": bytearray(8)}), Subscriber(pool, "after", {"x": bytearray(8)})
    writer.publish(1)
    for one in (writer, reader):
        one.close()
        one.close()
    assert refuses(lambda: writer.publish(2)) == "this Publisher is closed"
    for call in (reader.acquire, reader.read, reader.describe):
        assert refuses(call) == "this Subscriber is closed"
    reader.release()


def in_a_thread(call):
    """Returns what to wait with for its end: it returns the text of the call's RuntimeError."""
    said = []
    thread = threading.Thread(target=lambda: said.append(refuses(call)))
    thread.start()

    def ended():
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive(), "the call goes on"
        return said[0]

    return ended


def close_during_calls(pool):
    """The call ends soon, and the memory is free for others."""
    data = bytearray(8 << 20)
    with Publisher(pool, "whole", {"x": data}) as whole:
        whole.publish(1)
        writer, reader = Publisher(pool, "slow", {"x": data}, link=SLOW), Subscriber(pool, "whole", {"x": data}, link=SLOW)
        waiter = Subscriber(pool, "nobody", {"x": data})
        reader.acquire()
        ends = {one: in_a_thread(call) for one, call in ((writer, lambda: writer.publish(1)), (reader, reader.read),
                                                         (waiter, lambda: waiter.acquire(timeout=float("inf"))))}
        time.sleep(0.5)
        for one, ended in ends.items():
            one.close()
            assert "closed" in ended()


def close_from_a_handler(pool):
    """A handler that ends the program in order, while its thread publishes or waits."""
    data = bytearray(8 << 20)
    for one, call in ((Publisher(pool, "slow", {"x": data}, link=SLOW), lambda one: one.publish(1)),
                      (Subscriber(pool, "nobody", {"x": data}), lambda one: one.acquire(timeout=float("inf")))):
        signal.signal(signal.SIGALRM, lambda *_, one=one: one.close())
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        assert "closed" in refuses(lambda: call(one))


def close_from_everywhere(pool):
    """A handler closes what another thread is closing, while the main thread is in a call of it."""
    one = Subscriber(pool, "nobody", {"x": bytearray(8)})
    signal.signal(signal.SIGALRM, lambda *_: one.close())
    closing = threading.Timer(0.5, one.close)
    closing.start()
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    assert "closed" in refuses(lambda: one.acquire(timeout=float("inf")))
    closing.join(timeout=PATIENCE_S)
    assert not closing.is_alive()


class Stopped(Exception):
    pass


def stopped_while_another_calls(pool):
    """What the main thread has called waits for another thread's call: a signal ends it, and the other one goes on."""
    def stop(*_):
        raise Stopped

    with Publisher(pool, "turns", {"x": bytearray(8 << 20)}, link=SLOW) as writer:
        ended = in_a_thread(lambda: writer.publish(1))
        time.sleep(0.5)
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            writer.publish(2)
        except Stopped:
            pass
        else:
            raise AssertionError("not stopped")
        writer.close()
        assert "closed" in ended()  # and not "canceled"


def forked(check):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE_S)  # ends a child that hangs
        code = 1
        try:
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def forks(pool):
    """What the parent has opened is the parent's: the child says so, ends none of it, and opens its own."""
    with Publisher(pool, "forks", {"x": bytearray(b"abcdefgh")}) as writer, \
            Subscriber(pool, "forks", {"x": bytearray(8)}) as reader:
        writer.publish(1)
        reader.acquire()

        def in_the_child():
            for call in (lambda: writer.publish(2), reader.acquire, reader.read, reader.describe):
                assert "of another process" in refuses(call)
            reader.release()
            reader.close()
            writer.close()
            with Subscriber(pool, "forks", {"x": (got := bytearray(8))}) as own:
                own.acquire()
                own.read()
            assert got == b"abcdefgh"

        forked(in_the_child)
        reader.read()
        writer.publish(2)
        assert reader.acquire() == 2


with Node(sys.argv[1], sys.argv[2]) as node:
    for each in (calls_after_close, close_during_calls, close_from_a_handler, close_from_everywhere,
                 stopped_while_another_calls, forks):
        each(node.pool)
        print(each.__name__)
