"""hyperoffload analyze without a hardware file, and bench profile: a pool of a near and a far node, measured."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

cli, daemon = sys.argv[1:3]
MIB = 1 << 20
CAPACITIES = {"near": 256 * MIB, "far": 320 * MIB}  # in segments of 64 MiB
NEAR_DDR = f"ddr_bytes: {10 * MIB} segment_bytes: {2 * MIB}"
SMALL = MIB  # logs take a part


def run(*words, code=0):
    done = subprocess.run([cli, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(folder, name, number, listen, other, more="", ddr=None):
    """A daemon that names one other node."""
    config = folder / f"{name}.textproto"
    ddr = ddr or f"ddr_bytes: {CAPACITIES[name]} segment_bytes: {64 * MIB}"
    config.write_text(f'''node_id: {number} node_name: "{name}" {ddr}
unix_socket: "{folder}/{name}" {listen} tcp {{ }} nodes {{ node_id: {1 - number} name: "other" control_addresses: "{other}" }} {more}''')
    return subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)


def wait_for(pool):
    end = time.monotonic() + 20
    while subprocess.run([cli, "status", "--pool", pool], capture_output=True, check=False).returncode != 0:
        assert time.monotonic() < end, "the daemons did not come up"
        time.sleep(0.05)


def stop(daemons):
    for one in daemons:
        one.send_signal(signal.SIGTERM)
    for one in daemons:
        one.wait(20)


def measure_small(flash_bytes):
    """Measures a pool of a small near node, a far one and so much flash each. @return the profile, what the command said."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp may be memory, without direct I/O
        folder = pathlib.Path(name)
        near, far = f"unix:{folder}/near", f"tcp:127.0.0.1:{free_port()}"
        for flash in (folder / "near.flash", folder / "far.flash"):
            flash.touch(0o600)
            os.truncate(flash, flash_bytes)
        daemons = [start(folder, "near", 0, "", far, f'flash {{ path: "{folder}/near.flash" }}', NEAR_DDR),
                   start(folder, "far", 1, f'tcp_listen: "{far.removeprefix("tcp:")}" insecure: true', near,
                         f'flash {{ path: "{folder}/far.flash" }}')]
        try:
            wait_for(near)
            for node in json.loads(run("status", "--pool", near, "-o", "json").stdout)["nodes"]:
                if node["flash_off"]:
                    needs.skip(node["flash_off"])
            said = run("bench", "profile", folder / "profile.json", "--pool", near, "--seconds", "0.4").stderr
            measured = json.loads((folder / "profile.json").read_text())
            return measured, said
        finally:
            stop(daemons)


def write_graph(path, layers, layer_bytes):
    """Each layer's activation is read again on the way back: half of the memory makes some leave the device."""
    storages = [{"id": i, "name": f"a{i}", "bytes": str(layer_bytes), "kind": "ACTIVATION"} for i in range(layers)]
    ops = [{"id": i, "name": f"f{i}", "durationNs": "3000000", "reads": [i - 1] if i else [], "writes": [i]}
           for i in range(layers)]
    ops += [{"id": layers + i, "name": f"b{i}", "durationNs": "3000000", "reads": [layers - 1 - i]} for i in range(layers)]
    path.write_text(json.dumps({"version": 1, "name": "layers", "storages": storages, "ops": ops}))


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    graph, plan, profile = (folder / file for file in ("graph.json", "plan.hos", "profile.json"))
    near, far = f"unix:{folder}/near", f"tcp:127.0.0.1:{free_port()}"
    write_graph(graph, 24, 16 * MIB)

    done = run("analyze", graph, "--pool", f"unix:{folder}/nobody", "--device-memory", "60%", "--out", plan, code=4)
    assert "--hardware" in done.stderr and "nobody" in done.stderr, done.stderr
    done = run("analyze", graph, "--pool", near, "--out", plan, code=2)
    assert "--device-memory" in done.stderr, done.stderr
    done = run("analyze", graph, "--pool", near, "--hardware", profile, "--device-memory", "60%", "--out", plan, code=2)
    assert "--pool" in done.stderr and "--hardware" in done.stderr, done.stderr
    assert not plan.exists()

    daemons = [start(folder, "near", 0, "", far),
               start(folder, "far", 1, f'tcp_listen: "{far.removeprefix("tcp:")}" insecure: true', near)]
    try:
        wait_for(near)

        run("bench", "profile", profile, "--pool", near, "--seconds", "0.4")
        measured = json.loads(profile.read_text())
        for tier, node in (("localDdr", "near"), ("remoteDdr", "far")):
            assert int(measured[tier]["capacityBytes"]) == CAPACITIES[node], measured
            assert all(int(measured[tier][way]["bytesPerS"]) > 0 for way in ("read", "write")), measured
        assert measured["failureDomains"] == 1 and "flash" not in measured, measured

        answer = json.loads(run("analyze", graph, "--pool", near, "--device-memory", "60%", "--out", plan, "-o", "json").stdout)
        assert answer["prefetch_bytes"] > 0 and answer["second_homes"] == 0, answer
        assert {tier["name"] for tier in answer["tiers"]} >= {"local_ddr", "remote_ddr"}, answer
        assert "legal" in run("verify", plan).stdout
        assert all(node["ddr_granted_bytes"] == 0 for node in json.loads(run("status", "--pool", near, "-o", "json").stdout)["nodes"])

        write_graph(graph, 24, 64 * MIB)
        done = run("analyze", graph, "--pool", near, "--device-memory", "20%", "--out", plan, code=3)
        assert "free in the pool" in done.stderr, done.stderr
    finally:
        stop(daemons)

# Half of all free flash is more than one node has, then less than the least that a measurement takes.
for flash_bytes in (26 * MIB, SMALL):
    profile, said = measure_small(flash_bytes)
    assert int(profile["localDdr"]["capacityBytes"]) == 10 * MIB, profile
    assert int(profile["localDdr"]["read"]["bytesPerS"]) > 0, profile
    if flash_bytes == SMALL:
        assert "flash" not in profile and "flash is not measured: " in said, (profile, said)
    else:
        assert int(profile["flash"]["capacityBytes"]) > 40 * MIB and int(profile["flash"]["read"]["bytesPerS"]) > 0, profile
        assert said == "", said
