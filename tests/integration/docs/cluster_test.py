"""Runs the commands of deploy/cluster/README.md, deploy/docs/operate.md and membership.md, as they stand, with three real daemons at the page's
addresses, in a network namespace. Stand-ins for scp and ssh do on this machine, in a folder for each node, what they would do there.

Usage: cluster_test.py SOURCE CLI DAEMON
"""
import os
import pathlib
import stat
import subprocess
import sys
import tempfile

from pages import blocks

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

SOURCE, CLI, DAEMON = sys.argv[1:4]
NAMESPACE = ["unshare", "--map-root-user", "--net"]
TIME_MAX_S = 100
# The differences from three machines. $TOP/ADDRESS is the root of a node's files.
STAND_INS = r"""
hyperoffload() {  # a busy machine answers later than people wait
  case $1 in status | sessions | top | events | flash) command hyperoffload "$@" --timeout 60s ;; *) command hyperoffload "$@" ;; esac
}
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
ip link set lo up
for n in 1 2 3; do ip address add 10.0.0.$n/32 dev lo; done
files() { echo "s,/etc/hyperoffload,$TOP/$1/etc/hyperoffload,g; s,/run/hyperoffload,$TOP/$1,g"; }
scp() {  # -r FROM root@ADDRESS:FOLDER
  address=${3#root@}; address=${address%%:*}
  mkdir -p "$TOP/$address${3#*:}" && cp -r "$2" "$TOP/$address${3#*:}"
  # As SFTP, which scp speaks since OpenSSH 9: every folder, also one that is there, gets the mode of its source.
  (cd "$2" && find . -type d -exec chmod --reference={} "$TOP/$address${3#*:}/{}" \;)
  sed -i "$(files "$address"); s,127.0.0.1:9464,127.0.0.${address##*.}:9464," "$TOP/$address${3#*:}/hyperoffloadd.textproto"
}
etcdctl() { test "$*" = "get --prefix /hyperoffload"; }  # no etcd here; membership_test looks into one
chgrp() { :; }  # the test's machine has no such group
runuser() { shift 3; "$@"; }  # -u USER -- COMMAND; and no such user
systemctl() {   # enable --now hyperoffloadd
  hyperoffloadd --config "$TOP/$address/etc/hyperoffload/hyperoffloadd.textproto" 2> "$TOP/$address/log" &
  for i in $(seq 600); do test -S "$TOP/$address/control.sock" && return; sleep 0.1; done; cat "$TOP/$address/log"; false
}
journalctl() { command journalctl --quiet --directory "$TOP" "$@"; }  # no journal here; tests/integration/systemd looks into one
ssh() {         # root@ADDRESS COMMAND
  address=${1#root@}; eval "$(echo "$2" | sed "$(files "$address")")"
}
"""


def read_as_another(top):
    """The daemon's user, who owns nothing there, reads its configuration, and another one reads no key."""
    stranger = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}  # else only root can ask
    for node in sorted(top.glob("10.0.0.*")):
        folder = node / "etc" / "hyperoffload"
        file = folder / "hyperoffloadd.textproto"
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, file, folder / "tls", folder / "tls" / "node.key")]
        assert modes == [0o755, 0o644, 0o750, 0o640], (node, list(map(oct, modes)))
        # From within the folder: the folders above it may be the tester's alone.
        subprocess.run(["cat", file.name], cwd=folder, check=True, stdout=subprocess.DEVNULL, **stranger)
        if stranger:
            refused = subprocess.run(["cat", "tls/node.key"], cwd=folder, check=False, capture_output=True, **stranger)
            assert refused.returncode, "a stranger reads the key"


def make(programs, folder, *addresses):
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "DDR_BYTES": "64MiB", "SEGMENT_BYTES": "2MiB"}
    return subprocess.run([f"{SOURCE}/deploy/cluster/make_cluster", *addresses], cwd=folder, env=environment, text=True,
                          capture_output=True, check=False)


def make_others(top):
    """Other addresses than the page's: what make_cluster writes for them, what it refuses, and that it then leaves nothing."""
    folder, programs = top / "others", top / "bin"
    folder.mkdir()
    for words, said in ((["node1"], '"node1": no numeric IP address'), (["10.0.0.1", "10.0.0.256"], '"10.0.0.256": no numeric'),
                        (["1::2::3"], '"1::2::3": no numeric'), ([""], '"": no numeric'), (["--help"], '"--help": no numeric'),
                        (["010.0.0.1"], '"010.0.0.1": no numeric'), (["10.1"], '"10.1": no numeric'), (["1"], '"1": no numeric'),
                        (["0.0.0.0"], "0.0.0.0: others cannot reach"), (["::"], "::: others cannot reach"),
                        (["0::0"], "0::0: others cannot reach"),
                        (["10.0.0.1", "10.0.0.2", "10.0.0.1"], "10.0.0.1: this address is there twice"),
                        (["fd00::1", "fd00:0::1"], "fd00:0::1: this address is there twice")):
        done = make(programs, folder, *words)
        assert done.returncode == 2 and said in done.stderr and not list(folder.iterdir()), (words, done)
    failing = top / "failing"
    failing.mkdir()
    (failing / "hyperoffload").write_text(f'#!/bin/sh\ncase "$*" in *node2*) exit 3 ;; esac\nexec {CLI} "$@"\n')
    (failing / "hyperoffload").chmod(0o755)
    done = make(failing, folder, "fd00::1", "fd00:0::2")
    assert done.returncode == 3 and not list(folder.iterdir()), done
    done = make(programs, folder, "fd00::1", "fd00:0::2")
    assert done.returncode == 0 and [path.name for path in folder.iterdir()] == ["cluster"], done
    node = folder / "cluster" / "node1"
    text = (node / "hyperoffloadd.textproto").read_text()
    for line in ('tcp_listen: "[fd00::1]:7700"', 'tcp { address: "fd00::1" port: 7701 }', 'control_addresses: "tcp:[fd00::2]:7700"'):
        assert line in text, text
    (node / "hyperoffloadd.textproto").write_text(text.replace("/etc/hyperoffload", str(node)).replace("/run/hyperoffload", str(node)))
    check = f"ip link set lo up; ip address add fd00::1/128 dev lo; exec {DAEMON} --check-config --config {node}/hyperoffloadd.textproto"
    subprocess.run([*NAMESPACE, "sh", "-ec", check], check=True, stdout=subprocess.DEVNULL)
    done = make(programs, folder, "10.0.0.1")
    assert done.returncode == 2 and "there is one already" in done.stderr, done


def main():
    commands = blocks(f"{SOURCE}/deploy/cluster/README.md")
    assert len(commands) == 4, commands
    commands += blocks(f"{SOURCE}/deploy/docs/operate.md")
    commands += ["export HYPEROFFLOAD_TLS=$PWD/cluster/admin\n", *blocks(f"{SOURCE}/deploy/docs/membership.md")]
    with tempfile.TemporaryDirectory(prefix="ho-cluster-") as top:
        programs = pathlib.Path(top, "bin")
        programs.mkdir()
        for program in (CLI, DAEMON, f"{SOURCE}/deploy/cluster/make_cluster"):
            (programs / pathlib.Path(program).name).symlink_to(program)
        pathlib.Path(top, "deploy").symlink_to(pathlib.Path(SOURCE, "deploy"))
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TOP": top, "DDR_BYTES": "64MiB",
                       "SEGMENT_BYTES": "2MiB"}
        script = STAND_INS + "\necho '---'\n".join(commands) + """
echo '---'
hyperoffload status -o json --tls cluster/admin | python3 -c '
import json, sys
nodes = json.load(sys.stdin)["nodes"]
assert [(one["name"], one["reachable"]) for one in nodes] == [("node1", True), ("node2", True), ("node3", True)], nodes
assert all(one["ddr_reserved_bytes"] == one["ddr_capacity_bytes"] for one in nodes), nodes'
! HYPEROFFLOAD_TLS= hyperoffload status 2> refused; grep -q 'wants TLS' refused
"""
        done = subprocess.run([*NAMESPACE, "bash", "-eu", "-o", "pipefail", "-c", script], cwd=top, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIME_MAX_S, check=False)
        print(done.stdout)
        if done.returncode:
            for log in pathlib.Path(top).glob("10.*/log"):
                print(log.read_text())
        assert done.returncode == 0, done.returncode
        for node in ("node1", "node2", "node3"):
            assert node in done.stdout, node
        read_as_another(pathlib.Path(top))
        make_others(pathlib.Path(top))


if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
    needs.skip("no network namespaces here")
main()
