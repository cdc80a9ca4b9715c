"""The installed packages under a real systemd, in a guest of tools/lab: the unit starts, is as closed as it says, keeps
memory over a crash and an upgrade under a running job, frees it at a real stop, and ends for good where its configuration
is wrong. Grants respect the unit's memory limit, flash works in its sandbox, and the package goes without a trace.

Usage (tools/lab/suite systemd): guest.py BUILD PACKAGES_FOLDER [CHECK...]; without names all checks are made.
"""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

BUILD, PACKAGES = sys.argv[1:3]
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/integration/docs")]
from gpt_job import Job  # noqa: E402
from pages import blocks  # noqa: E402

UNIT = "hyperoffloadd"
CONFIG = pathlib.Path("/etc/hyperoffload/hyperoffloadd.textproto")
POOL = "unix:/run/hyperoffload/control.sock"
GPT = f"{BUILD}/tools/examples/gpt/hyperoffload-gpt"
PATIENCE_S = 120  # the guest is emulated
EXPOSURE_MAX = 2.0
FOLDER = "/var/tmp"
STEPS = (120, 120, 240, 240)  # one attempt after the other
SEGMENT = 2 << 20
SEGMENTS = 512  # reserved at the start, as the packaged configuration has it
HELD = 64 * SEGMENT  # so that the daemon has more mappings than its clients
FREE = 2  # descriptors in the store of a daemon that holds no segment
HOLDER = f"{BUILD}/tests/integration/daemon/ho_holding_client"


def call(*words, code=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1200)
    assert code is None or done.returncode == code, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done


def show(name, unit=UNIT):
    return call("systemctl", "show", "--value", "-p", name, unit).stdout.strip()


def until(true, what):
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, (what, call("journalctl", "--no-pager", "-n", "40", "-u", UNIT, code=None).stdout)
        time.sleep(0.1)


def status():
    return json.loads(call("hyperoffload", "status", "--pool", POOL, "-o", "json", "--timeout", "60s").stdout)["nodes"][0]


def started():
    """The daemon's process, once it answers."""
    until(lambda: show("ActiveState") == "active", "the unit is not active")
    return show("MainPID")


def bench(size, code=0):
    """Some puts to memory of that size at least."""
    return call("hyperoffload", "bench", "transport", "--transport", "local", "--op", "put", "--size", size // 2, "--inflight", "2",
                "--seconds", "0.1", "--pool", POOL, code=code)


def install():
    call("apt-get", "-qq", "install", "-y", *sorted(pathlib.Path(PACKAGES).glob("hyperoffload_*.deb")),
         *sorted(pathlib.Path(PACKAGES).glob("libhyperoffload0_*.deb")))
    text = CONFIG.read_text()
    text = re.sub("(?m)^ddr_bytes: .*", 'ddr_bytes: "1GiB"', text)
    CONFIG.write_text(re.sub("(?m)^segment_bytes: .*", 'segment_bytes: "2MiB"', text))
    call("systemctl", "enable", "--now", UNIT)
    pid = started()
    assert (show("Type"), show("FileDescriptorStoreMax")) == ("notify", "8192"), (show("Type"), show("FileDescriptorStoreMax"))
    assert "Giving 1.00 GiB" in show("StatusText"), show("StatusText")
    assert status()["restart"]["keeps_sessions"], status()["restart"]
    user = pathlib.Path(f"/proc/{pid}/status").read_text()
    assert re.search(r"^CapEff:\t0+$", user, re.M) and not re.search(r"^Uid:\t0\t", user, re.M), user
    assert int(show("NFileDescriptorStore")) == FREE + SEGMENTS, show("NFileDescriptorStore")
    assert show("LimitMEMLOCK") == "infinity", show("LimitMEMLOCK")
    print(f"ok: the unit runs, as process {pid}, without rights; its {SEGMENTS} segments are in the descriptor store", flush=True)


def is_closed():
    done = call("systemd-analyze", "security", "--no-pager", UNIT)
    exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)[1])
    assert exposure <= EXPOSURE_MAX, done.stdout
    print(f"ok: systemd-analyze security says {exposure}", flush=True)


def keeps_memory_under_a_job(steps):
    """@return false: the job was faster than the restarts, or an emulated machine that is busy took longer for one than the 5 s
    that jobs wait."""
    quiet = Job(GPT, FOLDER, POOL, "local", steps).result()
    with Job(GPT, FOLDER, POOL, "local", steps) as job:
        assert job.wait_for("step 3:", PATIENCE_S)
        restarts = int(show("NRestarts"))
        first = started()
        granted = status()["ddr_granted_bytes"] // SEGMENT
        assert granted > 0
        call("systemctl", "kill", "--signal=SIGKILL", UNIT)
        until(lambda: show("MainPID") not in ("0", first) and show("ActiveState") == "active", "no daemon follows")
        second = show("MainPID")
        assert int(show("NRestarts")) == restarts + 1
        at = job.at_step()
        until(lambda: job.ended() or job.at_step() > at + 2, "the job does not go on")
        if job.ended():
            return False
        told = json.loads(call("hyperoffload", "upgrade", "0", "--pool", POOL, "-o", "json", "--timeout", "100s").stdout)["nodes"][0]
        assert told["upgraded"] and told["taken_sessions"] == 1 and told["taken_segments"] == granted, (told, granted)
        third = started()
        assert len({first, second, third}) == 3
        in_time = not job.ended()
        if job.end() == 4 and "no other came" in job.said():
            return False
        run = job.result()
    if not in_time:
        return False
    assert run["losses"] == quiet["losses"], (run["losses"][-3:], quiet["losses"][-3:])
    assert len(job.gaps_ms()) == 2, job.said()[-2000:]
    until(lambda: status()["sessions"] == 0, "a session is left")
    print(f"ok: SIGKILL and upgrade under a job of {steps} steps, the same losses; without a daemon for "
          f"{job.gaps_ms()} ms; longest step {max(run['step_ms']):.0f} ms, mean {sum(run['step_ms']) / steps:.0f} ms", flush=True)
    return True


def a_real_restart_frees():
    with Job(GPT, FOLDER, POOL, "local", 1_000_000) as job:
        assert job.wait_for("step 3:", PATIENCE_S)
        call("systemctl", "restart", UNIT)
        started()
        assert job.end() == 4, (job.process.returncode, job.said()[-2000:])
    assert (status()["sessions"], status()["ddr_granted_bytes"]) == (0, 0)
    assert int(show("NFileDescriptorStore")) == FREE + SEGMENTS, show("NFileDescriptorStore")
    print("ok: after systemctl restart nothing is held, and the job has ended with an error", flush=True)


def without_a_reserve():
    """Memory is taken with each grant from now on."""
    CONFIG.write_text(CONFIG.read_text().replace("ddr_reserve: true", "ddr_reserve: false"))
    call("systemctl", "restart", UNIT)
    started()
    assert int(show("NFileDescriptorStore")) == FREE, show("NFileDescriptorStore")


def respects_the_memory_limit():
    """The unit's, by systemd: a grant beyond it is refused, and nobody is killed."""
    used = int(show("MemoryCurrent"))
    call("systemctl", "set-property", "--runtime", UNIT, f"MemoryMax={used + (24 << 20)}")
    pid = started()
    told = bench(32 * SEGMENT, code=4).stderr.strip()
    assert "exhausted" in told, told
    assert started() == pid and "oom-kill" not in show("Result"), show("Result")
    events = pathlib.Path("/sys/fs/cgroup" + show("ControlGroup"), "memory.events").read_text()
    assert re.search(r"^oom_kill 0$", events, re.M), events
    call("systemctl", "set-property", "--runtime", UNIT, "MemoryMax=infinity")
    bench(32 * SEGMENT)
    print(f"ok: with 24 MiB more than it used, 64 MiB are refused: {told}", flush=True)


@contextlib.contextmanager
def held(size):
    """A job that holds `size` bytes of the pool."""
    with subprocess.Popen([HOLDER, POOL, str(size)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.read(1) == b"y"
            yield
        finally:
            holder.kill()


def respects_the_limit_of_mappings():
    """The kernel's: beyond it a grant is refused, and a daemon whose segments would exceed it does not start."""
    def allow(most):
        call("sysctl", "-q", f"vm.max_map_count={most}")

    before = call("sysctl", "-n", "vm.max_map_count").stdout.strip()
    pid = started()
    try:
        with held(HELD):
            allow(len(pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()) + 8)
            told = bench(32 * SEGMENT, code=4).stderr.strip()
            assert "exhausted" in told and "vm.max_map_count" in told, told
            assert status()["ddr_granted_bytes"] == HELD
            with held(2 * SEGMENT):
                assert status()["ddr_granted_bytes"] == HELD + 2 * SEGMENT
            allow(1000)
            assert started() == pid
            refused = call("hyperoffloadd", "--config", CONFIG, "--check-config", code=2).stderr.strip()
            assert "segments need" in refused and "vm.max_map_count" in refused, refused
    finally:
        allow(before)
    print(f"ok: without mappings: {told}\nok: at the start: {refused}", flush=True)


def a_wrong_configuration_ends_it():
    right = CONFIG.read_text()
    CONFIG.write_text(right + "no_such_field: 1\n")
    done = call("systemctl", "restart", UNIT, code=None)
    assert done.returncode != 0
    until(lambda: show("ActiveState") == "failed", "the unit does not fail")
    assert (show("ExecMainStatus"), show("NRestarts")) == ("2", "0"), (show("ExecMainStatus"), show("NRestarts"))
    CONFIG.write_text(right)
    call("systemctl", "start", UNIT)
    started()
    print("ok: a wrong configuration is tried once", flush=True)


def a_second_daemon():
    other = CONFIG.with_name("second.textproto")
    text = re.sub("(?m)^(http_listen): .*", r'\1: "127.0.0.1:9465"', CONFIG.read_text()).replace("/run/hyperoffload/", "/run/hyperoffload-second/")
    other.write_text(re.sub("(?m)^node_id: 0", "node_id: 1", text))
    call("systemctl", "start", "hyperoffloadd@second")
    until(lambda: show("ActiveState", "hyperoffloadd@second") == "active", "the second one does not start")
    call("hyperoffload", "status", "--pool", "unix:/run/hyperoffload-second/control.sock", "--timeout", "60s")
    call("systemctl", "stop", "hyperoffloadd@second")
    print("ok: hyperoffloadd@second runs beside it", flush=True)


def reloads():
    pid = started()
    CONFIG.write_text(CONFIG.read_text() + 'log_level: "debug"\n')
    call("systemctl", "reload", UNIT)
    until(lambda: "configuration reloaded" in call("journalctl", "--no-pager", "-u", UNIT).stdout, "no reload")
    assert started() == pid
    print("ok: systemctl reload applies a change", flush=True)


@contextlib.contextmanager
def drop_in(*lines):
    """The unit with these lines of [Service], restarted."""
    file = pathlib.Path(f"/etc/systemd/system/{UNIT}.service.d/test.conf")
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(("[Service]", *lines, "")))
    try:
        call("systemctl", "daemon-reload")
        done = call("systemctl", "restart", UNIT, code=None)
        assert done.returncode == 0, (done.stderr, call("journalctl", "--no-pager", "-n", "20", "-u", UNIT).stdout)
        yield started()
    finally:
        file.unlink()
        call("systemctl", "daemon-reload")


def the_watchdog_ends_a_hung_daemon():
    with drop_in("WatchdogSec=10") as hung:
        restarts = int(show("NRestarts"))
        os.kill(int(hung), signal.SIGSTOP)
        until(lambda: show("MainPID") not in ("0", hung) and show("ActiveState") == "active", "the watchdog does not end it")
        assert int(show("NRestarts")) == restarts + 1, show("NRestarts")
    print("ok: a daemon that hangs is ended by the watchdog, and another one follows", flush=True)


def takes_huge_pages():
    """As the example of the package has it, with the numbers of this machine."""
    text = pathlib.Path("/usr/share/doc/hyperoffload/memory.conf").read_text()
    for here, there in (("32768", "64"), ("AllowedMemoryNodes=0-1", "AllowedMemoryNodes=0"), ("MemoryMin=65G", "MemoryMin=256M")):
        assert here in text, here
        text = text.replace(here, there)
    config = CONFIG.read_text()
    CONFIG.write_text(re.sub("(?m)^ddr_bytes: .*", 'ddr_bytes: "128MiB"', config))
    pages = pathlib.Path("/proc/sys/vm/nr_hugepages")
    with drop_in(*text.partition("[Service]\n")[2].splitlines()):
        assert pages.read_text() == "64\n", pages.read_text()
        assert status()["page_kind"] == "hugetlb-2M", status()
        bench(8 << 20)
    pages.write_text("0")
    CONFIG.write_text(config)
    print("ok: memory.conf sets huge pages aside, and the pool is made of them", flush=True)


def has_flash_in_its_sandbox():
    """As deploy/docs/setup.md has it, encrypted, with the key as a credential of systemd."""
    state = "/var/lib/hyperoffload"
    call("mkfs.ext4", "-q", "/dev/nvme0n1")  # what this machine's files are on has no direct I/O
    call("mount", "/dev/nvme0n1", state)
    call("chown", "hyperoffload:", state)
    for block in blocks(ROOT / "deploy/docs/setup.md"):
        if "umask" in block:  # the file, and its key
            call("bash", "-ec", block.replace("100G", "96M"))
    key = CONFIG.with_name("flash-0.key")
    shutil.chown(key, "root", "root")  # systemd reads it
    text = CONFIG.read_text()
    CONFIG.write_text(f'''{text}
flash {{ path: "{state}/flash-0" key_file: "/run/credentials/{UNIT}.service/flash-0.key" }}
''')
    with drop_in(f"LoadCredential=flash-0.key:{key}"):
        node = status()
        assert not node["flash_off"] and node["flash"][0]["encrypted"], node
        ledger = pathlib.Path(FOLDER, "ledger")
        ledger.mkdir()
        (library,) = re.findall(r"^\S+/libhyperoffload\.so\.0$", call("dpkg", "-L", "libhyperoffload0").stdout, re.M)
        done = subprocess.run(
            [sys.executable, ROOT / "tools/soaking/client.py", "flash", POOL, "local", "1", "5", ledger], capture_output=True,
            text=True, timeout=PATIENCE_S, check=False,
            env={**os.environ, "HYPEROFFLOAD_LIBRARY": library, "PYTHONPATH": str(ROOT / "client/python"),
                 "PYTHONDONTWRITEBYTECODE": "1"})
        assert done.returncode == 0, (done.stdout, done.stderr)
        staged = json.loads(done.stdout.splitlines()[-1])
        assert staged["bytes_checked"] > 0, staged
    CONFIG.write_text(text)
    print(f"ok: flash on an encrypted file of its state directory, {staged['bytes_checked']} bytes staged and compared", flush=True)


def tells_the_journal():
    """After an upgrade, by the commands of deploy/docs/operate.md."""
    acts, session = (shlex.split(line) for block in blocks(ROOT / "deploy/docs/operate.md") for line in block.splitlines()
                     if line.startswith("journalctl "))
    said = call(*acts, "--no-pager").stdout
    entries = [dict(re.findall(r"^ +(HO_\w+)=(.*)$", one, re.M)) for one in re.split(r"^(?=\S)", said, flags=re.M)]
    assert ("ending for an upgrade", status()["name"]) in [(one.get("HO_EVENT"), one.get("HO_NODE")) for one in entries], said
    call(*session, "--no-pager")  # parsed: its node and session are of the page
    print("ok: the journal finds an administrator's act by its fields", flush=True)


def the_package_goes():
    """Installed again under the running unit, removed with it, and purged."""
    call("systemctl", "start", UNIT)
    pid = started()
    told = call("dpkg", "-i", *sorted(pathlib.Path(PACKAGES).glob("hyperoffload_*.deb"))).stdout
    assert started() == pid and "hyperoffload upgrade NODE" in told, told
    call("apt-get", "-qq", "remove", "-y", "hyperoffload")
    assert show("ActiveState") == "inactive" and CONFIG.exists(), show("ActiveState")
    call("dpkg", "--purge", "hyperoffload")
    assert not CONFIG.exists() and show("LoadState") == "not-found", show("LoadState")
    print("ok: the package was installed again beside its daemon, removed with it, and purged", flush=True)


def survives_restarts():
    assert any(keeps_memory_under_a_job(steps) for steps in STEPS), "no job went on"


CHECKS = (is_closed, reloads, survives_restarts, tells_the_journal, a_real_restart_frees, the_watchdog_ends_a_hung_daemon,
          without_a_reserve, respects_the_memory_limit, respects_the_limit_of_mappings, a_second_daemon,
          a_wrong_configuration_ends_it, takes_huge_pages, has_flash_in_its_sandbox)


def main():
    wanted = sys.argv[3:] or [check.__name__ for check in CHECKS]
    install()
    for check in CHECKS:
        if check.__name__ in wanted:
            check()
    call("systemctl", "stop", UNIT)
    assert (show("ActiveState"), show("NFileDescriptorStore")) == ("inactive", "0")
    print("ok: stopped, and nothing is kept", flush=True)
    the_package_goes()


main()
