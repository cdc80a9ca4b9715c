"""hyperoffload bench transport: every driver and direction, with a daemon of its own and on a running pool; what
bench --profile and bench matrix --profile write of that pool is what analyze plans with."""
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

cli, daemon = sys.argv[1:3]


def bench(driver, op, pool=None, code=0):
    words = [cli, "bench", "transport", "--transport", driver, "--op", op, "--size", "64KiB", "--inflight", "4",
             "--seconds", "0.2", "-o", "json"]
    done = subprocess.run(words + (["--pool", pool] if pool else []), capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


def check(answer, driver, op):
    for field in ("bytes_per_s", "ops_per_s", "p50_us", "p99_us"):
        assert math.isfinite(answer[field]) and answer[field] > 0, (field, answer)
    assert answer["limit"]["name"] and answer["limit"]["bytes_per_s"] > 0, answer
    assert answer["transport"] == driver and answer["op"] == op and answer["size"] == 65536, answer


MIB = 1 << 20


def write_graph(path, layers=12):
    """Each layer's activation is read again on the way back: half of the memory makes some leave the device."""
    storages = [{"id": i, "name": f"a{i}", "bytes": str(MIB), "kind": "ACTIVATION"} for i in range(layers)]
    ops = [{"id": i, "name": f"f{i}", "durationNs": "100000", "reads": [i - 1] if i else [], "writes": [i]} for i in range(layers)]
    ops += [{"id": layers + i, "name": f"b{i}", "durationNs": "100000", "reads": [layers - 1 - i]} for i in range(layers)]
    path.write_text(json.dumps({"version": 1, "name": "layers", "storages": storages, "ops": ops}))


def check_profile(words, tier, folder, option="--profile"):
    """The profile that a command of bench writes has the tier, whose bandwidth and latency an analyze of it plans with."""
    profile, graph, plan = (folder / name for name in ("profile.json", "graph.json", "plan.hos"))
    profile.unlink(missing_ok=True)
    done = subprocess.run([cli, "bench", *words, *([option] if option else []), str(profile)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.args, done.returncode, done.stdout, done.stderr)
    hardware = json.loads(profile.read_text())
    assert tier in hardware and "devicePortRead" not in hardware, hardware
    write_graph(graph)
    done = subprocess.run([cli, "analyze", str(graph), "--hardware", str(profile), "--device-memory", "50%", "--out", str(plan),
                           "-o", "json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.args, done.returncode, done.stdout, done.stderr)
    answer = json.loads(done.stdout)
    busy = {channel["name"]: channel["busy_ns"] for channel in answer["channels"]}
    name = {"localDdr": "local_ddr", "remoteDdr": "remote_ddr"}[tier]
    for direction, moved in (("read", answer["prefetch_bytes"]), ("write", answer["store_bytes"])):
        link = hardware[tier][direction]
        assert moved >= MIB and moved % MIB == 0, answer
        each = int(link.get("latencyNs", 0)) - (-MIB * 10**9 // int(link["bytesPerS"]))
        assert busy[f"{name}.{direction}"] == moved // MIB * each, (hardware, answer)


def children(pid):
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for driver in ("local", "tcp", "ofi"):
        for op in ("get", "put"):
            check(json.loads(bench(driver, op).stdout), driver, op)

    if not any(pathlib.Path("/sys/class/infiniband").glob("*")):
        assert "no RDMA device" in bench("ucx", "get", code=1).stderr

    # One small operation at a time, both ends asleep before each: the limits' times beside ours.
    done = subprocess.run([cli, "bench", "transport", "--transport", "tcp", "--op", "get", "--size", "4KiB", "--inflight",
                           "1", "--pause", "500us", "--seconds", "0.5", "-o", "json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    answer = json.loads(done.stdout)
    assert answer["pause_us"] == 500 and answer["ops_per_s"] < 2000, answer
    asleep = [other for other in answer["beside"] if "asleep until" in other["name"]]
    assert len(asleep) == 1, answer
    for limit in (answer["limit"], asleep[0]):
        assert 0 < limit["p50_us"] <= limit["p99_us"], answer
        assert abs(limit["p50_ratio"] * limit["p50_us"] - answer["p50_us"]) < 0.01 * answer["p50_us"], answer

    stage = subprocess.run([cli, "bench", "stage", "--path", str(folder / "flash"), "--size", "8MiB", "--rounds", "2",
                            "-o", "json"], capture_output=True, text=True, timeout=60)
    if stage.returncode == 0:
        answer = json.loads(stage.stdout)
        for field in ("stage_in_bytes_per_s", "get_bytes_per_s", "both_bytes_per_s", "ratio"):
            assert math.isfinite(answer[field]) and answer[field] > 0, (field, answer)
        assert answer["ratio_low"] <= answer["ratio"] <= answer["ratio_high"], answer
    else:  # only where this machine cannot have flash
        print("skipped: bench stage:", stage.stderr)
        assert any(why in stage.stderr for why in ("O_DIRECT", "io_uring", "no flash")), stage.stderr
    assert not (folder / "flash").exists()
    for path in (folder, folder / "nowhere" / "flash"):
        done = subprocess.run([cli, "bench", "flash", "--path", str(path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and str(path) in done.stderr, done

    # Without a pool, bench measures a daemon of its own, which ends with its starter.
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        temporary = folder / number.name
        temporary.mkdir()
        running = subprocess.Popen([cli, "bench", "transport", "--seconds", "20", "-o", "json"],
                                   stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(temporary)})
        end = time.monotonic() + 20
        own = []
        while not own or not list(temporary.glob("*/control.sock")):
            assert time.monotonic() < end and running.poll() is None, "no daemon was started"
            own = [pid for pid in children(running.pid)
                   if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "hyperoffloadd"]
            time.sleep(0.01)
        running.send_signal(number)
        assert running.wait() == (130 if number == signal.SIGINT else -number)
        while pathlib.Path(f"/proc/{own[0]}").exists():
            assert time.monotonic() < end, "the daemon outlives its starter"
            time.sleep(0.01)
        if number != signal.SIGKILL:
            assert not list(temporary.iterdir()), "an interrupted run leaves files"

    config = folder / "d.textproto"
    config.write_text(f'ddr_bytes: 268435456 segment_bytes: 67108864 unix_socket: "{folder}/s" tcp {{ }}')
    pool = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not (folder / "s").exists():
            assert time.monotonic() < end, "the daemon did not come up"
            time.sleep(0.01)
        for driver in ("local", "tcp"):
            for op in ("get", "put"):
                check(json.loads(bench(driver, op, f"unix:{folder}/s").stdout), driver, op)
        for driver, tier in (("local", "localDdr"), ("tcp", "remoteDdr")):
            check_profile(["--pool", f"unix:{folder}/s", "--transport", driver, "--seconds", "0.4"], tier, folder)
        check_profile(["profile", "--pool", f"unix:{folder}/s", "--transport", "local", "--seconds", "0.4"], "localDdr", folder,
                      option=None)
        check_profile(["matrix", "--pool", f"unix:{folder}/s", "--seconds", "0.3"], "localDdr", folder)
    finally:
        pool.send_signal(signal.SIGKILL)
        pool.wait()
    bench("local", "get", f"unix:{folder}/nobody", code=4)

    # A measurement longer than the lease keeps its memory.
    config.write_text(f'ddr_bytes: 134217728 segment_bytes: 67108864 lease_ms: 300 unix_socket: "{folder}/l"')
    pool = subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while not (folder / "l").exists():
            assert time.monotonic() < end, "the daemon did not come up"
            time.sleep(0.01)
        done = subprocess.run([cli, "bench", "matrix", "--pool", f"unix:{folder}/l", "--seconds", "0.6", "-o", "json"],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        assert len(json.loads(done.stdout)["nodes"][0]["rows"]) == 10, done.stdout
    finally:
        pool.send_signal(signal.SIGKILL)
        pool.wait()
