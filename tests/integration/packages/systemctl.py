#!/usr/bin/python3
"""Stands in for systemctl where no systemd runs: starts a service as its unit says, under tools/soaking/service_manager.py.
What it does not know of a unit (the sandbox), tools/lab/suite systemd shows with the real one.

Usage: systemctl.py enable --now UNIT | systemctl.py stop UNIT
"""
import os
import pathlib
import shutil
import signal
import sys

from service_manager import ServiceManager

UNITS, RUN = pathlib.Path("/usr/lib/systemd/system"), pathlib.Path("/run")


class Service(ServiceManager):
    def __init__(self, unit, folder):
        text = (UNITS / f"{unit}.service").read_text().splitlines()
        has = dict(line.split("=", 1) for line in text if "=" in line and not line.startswith("#"))
        for kind, parent in (("RuntimeDirectory", RUN), ("StateDirectory", pathlib.Path("/var/lib"))):
            made = parent / has[kind]
            made.mkdir(exist_ok=True)
            made.chmod(int(has[f"{kind}Mode"], 8))
            shutil.chown(made, has["User"], has["Group"])
        os.environ.update(one.split("=", 1) for one in has["Environment"].split())
        user = ["setpriv", "--reuid", has["User"], "--regid", has["Group"], "--clear-groups"]
        super().__init__(folder, [*user, *has["ExecStart"].split()], descriptors_max=int(has["FileDescriptorStoreMax"]),
                         restart_after=float(has["RestartSec"].removesuffix("ms")) / 1000)
        os.chmod(self.notify_path, 0o777)


def serve(unit, folder, tell):
    """Until SIGTERM. One byte says that the service is ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with Service(unit, folder) as service:
        service.start()
        (folder / "manager.pid").write_text(str(os.getpid()))
        os.write(tell, b"y")
        os.close(tell)
        signal.sigwait([signal.SIGTERM])
        sys.exit(service.stop())


def main():
    act, unit = sys.argv[1], sys.argv[-1]
    folder = RUN / f"{unit}.manager"
    if act == "stop":
        os.kill(int((folder / "manager.pid").read_text()), signal.SIGTERM)
        return 0
    assert sys.argv[1:3] == ["enable", "--now"], sys.argv
    folder.mkdir()
    hear, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.close(hear)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        serve(unit, folder, tell)
    os.close(tell)
    if os.read(hear, 1) == b"y":
        return 0
    print((folder / "daemon.err").read_text(), file=sys.stderr)
    return 1


sys.exit(main())
