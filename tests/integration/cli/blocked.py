"""Ctrl-C for commands that wait for something that never comes."""
import fcntl
import os
import pathlib
import signal
import subprocess
import tempfile
import time

PATIENCE_S = 60
TRIES = 4


def full_pipe():
    """Both ends of a pipe that has no room."""
    back, front = os.pipe()
    os.write(front, b"." * fcntl.fcntl(front, fcntl.F_SETPIPE_SZ, 4096))
    return back, front


def wait_until_blocked(process):
    """Returns once the process's first thread has slept for a while and done no work between."""
    quiet, before, end = 0, None, time.monotonic() + PATIENCE_S
    while quiet < 6 and process.poll() is None and time.monotonic() < end:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        now = (fields[0], *fields[11:13])  # the state; the times in user and system mode
        quiet = quiet + 1 if fields[0] == "S" and now == before else 0
        before = now
        time.sleep(0.05)


def interrupt(line, unread, environment):
    """Starts a command and sends SIGINT once it is blocked; again where it ended by itself before, as at a pool that gives no
    answer within its time. @param unread  the streams, "stdout" or "stderr", that are a full pipe without a reader.
    @return its exit code (-9: it went on), what it wrote to stdout or the pipe, and to stderr."""
    for _ in range(TRIES):
        in_time, *found = try_to_interrupt(line, unread, environment)
        if in_time:
            break
    return found


def try_to_interrupt(line, unread, environment):
    back, front = full_pipe()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = {"stdout": out, "stderr": err, **dict.fromkeys(unread, front)}
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, env=environment, **streams)
        os.close(front)
        wait_until_blocked(process)
        in_time = process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with open(back, "rb") as pipe:
            said = pipe.read().strip(b".")
        for stream in (out, err):
            stream.seek(0)
        return in_time, process.returncode, (said + out.read()).decode(), err.read().decode()
