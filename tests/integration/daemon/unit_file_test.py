"""The service unit passes systemd-analyze verify. Skips (77) where that program is missing."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

unit, daemon = sys.argv[1:3]
if shutil.which("systemd-analyze") is None:
    print("skipped: systemd-analyze is not installed")
    sys.exit(77)
text = pathlib.Path(unit).read_text()
for needed in ("Type=notify", "LimitMEMLOCK=infinity", "Restart=on-failure"):
    assert needed in text, needed
with tempfile.TemporaryDirectory() as folder:
    # The program need not be installed for the unit to be sound: the one just built stands in.
    copy = pathlib.Path(folder) / "hyperoffloadd.service"
    copy.write_text(text.replace("/usr/bin/hyperoffloadd", daemon))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "hyperoffloadd" in line]
    print(done.stderr)
    assert not complaints, complaints
    assert done.returncode == 0, done.returncode
