"""Builds the image of deploy/container/Containerfile as a person does, with buildah, and runs the daemon in it for a job
outside: status, a training run, and the end by SIGTERM. Installs all packages of this build on a system that has nothing of
what they need, to the end of a first job there, and tells the time that this takes without the download.

Without a registry, debian:12 is a system that tools/chroot makes. Needs root and Debian's mirror.

Usage (tools/lab/suite container): container.py BUILD SOURCE [packages | image]
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD, SOURCE, *NAMES = sys.argv[1:]
FILE = "deploy/container/Containerfile"
IMAGE = "localhost/hyperoffload"
FIRST_JOB_S = 120  # from the start of the installation, without the download
COMMAND = f"{BUILD}/tools/hyperoffload/hyperoffload"
FOLDERS = {"/etc/hyperoffload": "ro", "/run/hyperoffload": "rw", "/var/lib/hyperoffload": "rw"}
PATIENCE_S = 60
CONFIG = """
node_id: 0 node_name: "in a container" ddr_bytes: "256MiB" segment_bytes: "8MiB"
unix_socket: "/run/hyperoffload/control.sock"
flash { path: "/var/lib/hyperoffload/flash-0" }
"""


class Images:
    """A store of images and containers of its own, which ends with it."""

    def __init__(self, folder):
        self.words = ("buildah", "--root", folder / "store", "--runroot", folder / "run")
        self.environment = dict(os.environ, BUILDAH_ISOLATION="chroot")

    def __call__(self, *words, **options):
        done = subprocess.run([*self.words, *words], env=self.environment, check=True, text=True, stdout=subprocess.PIPE, **options)
        return done.stdout.strip()

    def start(self, *words, **options):
        return subprocess.Popen([*self.words, *words], env=self.environment, **options)

    def add_debian(self, folder):
        """debian:12 as Debian's mirror has it: a new system, to which nobody has added packages."""
        subprocess.run([f"{SOURCE}/tools/chroot/run", "--suite", "bookworm", "--cache", folder / "chroot", "true"], check=True,
                       cwd=SOURCE)
        container = self("from", "scratch")
        self("add", "--quiet", container, str(folder / "chroot" / "bookworm"), "/")
        self("config", "--cmd", "/bin/bash", container)
        self("commit", "--quiet", "--rm", container, "docker.io/library/debian:12")


def until(true, what):
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def status(pool):
    done = subprocess.run([COMMAND, "status", "--pool", pool, "-o", "json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)["nodes"][0] if done.returncode == 0 else None


def losses(policy, *options):
    done = subprocess.run([f"{BUILD}/tools/compare/hyperoffload-compare", "one", "--policy", policy, "--layers", "2", "--dim", "64",
                           "--heads", "2", "--seq", "32", "--batch", "2", "--steps", "20", "-o", "json", *options],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["losses"]


def use(images, folder):
    """The daemon in a container, with the folders that the file's own words give it, and a job outside."""
    words = pathlib.Path(SOURCE, FILE).read_text(encoding="utf-8")
    volumes = []
    for place, mode in FOLDERS.items():
        assert re.search(rf"-v {place}:{place}{':ro' if mode == 'ro' else ''}\s", words), place
        here = folder / place.strip("/").replace("/", "-")
        here.mkdir(mode=0o755)
        volumes += ["--volume", f"{here}:{place}:{mode}"]
    (folder / "etc-hyperoffload" / "hyperoffloadd.textproto").write_text(CONFIG, encoding="utf-8")
    container = images("from", "--pull-never", *re.search(r"--security-opt \S+", words)[0].split(), IMAGE)
    about = json.loads(images("inspect", "--type", "container", container))["OCIv1"]["config"]
    user = images("run", container, "--", "id", "-u")
    assert about["User"] == "hyperoffload" and user != "0", (about, user)
    flash = folder / "var-lib-hyperoffload" / "flash-0"
    flash.touch(0o600)
    os.truncate(flash, 256 << 20)
    for path in (flash, flash.parent, folder / "run-hyperoffload"):
        os.chown(path, int(user), int(user))
    daemon = images.start("run", *volumes, container, "--", *about["Entrypoint"], *about["Cmd"])
    try:
        pool = f"unix:{folder}/run-hyperoffload/control.sock"
        until(lambda: daemon.poll() is not None or status(pool), "the daemon does not answer")
        assert daemon.poll() is None, f"the daemon ended with {daemon.returncode}"
        assert losses("planned", "--pool", pool, "--device-memory", "60%") == losses("resident")
        node = status(pool)
        assert node["flash"] and not node["flash_off"], node
        print(f"node {node['name']!r}: a job outside trained with its memory")
    finally:
        if daemon.poll() is None:
            os.kill(below(daemon.pid, "hyperoffloadd") or daemon.pid, signal.SIGTERM)
        try:
            code = daemon.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.kill(below(daemon.pid, "hyperoffloadd") or daemon.pid, signal.SIGKILL)
            raise
    assert code == 0, f"SIGTERM ended it with {code}"


FIRST_JOB = r"""
set -eu
exec 3>&1 4>&2 >/run/told 2>&1
trap '[ $? = 0 ] || tail -n 20 /run/told >&4' EXIT
export DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1
cd /packages
apt-get update
apt-get install -y --download-only /packages/*.deb
began=$(date +%s%N)
apt-get install -y /packages/*.deb  # they are in the cache
sed -i 's/^ddr_bytes: .*/ddr_bytes: "128MiB"/; s/^segment_bytes: .*/segment_bytes: "2MiB"/' /etc/hyperoffload/hyperoffloadd.textproto
install -d -o hyperoffload -g hyperoffload /run/hyperoffload
setpriv --reuid hyperoffload --regid hyperoffload --clear-groups hyperoffloadd --config /etc/hyperoffload/hyperoffloadd.textproto &
daemon=$!
for i in $(seq 300); do ! hyperoffload status || break; sleep 0.1; done
python3 soaking/client.py memory unix:/run/hyperoffload/control.sock local 1 1 /run/told >&3
echo "$((($(date +%s%N) - began) / 1000000)) ms" >&3
kill $daemon
wait $daemon
"""


def install(images, folder):
    """All packages, by apt, on a new system. @return how long it took to the end of a job, in s."""
    subprocess.run(["cpack", "-G", "DEB", "-B", folder / "packages"], check=True, cwd=BUILD, stdout=subprocess.DEVNULL)
    packages = sorted((folder / "packages").glob("*.deb"))
    assert len(packages) == 4, packages
    container = images("from", "--pull-never", "docker.io/library/debian:12")
    images("copy", "--quiet", container, *packages, "/packages/")
    images("copy", "--quiet", container, f"{SOURCE}/tools/soaking", "/packages/soaking")
    counts, took = images("run", container, "--", "bash", "-c", FIRST_JOB).splitlines()[-2:]
    assert json.loads(counts)["bytes_checked"] > 0, counts
    return int(took.split()[0]) / 1000


def below(ancestor, name):
    """The process of that name which `ancestor` started, at any depth."""
    parents, named = {}, []
    for line in subprocess.run(["ps", "-e", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout.splitlines():
        process, parent, comm = line.split(None, 2)
        parents[int(process)] = int(parent)
        if comm == name:
            named.append(int(process))
    for process in named:
        above = process
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor:
            return process
    return None


def main():
    # Outside the checkout, which is copied into the image; /tmp may be memory.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ho-container-", dir="/var/tmp"))
    folder.chmod(0o755)
    images = Images(folder)
    try:
        images.add_debian(folder)
        if not NAMES or "packages" in NAMES:
            took_s = install(images, folder)
            print(f"on a system without what they need: {took_s:.1f} s from the start of the packages' installation to the end "
                  "of a job", flush=True)
            assert took_s <= FIRST_JOB_S, took_s
        if not NAMES or "image" in NAMES:
            subprocess.run([*images.words, "build", "--pull-never", "--tag", IMAGE, "--file", FILE, "."],
                           env=images.environment, check=True, cwd=SOURCE)
            use(images, folder)
    finally:
        # An interrupted build leaves an overlay mounted.
        subprocess.run([*images.words, "rm", "--all"], env=images.environment, check=False, stdout=subprocess.DEVNULL)
        shutil.rmtree(folder)


if os.geteuid() != 0:
    sys.exit("container.py: needs root, to mount and to run containers")
main()
