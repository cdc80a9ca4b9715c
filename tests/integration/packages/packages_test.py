"""Makes the Debian packages of this build, and installs, upgrades, removes and purges them in a clean root.

The root is an overlay over this machine's, in a mount namespace of its own: what the packages write lies
in a temporary memory, and nothing of it stays. Skipped where the kernel does not allow that.

Usage: packages_test.py BUILD_DIR SOURCE_DIR VERSION [unittest arguments]
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

BUILD, SOURCE, VERSION = sys.argv[1:4]
del sys.argv[1:4]
NAMES = ("hyperoffload", "libhyperoffload0", "libhyperoffload-dev", "python3-hyperoffload")
# The namespace: an overlay of / whose upper part is a tmpfs, with the packages at /packages.
ENTER = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/run"
mkdir "$1/root/packages" "$1/root/mark"
mount --bind "$2" "$1/root/packages"
exec chroot "$1/root" bash -euo pipefail -c "$3"
"""


def made(folder):
    """Makes the packages, and the same once more with a higher version."""
    subprocess.run(["cpack", "-G", "DEB", "--config", f"{BUILD}/CPackConfig.cmake", "-B", folder], check=True,
                   cwd=BUILD, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder / "_CPack_Packages")
    old = sorted(folder.glob("*.deb"))
    (folder / "new").mkdir()
    for package in old:
        tree = folder / "tree"
        subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
        control = tree / "DEBIAN" / "control"
        control.write_text(control.read_text().replace(VERSION, VERSION + "+1"))
        subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", tree, folder / "new"], check=True,
                       stdout=subprocess.DEVNULL)
        shutil.rmtree(tree)
    return old


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ho-packages-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.packages = made(cls.folder)
        shutil.copy(f"{SOURCE}/tests/integration/install/roundtrip.c", cls.folder)

    def inside(self, script):
        """Runs a script in a clean root; returns what it printed."""
        with tempfile.TemporaryDirectory(prefix="ho-root-") as root:
            done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter",
                                   root, self.folder, textwrap.dedent(script)], check=False,
                                  capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_names_and_contents(self):
        self.assertEqual([path.name.split("_")[0] for path in self.packages], sorted(NAMES))
        files = {path.name.split("_")[0]: subprocess.run(
            ["dpkg-deb", "-c", path], check=True, capture_output=True, text=True).stdout for path in self.packages}
        for package, name in (("hyperoffload", "./usr/bin/hyperoffloadd\n"), ("hyperoffload", "hyperoffloadd.service\n"),
                              ("hyperoffload", "./etc/hyperoffload/hyperoffloadd.textproto\n"),
                              ("hyperoffload", "./etc/needrestart/conf.d/hyperoffload.conf\n"),
                              ("libhyperoffload0", "/hyperoffload-ucx.so\n"), ("libhyperoffload-dev", "/hyperoffload.h\n"),
                              ("python3-hyperoffload", "./usr/lib/python3/dist-packages/hyperoffload/__init__.py\n")):
            self.assertIn(name, files[package])
            self.assertEqual(sum(text.count(name) for text in files.values()), 1, name)

    def test_install_use_upgrade_remove_and_purge(self):
        out = self.inside("""
            state() { cd /; find usr etc var -newer /mark -type f | grep -v '^var/lib/dpkg\\|^var/log\\|^var/cache\\|^etc/ld.so.cache' | sort; }
            touch /mark
            dpkg -i /packages/*.deb >/dev/null
            getent passwd hyperoffload >/dev/null || { echo "no user hyperoffload"; exit 1; }
            [ "$(stat -c '%U %a' /var/lib/hyperoffload)" = "hyperoffload 700" ]
            hyperoffload --version
            hyperoffloadd --config /etc/hyperoffload/hyperoffloadd.textproto --check-config >/dev/null
            systemd-analyze verify hyperoffloadd.service
            # As needrestart reads it: 0 is "not this one".
            for unit in hyperoffloadd.service hyperoffloadd@b.service other.service; do
              perl -e 'do "/etc/needrestart/conf.d/hyperoffload.conf"; die $@ if $@;
                       print "restart: ", (map { $nrconf{override_rc}{$_} } grep { $ARGV[0] =~ /$_/ } keys %{$nrconf{override_rc}}), "\\n"' $unit
            done

            # The daemon as its own user, and a job against it.
            install -d -o hyperoffload -g hyperoffload /run/hyperoffload
            sed -i 's/^ddr_bytes: .*/ddr_bytes: 134217728/; s/^segment_bytes: .*/segment_bytes: 8388608/' /etc/hyperoffload/hyperoffloadd.textproto
            setpriv --reuid hyperoffload --regid hyperoffload --clear-groups hyperoffloadd --config /etc/hyperoffload/hyperoffloadd.textproto 2>/run/log &
            daemon=$!
            for i in $(seq 300); do hyperoffload status >/dev/null 2>&1 && break; sleep 0.1; done
            cc -o /run/job /packages/roundtrip.c $(pkg-config --cflags --libs hyperoffload)
            /run/job unix:/run/hyperoffload/control.sock

            # The upgrade leaves the daemon and the edited configuration alone.
            dpkg -i /packages/new/*.deb >/dev/null
            dpkg-query -W -f '${Version}\\n' hyperoffload
            kill -0 $daemon
            /run/job unix:/run/hyperoffload/control.sock
            grep -q '^ddr_bytes: 134217728' /etc/hyperoffload/hyperoffloadd.textproto
            kill $daemon
            wait $daemon

            dpkg -r python3-hyperoffload libhyperoffload-dev hyperoffload libhyperoffload0 >/dev/null
            [ -e /etc/hyperoffload/hyperoffloadd.textproto ] && ! command -v hyperoffload
            dpkg -P python3-hyperoffload libhyperoffload-dev hyperoffload libhyperoffload0 >/dev/null
            echo left: $(state | grep -i hyperoffload)
            [ ! -e /etc/hyperoffload ] && [ ! -e /var/lib/hyperoffload ]
            """)
        self.assertIn(f"hyperoffload {VERSION}\n", out)
        self.assertIn(f"{VERSION}+1\n", out)
        self.assertEqual([line for line in out.splitlines() if "restart:" in line], ["restart: 0", "restart: 0", "restart: "])
        self.assertTrue(out.endswith("left:\n"), out)

    def test_pages_and_completion(self):
        out = self.inside("""
            dpkg -i /packages/*.deb >/dev/null
            for page in hyperoffload.1 hyperoffload-status.1 hyperoffload-bench-flash.1 hyperoffloadd.8; do
              zcat /usr/share/man/man${page##*.}/$page.gz >/run/$page
              ! grep -n '\\.TH' /run/$page | grep -v '^[0-9]*:\\.TH HYPEROFFLOAD'
            done
            grep -q 'the pool cannot be reached' /run/hyperoffload-status.1
            for command in $(hyperoffload --help | sed -n '/^Commands:/,$ s/^  \\([a-z][a-z-]*\\) .*/\\1/p'); do
              [ -e /usr/share/man/man1/hyperoffload-$command.1.gz ] || echo "no page of $command"
            done
            . /usr/share/bash-completion/completions/hyperoffload
            completed() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hyperoffload || true; echo "${COMPREPLY[*]}"; }
            completed hyperoffload st
            completed hyperoffload bench ma
            completed hyperoffload analyze --max-
            completed hyperoffload status -o j
            completed hyperoffload verify ''
            """)
        self.assertEqual(out, "status\nmatrix\n--max-overhead\njson\n\n")


if __name__ == "__main__":
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False,
                      stderr=subprocess.DEVNULL).returncode != 0 or shutil.which("dpkg-deb") is None:
        print("skipped: needs dpkg and the right to mount")
        sys.exit(77)
    os.umask(0o022)
    unittest.main()
