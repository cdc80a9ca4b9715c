"""Runs the C++ of client/docs/objects.md, as it stands, at a real daemon: the eight ranks that publish, and the two that read
with another layout. The bytes are compared, and the page's commands show the object and save it meanwhile.

Usage: objects_test.py SOURCE CLI DAEMON LIBRARY
"""
import array
import subprocess
import sys

from one_node import Node
from pages import blocks, command, compile_cpp

SOURCE, CLI, DAEMON, LIBRARY = sys.argv[1:5]
PAGE = f"{SOURCE}/client/docs/objects.md"
WRITERS, READERS, STEP = 8, 2, 7
# The tiles are those of the page's layouts: rows by tp of a mesh 4x2, columns by tp of a mesh 2.
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>
@INCLUDE@
std::uint16_t value(std::size_t row, std::size_t column) { return static_cast<std::uint16_t>(row * 31 + column); }

void publish_part(ho_pool* pool, std::uint32_t rank, std::uint64_t run, std::uint64_t step) {
  std::vector<std::uint16_t> tile;
  for (std::size_t row = rank % 2 * 2048; row < (rank % 2 + 1) * 2048; ++row)
    for (std::size_t column = 0; column < 1024; ++column) tile.push_back(value(row, column));
  void* const memory = tile.data();
  const std::uint64_t bytes = tile.size() * 2;
  @PUBLISH@
  std::cout << "published" << std::endl;
  std::getchar();
}

int read_part(ho_pool* pool, std::uint32_t rank, std::uint64_t last) {
  std::vector<std::uint16_t> tile(4096 * 512);
  void* const memory = tile.data();
  const std::uint64_t bytes = tile.size() * 2;
  @READ@
  std::size_t wrong = version == last + 1 ? 0 : 1;
  for (std::size_t row = 0; row < 4096; ++row)
    for (std::size_t column = 0; column < 512; ++column)
      wrong += tile[row * 512 + column] != value(row, rank * 512 + column);
  return wrong == 0 ? 0 : 1;
}

int main(int, char** arguments) {
  hyperoffload::Pool pool({arguments[1], "page"});
  const auto rank = static_cast<std::uint32_t>(std::atoi(arguments[3]));
  const auto step = static_cast<std::uint64_t>(std::atoi(arguments[4]));
  if (arguments[2] == std::string("read")) return read_part(pool.get(), rank, step - 1);
  publish_part(pool.get(), rank, 4711, step);
}
"""


def save_by_page(node):
    """The page's commands, and the rows that the second rank of theirs has."""
    text, anew = blocks(PAGE)
    print(node.run(text))
    assert [one.name for one in (node.folder / "policy-whole").iterdir()] == ["rank-0.safetensors"]
    assert len(list((node.folder / "policy-2x4").iterdir())) == 8
    anew += """hyperoffload objects save policy-2x4 --timeout 60s --mesh 2x4:dp,tp --layout 'tp;-' --out anew
        kill $!
        wait $! || test $? = 130"""
    print(node.run(anew))
    wanted = [(row * 31 + column) % 65536 for row in range(1024, 2048) for column in range(1024)]
    for folder in ("policy-2x4", "anew"):
        data = (node.folder / folder / "rank-1.safetensors").read_bytes()[-1024 * 1024 * 2:]
        assert data == array.array("H", wanted).tobytes(), folder


def main():
    publish, read = blocks(PAGE, "cpp")
    include, _, publish = publish.partition("\n")
    assert include.startswith("#include"), include
    code = PROGRAM.replace("@INCLUDE@", include).replace("@PUBLISH@", publish).replace("@READ@", read)
    with Node(CLI, DAEMON) as node:
        program = compile_cpp(node.folder, SOURCE, code, LIBRARY)
        assert node.json(command(PAGE, "hyperoffload objects ls"))["nodes"][0]["objects"] == []
        writers = [subprocess.Popen([program, node.pool, "publish", str(rank), str(STEP)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True) for rank in range(WRITERS)]
        try:
            for writer in writers:
                assert writer.stdout.readline() == "published\n"
            for rank in range(READERS):
                done = subprocess.run([program, node.pool, "read", str(rank), str(STEP)], timeout=60, check=False)
                assert done.returncode == 0, rank
            print(node.run(command(PAGE, "hyperoffload objects ls")))
            shown = node.json(command(PAGE, "hyperoffload objects ls"))["nodes"][0]["objects"]
            assert shown and {one["object"].split("/")[-1] for one in shown} == {"policy"}, shown
            save_by_page(node)
        finally:
            for writer in writers:
                writer.stdin.close()
                assert writer.wait(60) == 0
    print("the page's ranks read what the page's ranks published")


main()
