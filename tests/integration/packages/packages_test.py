"""Makes the Debian packages of this build, and installs, upgrades, removes and purges them in a clean root. The commands
of deploy/docs/setup.md set a node up there, and those of the container file run as far as no network is needed.

The root is an overlay over this machine's, in a mount namespace of its own: what the packages write lies
in a temporary memory, and nothing of it stays. Skipped where the kernel does not allow that.

Usage: packages_test.py BUILD_DIR SOURCE_DIR VERSION [unittest arguments]
"""

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

BUILD, SOURCE, VERSION = sys.argv[1:4]
del sys.argv[1:4]
sys.path[:0] = [f"{SOURCE}/tests/integration/docs", f"{SOURCE}/tests/support"]
from pages import blocks  # noqa: E402
import needs  # noqa: E402
from patience import within  # noqa: E402

NAMES = ("hyperoffload", "libhyperoffload0", "libhyperoffload-dev", "python3-hyperoffload")
FIRST_JOB_S = 120  # from the begin of the installation, without the download
# The namespace: an overlay of / whose upper part is a tmpfs, with the packages at /packages.
ENTER = """
set -e
mount --make-rprivate /
ip link set lo up
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
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


def container_file():
    """Its instructions, a list of (name, arguments) a stage."""
    text = pathlib.Path(SOURCE, "deploy/container/Containerfile").read_text().replace("\\\n", "")
    stages = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, arguments = line.split(" ", 1)
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, arguments.strip()))
    return stages


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="ho-packages-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.folder.chmod(0o755)  # for users there
        cls.packages = made(cls.folder)
        for file in ("tests/integration/install/roundtrip.c", "tests/integration/packages/systemctl.py",
                     "tests/integration/packages/zsh_completion.py", "tools/soaking/service_manager.py",
                     "tools/packages.txt"):
            shutil.copy(f"{SOURCE}/{file}", cls.folder)
        shutil.copy(f"{BUILD}/tools/examples/gpt/hyperoffload-gpt", cls.folder)

    def inside(self, script):
        """Runs a script in a clean root; returns what it printed."""
        with tempfile.TemporaryDirectory(prefix="ho-root-") as root:
            done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", ENTER, "enter",
                                   root, self.folder, textwrap.dedent(script)], check=False,
                                  capture_output=True, text=True, timeout=400)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_names_and_contents(self):
        self.assertEqual([path.name.split("_")[0] for path in self.packages], sorted(NAMES))
        files = {path.name.split("_")[0]: subprocess.run(
            ["dpkg-deb", "-c", path], check=True, capture_output=True, text=True).stdout for path in self.packages}
        for package, name in (("hyperoffload", "./usr/bin/hyperoffloadd\n"), ("hyperoffload", "hyperoffloadd.service\n"),
                              ("hyperoffload", "./etc/hyperoffload/hyperoffloadd.textproto\n"),
                              ("hyperoffload", "./etc/needrestart/conf.d/hyperoffload.conf\n"),
                              ("libhyperoffload0", "/hyperoffload-ucx.so\n"), ("libhyperoffload0", "/hyperoffload-ofi.so\n"),
                              ("libhyperoffload-dev", "/hyperoffload.h\n"),
                              ("python3-hyperoffload", "./usr/lib/python3/dist-packages/hyperoffload/py.typed\n"),
                              ("python3-hyperoffload", "./usr/lib/python3/dist-packages/hyperoffload/__init__.py\n")):
            self.assertIn(name, files[package])
            self.assertEqual(sum(text.count(name) for text in files.values()), 1, name)
        for package, text in files.items():
            for name in ("copyright", "changelog.gz"):
                self.assertRegex(text, rf"(?m)^-rw-r--r-- root/root .* \./usr/share/doc/{package}/{name}$")

    def test_control_files(self):
        """What lintian looks at."""
        for package in self.packages:
            name = package.name.split("_")[0]
            with tempfile.TemporaryDirectory(prefix="ho-control-") as folder:
                subprocess.run(["dpkg-deb", "-R", package, folder], check=True)
                control = pathlib.Path(folder, "DEBIAN")
                self.assertNotIn("init-system-helpers", (control / "control").read_text())  # essential
                shlibs = control / "shlibs"
                self.assertEqual(shlibs.read_text().split("\n")[0] if shlibs.exists() else None,
                                 f"libhyperoffload 0 {name} (>= {VERSION})" if name == "libhyperoffload0" else None)
                documents = pathlib.Path(folder, "usr/share/doc", name)
                self.assertIn("/usr/share/common-licenses/Apache-2.0", (documents / "copyright").read_text())
                told = subprocess.run(["dpkg-parsechangelog", "-l", "-"], input=gzip.decompress((documents / "changelog.gz").read_bytes()),
                                      check=True, capture_output=True)
                self.assertEqual((f"Version: {VERSION}\n" in told.stdout.decode(), told.stderr), (True, b""))

    def test_programs_are_hardened(self):
        """The commands of a package's build say so; where this build is one, the daemon shows it."""
        with tempfile.TemporaryDirectory(prefix="ho-hardened-") as folder:
            subprocess.run(["cmake", "--preset", "package", "-B", folder], check=True, cwd=SOURCE, stdout=subprocess.DEVNULL)
            compiled = json.loads(pathlib.Path(folder, "compile_commands.json").read_text())
            (compile_line,) = (one["command"] for one in compiled if "/hyperoffloadd.dir/" in one["command"])
            for word in ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong"):
                self.assertIn(f" {word} ", compile_line)
            rules = pathlib.Path(folder, "build.ninja").read_text()
            for target in ("daemon/hyperoffloadd:", "tools/hyperoffload/hyperoffload:", r"client/libhyperoffload\.so\.\S+:"):
                (flags,) = re.findall(rf"^build {target}.*?^  LINK_FLAGS = (.*?)$", rules, re.M | re.S)
                self.assertIn("-Wl,-z,relro,-z,now", flags)
        if "CMAKE_BUILD_TYPE:STRING=Release\n" in pathlib.Path(BUILD, "CMakeCache.txt").read_text():
            seen = subprocess.run(["readelf", "--wide", "--file-header", "--dynamic", "--dyn-syms", f"{BUILD}/daemon/hyperoffloadd"],
                                  check=True, capture_output=True, text=True).stdout
            for word in ("BIND_NOW", "Position-Independent Executable", "__stack_chk_fail"):
                self.assertIn(word, seen)

    def test_install_use_upgrade_remove_and_purge(self):
        out = self.inside("""
            state() { cd /; find usr etc var -newer /mark -type f | grep -v '^var/lib/dpkg\\|^var/log\\|^var/cache\\|^etc/ld.so.cache' | sort; }
            touch /mark
            dpkg -i /packages/*.deb >/dev/null
            getent passwd hyperoffload >/dev/null || { echo "no user hyperoffload"; exit 1; }
            [ "$(stat -c '%U %a' /var/lib/hyperoffload)" = "hyperoffload 700" ]
            hyperoffload --version
            (cd / && env -i PYTHONDONTWRITEBYTECODE=1 python3 -c 'import hyperoffload; from hyperoffload._pool import library; library.library()')
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

    def test_the_set_up_page_and_an_upgrade_under_a_job(self):
        page = blocks(f"{SOURCE}/deploy/docs/setup.md")
        self.assertEqual([block.split()[0] for block in page], ["cmake", "usermod", "(umask", "(umask", "hyperoffload"])
        # The packages are made. The file system has no room for the page's flash file.
        commands = [block.replace("USER", "alice").replace("100G", "64M") for block in page]
        script = textwrap.dedent("""
            useradd --create-home alice
            mkdir -p /node/build/package && cd /node
            cp /packages/*.deb build/package
            cmake() { :; }
            ninja() { :; }
            cpack() { :; }
            editor() { sed -i 's/^ddr_bytes: .*/ddr_bytes: "128MiB"/; s/^segment_bytes: .*/segment_bytes: "2MiB"/' "$1"; }
            systemctl() { python3 /packages/systemctl.py "$@"; }
            runuser() {  # 1 of doctor: it has advice
              case $* in *doctor*) command runuser "$@" || [ $? = 1 ] ;; *) command runuser "$@" ;; esac
            }
            install() { [ -e node1 ] || cp -r pool-ca/node1 .; command install "$@"; }  # as on the node
            train() {  # STEPS [options]
              setpriv --reuid alice --regid alice --init-groups env LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu \
                /packages/hyperoffload-gpt train --layers 2 --dim 64 --heads 2 --seq 32 --batch 2 --device-memory 40% \
                --steps "$@" -o json
            }
            began=$(date +%s.%N)
            FIRST
            SECOND
            train 2 >/dev/null
            echo "the first job has ended $(python3 -c "import time; print(f'{time.time() - $began:.1f}')") s after the installation began"
            THIRD
            [ "$(stat -c '%U %a' /var/lib/hyperoffload/flash-0)" = "hyperoffload 600" ]
            KEY
            [ "$(stat -c '%U %a %s' /etc/hyperoffload/flash-0.key)" = "hyperoffload 600 64" ]
            FOURTH
            cat >tls.textproto <<CONFIG
            unix_socket: "/run/hyperoffload/other.sock" ddr_bytes: "64MiB" segment_bytes: "2MiB" tcp_listen: "10.0.0.1:7700"
            tls { certificate: "/etc/hyperoffload/tls/node.crt" key: "/etc/hyperoffload/tls/node.key"
                  authority: "/etc/hyperoffload/tls/ca.crt" }
            CONFIG
            ip address add 10.0.0.1/32 dev lo
            setpriv --reuid hyperoffload --regid hyperoffload --clear-groups hyperoffloadd --config tls.textproto --check-config

            # The package is upgraded under a job of LENGTH s or more, and then the daemon: some 70 steps a second fit its link.
            steps=$((LENGTH * 70))
            train $steps >quiet 2>/dev/null
            train $steps --link 100MiB/s >disturbed 2>words &
            job=$!
            runs() { kill -0 $job 2>/dev/null || { wait $job; echo FASTER; exit 0; }; }
            until grep -q '^step 10:' words; do runs; sleep 0.05; done
            daemon() { hyperoffload status -o json >/dev/null; pgrep -x hyperoffloadd; }
            before=$(daemon)
            cd /packages/new
            UPGRADE
            cd /node
            [ "$(daemon)" = "$before" ]
            readlink /proc/$before/exe | grep -q deleted
            hyperoffload upgrade $(hostname)
            [ "$(daemon)" != "$before" ]
            readlink /proc/$(daemon)/exe | grep -qv deleted
            runs  # it was there all the time
            wait $job
            python3 -c "
            import json
            quiet, disturbed = (json.load(open(name))['losses'] for name in ('quiet', 'disturbed'))
            assert quiet == disturbed, (quiet[-3:], disturbed[-3:])
            print(len(disturbed), 'steps to the same losses')"
            grep -c 'session is resumed' words
            systemctl stop hyperoffloadd
            """)
        (upgrade,) = blocks(f"{SOURCE}/deploy/docs/upgrade.md")
        commands.append(upgrade.splitlines()[0])
        self.assertTrue(commands[-1].startswith("apt install"))
        for place, block in zip(("FIRST", "SECOND", "THIRD", "KEY", "FOURTH", "UPGRADE"), commands):
            script = script.replace(place, block)
        # On a busy machine the job may have ended before the upgrade.
        for seconds in (20, 60, 100):
            out = self.inside(script.replace("LENGTH", str(seconds)))
            if not out.endswith("FASTER\n"):
                break
        (took_s,) = re.findall(r"^the first job has ended (\S+) s", out, re.M)
        print(f"{took_s} s from the begin of the installation to the end of the first job")
        self.assertLess(float(took_s), within(FIRST_JOB_S))
        self.assertRegex(out, r"1 of 1 sessions and \d+ of \d+ segments taken over")
        self.assertRegex(out, r"\d+ steps to the same losses\n1\n")

    def test_the_container_file(self):
        """What its build stage installs, and all that the image is made of, without a network. container.py builds it."""
        build, image = container_file()
        for name, arguments in build:
            if name == "COPY":
                self.assertTrue(pathlib.Path(SOURCE, arguments.split()[0]).exists(), arguments)
        listed = pathlib.Path(SOURCE, "tools/packages.txt").read_text().partition("[test]\n")[0]
        groups = re.findall(r"^\[(.*)\]$", listed, re.M)
        self.assertEqual(groups, ["build", "example", "package"])
        lines = (line.split("#")[0].strip() for line in listed.partition("[build]\n")[2].splitlines())
        wanted = [line for line in lines if line and not line.startswith("[")]
        installs = next(arguments for name, arguments in build if name == "RUN")
        makes = next(arguments for name, arguments in build if name == "RUN" and "cpack" in arguments)
        self.assertIn("cmake --preset package && ninja -C build/package && cd build/package && cpack -G DEB", makes)
        last = dict(image)
        mount, run = re.match(r"(--mount=\S+) +(.*)", last["RUN"]).groups()
        self.assertIn("source=/source/build/package,target=/packages", mount)
        self.assertIn(("WORKDIR", "/source"), build)
        words = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
        unit = pathlib.Path(SOURCE, "deploy/systemd/hyperoffloadd.service").read_text()
        self.assertIn(f"ExecStart={' '.join(words)}\n", unit)
        about = pathlib.Path(SOURCE, "deploy/container/Containerfile").read_text()
        for folder in ("/etc/hyperoffload", "/run/" + re.search("RuntimeDirectory=(.*)", unit)[1],
                       "/var/lib/" + re.search("StateDirectory=(.*)", unit)[1]):
            self.assertIn(f"-v {folder}:{folder}", about)
        out = self.inside(f"""
            apt-get() {{  # without a network
              case $1 in
                update) ;;
                install) if [[ " $* " == *.deb* ]]; then command apt-get "$@"; else command apt-get --simulate "$@" >/dev/null; fi ;;
              esac
            }}
            export -f apt-get
            mkdir -p /source/tools && cp /packages/packages.txt /source/tools && cd /source
            xargs() {{ tee /run/asked | command xargs bash -c '"$@"' each "$@"; }}
            {installs}
            echo asked: $(cat /run/asked)
            {run} >/dev/null 2>&1
            [ ! -e /var/lib/apt/lists/lock ]

            # As the image's user, with the folders that it is given.
            mkdir -p /run/hyperoffload && chown {last["USER"]} /run/hyperoffload
            setpriv --reuid {last["USER"]} --regid {last["USER"]} --clear-groups {' '.join(words)} --check-config
            setpriv --reuid {last["USER"]} --regid {last["USER"]} --clear-groups {' '.join(words)} 2>/run/log &
            for i in $(seq 300); do hyperoffload status >/dev/null 2>&1 && break; sleep 0.1; done
            hyperoffload status -o json >/dev/null
            kill $!
            wait $!
            """)
        self.assertIn(f"asked: {' '.join(wanted)}\n", out)

    def test_pages_and_completion(self):
        out = self.inside("""
            dpkg -i /packages/*.deb >/dev/null
            for page in /usr/share/man/man?/hyperoffload*.gz; do
              name=$(basename "${page%.*.gz}")
              zgrep -q "^\\.TH ${name^^} " "$page" || echo "$page: another name"
              lexgrog "$page" | grep -q "\\"$name - [A-Z]" || echo "$page: whatis cannot read it"
              man --warnings --encoding UTF-8 --local-file --ditroff "$page" 2>&1 >/dev/null
            done
            zgrep -q 'the pool cannot be reached' /usr/share/man/man1/hyperoffload-status.1.gz
            for command in $(hyperoffload --help | sed -n '/^Commands:/,$ s/^  \\([a-z][a-z-]*\\) .*/\\1/p'); do
              [ -e /usr/share/man/man1/hyperoffload-$command.1.gz ] || echo "no page of $command"
            done
            . /usr/share/bash-completion/completions/hyperoffload
            completed() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hyperoffload || true; echo "${COMPREPLY[*]}"; }
            completed hyperoffload st
            completed hyperoffload bench ma
            completed hyperoffload analyze --max-
            completed hyperoffload status -o j
            completed hyperoffload events --kind s
            completed hyperoffload ca issue --role ''
            completed hyperoffload verify ''
            for set_up in : 'unfunction _hyperoffload; eval "$(hyperoffload completion zsh)"'; do
              python3 /packages/zsh_completion.py "$set_up" 'hyperoffload stat' 'hyperoffload bench ma' \
                'hyperoffload analyze --max-' 'hyperoffload status -o j' 'hyperoffload flash ' \
                'hyperoffload events --kind ref' 'hyperoffload ca issue --role r'
            done
            """)
        zsh = """hyperoffload status\nhyperoffload bench matrix\nhyperoffload analyze --max-overhead
hyperoffload status -o json\nhyperoffload flash free ls
hyperoffload events --kind refusal\nhyperoffload ca issue --role reader\n"""
        self.assertEqual(out, "status\nmatrix\n--max-overhead\njson\nstate session\ndaemon job admin reader\n\n" + 2 * zsh)


if __name__ == "__main__":
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], check=False,
                      stderr=subprocess.DEVNULL).returncode != 0 or shutil.which("dpkg-deb") is None:
        needs.skip("needs dpkg and the right to mount")
    os.umask(0o022)
    unittest.main()
