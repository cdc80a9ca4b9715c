"""Runs client/docs/blocks.md, as it stands, at a real daemon: the node's configuration, the C++, the Python, the commands,
and the connectors with the words that the page gives to each framework.

Usage: blocks_test.py SOURCE CLI DAEMON LIBRARY
"""
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import types

from one_node import PAGE_ADDRESS, Node
from pages import blocks, command, compile_cpp

SOURCE, CLI, DAEMON, LIBRARY = sys.argv[1:5]
PAGE = f"{SOURCE}/client/docs/blocks.md"
os.environ["HYPEROFFLOAD_LIBRARY"] = LIBRARY
sys.path.insert(0, f"{SOURCE}/client/python")
WAIT, DONE = "// when blocks.event_fd() is readable:", "/* done.ticket, done.index, done.status */"
PROGRAM = """
#include <poll.h>
#include <cstdio>
#include <cstring>
@INCLUDE@
int main(int, char** arguments) {
  hyperoffload::Pool owned({arguments[1], "page"});
  ho_pool* const pool = owned.get();
  static char memory[1 << 20];
  const std::size_t bytes = sizeof(memory);
  const char* const key = "0123456789abcdef0123456789abcdef";
  std::memset(memory, 'k', bytes);
  int outcomes = 0;
  const auto wait = [](int descriptor) {
    pollfd one{descriptor, POLLIN, 0};
    return poll(&one, 1, 60000) == 1;
  };
  const auto seen = [&](const ho_block_done& done) { outcomes += done.status == HO_OK && done.index == 0 ? 1 : 100; };
@CODE@
  if (outcomes != 1) return 1;
  const auto found = blocks.match({{key, 32, nullptr, 0, 0}, {"another key of 32 bytes, not put", 32, nullptr, 0, 0}});
  if (found.found != 1) return 2;
  std::memset(memory, 0, bytes);
  blocks.submit(HO_BLOCKS_GET, {{key, 32, memory, sizes[0], 0}});
  wait(blocks.event_fd());
  for (const ho_block_done& done : blocks.drain()) seen(done);
  if (outcomes != 2 || memory[0] != 'k' || memory[sizes[0] - 1] != 'k' || memory[sizes[0]] != 0) return 3;
}
"""


def run_cpp(node):
    (code,) = blocks(PAGE, "cpp")
    include, _, code = code.partition("\n")
    for words in (WAIT, DONE):
        assert code.count(words) == 1, words
    code = code.replace(WAIT, "if (!wait(blocks.event_fd())) return 4;").replace(DONE, "seen(done);")
    program = compile_cpp(node.folder, SOURCE, PROGRAM.replace("@INCLUDE@", include).replace("@CODE@", code), LIBRARY)
    done = subprocess.run([program, node.pool], timeout=120, check=False)
    assert done.returncode == 0, done.returncode
    (tenant,) = node.json(command(PAGE, "hyperoffload blocks ls"))["nodes"][0]["tenants"]
    (model,) = tenant["models"]
    assert (model["model"], model["blocks"], model["puts"], model["hits"]) == ("llama-3-8b", 1, 1, 1), model  # match and get are one hit
    clear = command(PAGE, "hyperoffload blocks clear")
    assert clear.endswith(" --tenant T"), clear
    assert node.json(clear.replace(" T", " " + shlex.quote(tenant["tenant"])))["blocks"] == 1


def run_python(node):
    (code,) = blocks(PAGE, "python")
    names = {"pool": node.pool}
    exec(compile(code, PAGE, "exec"), names)
    assert (names["stored"], names["found"], names["got"]) == ([True, True], 2, [True]), names


def made(words, *arguments, **more):
    return getattr(importlib.import_module(words["module_path"]), words["class_name"])(*arguments, **more)


def run_connectors(node):
    """Each framework passes the page's words as connectors_test has them from its code."""
    lmcache, vllm = (json.loads(text.replace(PAGE_ADDRESS, node.pool)) for text in blocks(PAGE, "json"))
    (sglang,) = blocks(PAGE, "sh")
    sglang = shlex.split(sglang.replace("\\\n", "").replace(PAGE_ADDRESS, node.pool))
    assert sglang[::2] == ["--hicache-storage-backend", "--hicache-storage-backend-extra-config"], sglang
    sglang = json.loads(sglang[3])

    native = made(lmcache, **lmcache["adapter_params"])
    native.submit_batch_exists(["m@0@chunk"])
    native.close()

    rest = {key: value for key, value in vllm.items() if key not in ("type", "module_path", "class_name")}
    view = memoryview(bytearray(1 << 20)).cast("B", (16, 1 << 16))
    tier = made(vllm, types.SimpleNamespace(), view, vllm["type"], **rest)
    assert tier.get_tier_type() == vllm["type"]
    tier.shutdown()

    config = types.SimpleNamespace(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, is_mla_model=False, model_name="m",
                                   is_page_first_layout=True, extra_config=sglang)
    storage = made(sglang, config, {})
    assert storage.batch_exists(["page-0"]) == 0
    storage.close()


def main():
    (configuration,) = blocks(PAGE, "textproto")
    # This machine has less.
    smaller, count = re.subn(r'(ddr|flash)_bytes: "\d+[GT]iB"', r'\1_bytes: "64MiB"', configuration)
    assert count == 2, configuration
    with tempfile.NamedTemporaryFile() as flash:
        flash.truncate(96 << 20)
        with Node(CLI, DAEMON, f'{smaller}\nflash {{ path: "{flash.name}" }}') as node:
            run_cpp(node)
            run_python(node)
            run_connectors(node)
    print("the page's configuration, code, commands and connectors are right")


main()
