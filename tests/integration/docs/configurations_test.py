"""Every configuration that a page of deploy/docs shows passes --check-config (pages: blocks.txt).

Usage: configurations_test.py CLI DAEMON
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from pages import blocks, pages_of

CLI, DAEMON = sys.argv[1:3]
# Users, groups and interfaces of the pages, with ones that every machine has.
KNOWN = (('"@trainers"', '"@root"'), ('"@ops"', '"@root"'), ('"alice"', '"root"'), ('"eth0"', '"lo"'))


def main():
    with tempfile.TemporaryDirectory(prefix="ho-docs-") as top:
        for words in (["init", f"{top}/ca"], ["issue", f"{top}/ca", "--role", "daemon", "--name", "n", "--address", "127.0.0.1"]):
            subprocess.run([CLI, "ca", *words], check=True, capture_output=True)
        folder = pathlib.Path(top, "ca", "n")
        for name in ("crt", "key"):
            (folder / f"client.{name}").write_bytes((folder / f"node.{name}").read_bytes())
            (folder / f"client.{name}").chmod(0o600)
        flash = pathlib.Path(top, "flash-0")
        flash.touch(0o600)
        os.truncate(flash, 96 << 20)
        key = pathlib.Path(top, "flash-0.key")
        key.touch(0o600)
        key.write_bytes(os.urandom(64))
        checked = 0
        for page in pages_of("textproto"):
            for block in blocks(page, "textproto"):
                text = f'node_name: "n" unix_socket: "{top}/sock"\n{block}'
                if "ddr_bytes" not in re.sub(r"\{[^}]*\}", "", block):
                    text += 'ddr_bytes: "64MiB" segment_bytes: "2MiB"\n'
                for name, real in KNOWN:
                    text = text.replace(name, real)
                text = re.sub(r'"/etc/hyperoffload/\w+/', f'"{folder}/', text)
                text = re.sub(r'"/(?:etc|var/lib)/hyperoffload/', f'"{top}/', text)
                config = pathlib.Path(top, "config")
                config.write_text(text)
                done = subprocess.run([DAEMON, "--config", config, "--check-config"], capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, (page.name, block, done.stderr)
                checked += 1
        assert checked >= 4, checked
        print(f"{checked} configurations of the pages are right")


main()
