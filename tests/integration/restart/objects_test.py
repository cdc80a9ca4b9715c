"""Published objects whose daemon is killed and upgraded: the bytes outlive it, and their publisher names them again, as does
the command that holds one of a program that has ended."""
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

from node import Node, cli

library, package = sys.argv[5:7]
os.environ["HYPEROFFLOAD_LIBRARY"] = library
sys.path.insert(0, package)
import hyperoffload  # noqa: E402
from hyperoffload._pool import library as c_abi, objects as c_objects  # noqa: E402

WORDS = 300_000


def held(pool, version, name="policy"):
    """What a reader finds: each is a job of its own. None: the version is not there."""
    data = memoryview(bytearray(8 * WORDS)).cast("Q")
    with hyperoffload.Subscriber(pool, name, {"weight": data}) as reader:
        try:
            reader.acquire(version, most=version)
        except hyperoffload.Error as error:
            assert error.name == "not-found", error
            return None
        reader.read()
        return set(data.tolist())


def filled_once(pool, unavailable=8):
    """An error of a publisher's `fill` is the caller's: only an end of the daemon makes it begin anew."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)

    class Options(c_objects._Options):
        _fields_ = [("fill", function), ("fill_context", ctypes.c_void_p), ("in_turns", ctypes.c_uint32)]

    called = []
    data = ctypes.create_string_buffer(64)
    tensor = c_objects._Tensor(name=b"t", shape=(ctypes.c_uint64 * 1)(64), dimensions=1, element_bytes=1,
                               data=ctypes.addressof(data), bytes=64)
    options = Options(name=b"filled", fill=function(lambda _, index: called.append(index) or unavailable))
    options.struct_bytes = ctypes.sizeof(options)
    publisher = ctypes.c_void_p()
    job = c_abi.Pool(pool, "fills")
    lib = c_abi.library()
    assert lib.ho_publisher_open(job.handle, ctypes.byref(options), ctypes.byref(tensor), 1, ctypes.byref(publisher)) == 0
    status = lib.ho_publish(publisher, 1)
    lib.ho_publisher_close(publisher)
    job.close()
    assert (status, called) == (unavailable, [0]), (status, called)


with tempfile.TemporaryDirectory() as folder, Node(folder) as node:
    node.start()
    filled_once(node.pool)
    data = memoryview(bytearray(8 * WORDS)).cast("Q")

    def publish(version):
        data[:] = memoryview(version.to_bytes(8, "little") * WORDS).cast("Q")
        publisher.publish(version)

    mine = memoryview(bytearray(8 * WORDS)).cast("Q")
    with hyperoffload.Subscriber(node.pool, "policy", {"weight": mine}) as lasting, \
            hyperoffload.Publisher(node.pool, "policy", {"weight": data}, versions=2) as publisher:
        def read_again(version):
            """What a job finds whose session may not be resumed yet."""
            end = time.monotonic() + 60
            while True:
                try:
                    lasting.acquire(version, timeout=1)
                    lasting.read()
                    return set(mine.tolist())
                except hyperoffload.Error:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.02)

        def found_again(version, words, name="policy"):
            end = time.monotonic() + 20
            while (found := held(node.pool, version, name)) is None:
                assert time.monotonic() < end, "its publisher does not name it again"
                time.sleep(0.05)
            assert found == words, found

        publish(1)
        assert held(node.pool, 1) == {1}
        lasting.acquire(1)
        lasting.read()
        lasting.release()  # has nothing open, but the segments attached
        node.kill()
        found_again(1, {1})  # nobody publishes
        publish(2)
        assert held(node.pool, 1) == {1} and held(node.pool, 2) == {2}
        # A job that reads keeps the node over the daemon's end, in whatever state it is.
        assert read_again(2) == {2}
        answer = node.ask("upgrade", "n3")
        assert answer["upgraded"], answer
        found_again(1, {1})
        found_again(2, {2})
        publish(3)  # in place of 1
        assert held(node.pool, 1) is None
        assert held(node.pool, 2) == {2} and held(node.pool, 3) == {3}
        end = time.monotonic() + 60
        while True:  # until the session is resumed, what is open can be read
            try:
                lasting.read()
                assert time.monotonic() < end and set(mine.tolist()) == {2}
                time.sleep(0.02)
            except hyperoffload.Error as error:
                assert error.name == "not-found", error
                break
        assert read_again(3) == {3}
        holds = subprocess.Popen([cli, "objects", "reshard", "policy", "--as", "frozen", "--mesh", "1:all", "--pool", node.pool,
                                  "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert holds.stdout.readline(), holds.stderr.read()
    assert held(node.pool, 3) is None
    node.kill()
    found_again(3, {3}, "frozen")
    answer = node.ask("upgrade", "n3")
    assert answer["upgraded"], answer
    found_again(3, {3}, "frozen")
    holds.send_signal(signal.SIGINT)
    said = holds.communicate(timeout=60)
    assert holds.returncode == 130, said
    assert held(node.pool, 3, "frozen") is None
print("versions outlive their daemon")
