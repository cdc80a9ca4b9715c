"""hyperoffload analyze without a hardware file, and bench profile: a pool of a near and a far node, measured."""
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

cli, daemon = sys.argv[1:3]
MIB = 1 << 20
CAPACITIES = {"near": 256 * MIB, "far": 320 * MIB}  # in segments of 64 MiB


def run(*words, code=0):
    done = subprocess.run([cli, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, (done.args, done.returncode, done.stdout, done.stderr)
    return done


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(folder, name, number, listen, other):
    """A daemon that names one other node."""
    config = folder / f"{name}.textproto"
    config.write_text(f'''node_id: {number} node_name: "{name}" ddr_bytes: {CAPACITIES[name]} segment_bytes: {64 * MIB}
unix_socket: "{folder}/{name}" {listen} tcp {{ }} nodes {{ node_id: {1 - number} name: "other" control_addresses: "{other}" }}''')
    return subprocess.Popen([daemon, "--config", str(config)], stderr=subprocess.DEVNULL)


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
        end = time.monotonic() + 20
        while subprocess.run([cli, "status", "--pool", near], capture_output=True, check=False).returncode != 0:
            assert time.monotonic() < end, "the daemons did not come up"
            time.sleep(0.05)

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
        for one in daemons:
            one.send_signal(signal.SIGTERM)
        for one in daemons:
            one.wait(20)
