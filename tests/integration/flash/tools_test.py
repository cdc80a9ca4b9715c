"""hyperoffload bench flash and fsck on small files: fields, exit codes, and that a measurement leaves nothing behind."""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

cli = sys.argv[1]
MIB = 1 << 20


def run(*words, code):
    done = subprocess.run([cli, *map(str, words)], capture_output=True, text=True, timeout=100)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


def make(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    os.chmod(path, 0o600)


def bench(path, op, policy, size, area):
    answer = json.loads(run("bench", "flash", "--path", path, "--op", op, "--policy", policy, "--size", size, "--area",
                            area, "--inflight", 4, "--seconds", 0.2, "-o", "json", code=0).stdout)
    for field in ("bytes_per_s", "ops_per_s", "p50_us", "p99_us"):
        assert math.isfinite(answer[field]) and answer[field] > 0, (field, answer)
    assert answer["limit"]["name"].startswith("fio") and answer["limit"]["bytes_per_s"] > 0, answer
    assert answer["limit"]["pairs"] == 2, answer
    assert (answer["op"], answer["policy"], answer["inflight"]) == (op, policy, 4), answer
    return answer


def fsck(path, code):
    return json.loads(run("fsck", path, "-o", "json", code=code).stdout)


with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp may be memory
    path = pathlib.Path(name) / "flash"

    # Wrong arguments are reported before any file changes.
    for wrong in (["--op", "write", "--size", "512"], ["--op", "write", "--size", "6KiB"], ["--size", "1000"],
                  ["--size", "2GiB"], ["--size", "4KiB", "--area", "1KiB"]):
        refused = run("bench", "flash", "--path", path, *wrong, code=2)
        assert "--size" in refused.stderr and refused.stdout == "", refused
        assert not path.exists(), wrong
    assert run("fsck", path, code=2).stderr.endswith(f"flash path {path}: does not exist\n")
    make(path, 64 << 10)
    assert "too small" in run("fsck", path, code=2).stderr
    make(path, 16 * MIB)
    blank = run("fsck", path, code=2)
    assert "blank" in blank.stderr and blank.stdout == "", blank
    needs.program("fio", "fio")

    # A file that is smaller than the area; twice, as the first leaves nothing in it.
    for _ in range(2):
        answer = bench(path, "write", "durable", "4KiB", "1GiB")
        assert 4 * MIB < answer["area"] < 8 * MIB and answer["size"] == 4096, answer
        seen = fsck(path, 0)
        assert seen["extents"] == 0 and seen["damaged_blocks"] == 0 and seen["damaged"] == [], seen
        assert (seen["path_bytes"], seen["path_index"], seen["path_count"]) == (16 * MIB, 0, 1), seen
        assert seen["written_bytes_total"] > answer["area"], seen
    assert "clean" in run("fsck", path, code=0).stdout

    # One superblock gone is a note; both are damage.
    with open(path, "r+b") as file:
        file.seek(20)
        file.write(b"?")
    notes = fsck(path, 0)["notes"]
    assert any("first superblock" in note for note in notes), notes
    with open(path, "r+b") as file:
        file.seek(16 * MIB - 4096 + 20)
        file.write(b"?")
    assert "checksum" in run("fsck", path, code=1).stderr
