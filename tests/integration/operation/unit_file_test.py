"""The service unit passes systemd-analyze verify and security, can write the documented flash path, and sysusers.d
makes the user it runs as."""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import needs  # noqa: E402

unit, daemon, users, example, template, memory = sys.argv[1:7]
for program in ("systemd-analyze", "systemd-sysusers"):
    needs.program(program, "systemd")
text = pathlib.Path(unit).read_text()
assert "DynamicUser" not in text, "nobody can join the group of a dynamic user"
user = next(line[5:] for line in text.splitlines() if line.startswith("User="))
with tempfile.TemporaryDirectory() as root:
    # Below a root of its own: this machine's users stay as they are.
    (pathlib.Path(root) / "etc").mkdir()
    done = subprocess.run(["systemd-sysusers", f"--root={root}", "-"], input=pathlib.Path(users).read_text(),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for file in ("passwd", "group"):
        names = [line.split(":")[0] for line in (pathlib.Path(root) / "etc" / file).read_text().splitlines()]
        assert user in names, (file, names)
for needed in ("Type=notify", "LimitMEMLOCK=infinity", "Restart=on-failure"):
    assert needed in text, needed
settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
# ProtectSystem=strict makes everything else read-only.
flash = re.search(r'path: "(/[^"]*)"', pathlib.Path(example).read_text())[1]
assert pathlib.PurePath(flash).parent == pathlib.PurePath("/var/lib") / settings["StateDirectory"], flash
# What a wrong configuration exits with does not start the unit again and again.
assert settings["RestartPreventExitStatus"] == "2", settings
# The daemon knows how much the store takes; its socket's file outlives a restart; no limit of restarts ends the unit.
assert settings["Environment"] == "FDSTORE=" + settings["FileDescriptorStoreMax"], settings
assert settings["RuntimeDirectoryPreserve"] == "restart", settings
# The limit of starts is for a daemon that dies at each start. Jobs wait for 5 s: it must not be reached before.
starts = int(settings["StartLimitBurst"])
assert settings["RestartSec"] == "100ms" and starts * 0.1 > 5 and starts * 0.1 < int(settings["StartLimitIntervalSec"])
assert 10 <= int(settings["WatchdogSec"]) <= 60, settings
assert "shared" not in settings["CoredumpFilter"], "a core dump would have the memory of jobs"
assert settings["RestartForceExitStatus"] == settings["SuccessExitStatus"] == "75", settings
# The template differs where two daemons on one node must.
lines = [(one, other) for one, other in zip(text.splitlines(), pathlib.Path(template).read_text().splitlines(), strict=True)
         if one != other]
for one, other in lines:
    assert "%i" in other and one.split("=")[0] == other.split("=")[0], (one, other)
assert [other for _, other in lines if "Directory=" in other] == [
    "RuntimeDirectory=hyperoffload-%i", "StateDirectory=hyperoffload-%i"], lines
assert any("--config /etc/hyperoffload/%i.textproto" in other for _, other in lines), lines
with tempfile.TemporaryDirectory() as folder:
    # The program need not be installed for the unit to be sound: the one just built stands in.
    copy = pathlib.Path(folder) / "hyperoffloadd.service"
    copy.write_text(text.replace("/usr/bin/hyperoffloadd", daemon))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "hyperoffloadd" in line]
    print(done.stderr)
    assert not complaints, complaints
    assert done.returncode == 0, done.returncode
    # The example of a drop-in for memory is sound too, as it is and with each line in use.
    drop_in = pathlib.Path(folder) / "hyperoffloadd.service.d" / "memory.conf"
    drop_in.parent.mkdir()
    for text in (pathlib.Path(memory).read_text(), re.sub(r"^#(\w+=)", r"\1", pathlib.Path(memory).read_text(), flags=re.M)):
        drop_in.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
        complaints = [line for line in done.stderr.splitlines() if "hyperoffloadd" in line or "memory.conf" in line]
        assert done.returncode == 0 and not complaints, done.stderr
    drop_in.unlink()
    # The exposure times ten: 0 is closed, 100 is open.
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(copy)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
