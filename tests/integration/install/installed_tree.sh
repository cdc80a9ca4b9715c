#!/bin/sh
# Installs everything into a temporary folder, moves it, builds the C program against it with
# pkg-config and with CMake, and runs both against the installed daemon, which the installed command
# then describes. The same for tools/examples/minimal.
# usage: installed_tree.sh BUILD_DIR SOURCE_DIR CONFIG
set -eu
build=$1 source=$2 config=$3
work=$(mktemp -d)
daemon_pid=
clean() {
  [ -z "$daemon_pid" ] || kill "$daemon_pid" 2>/dev/null || true
  [ -z "$daemon_pid" ] || wait "$daemon_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap clean EXIT

cmake --install "$build" --prefix "$work/prefix" --config "$config"
pc=$(find "$work/prefix" -name hyperoffload.pc)
[ -n "$pc" ] || { echo "no hyperoffload.pc installed"; exit 1; }
# The tree must not depend on where it was built: it is moved before use.
mv "$work/prefix" "$work/moved"
pc_dir=$(dirname "$(find "$work/moved" -name hyperoffload.pc)")
lib_dir=$(dirname "$pc_dir")
program() {
  found=$(find "$work/moved" -type f -name "$1" -perm -u+x)
  [ -n "$found" ] || { echo "no $1 installed" >&2; exit 1; }
  echo "$found"
}
daemon=$(program hyperoffloadd)
cli=$(program hyperoffload)

export PKG_CONFIG_PATH="$pc_dir"
# Not one of our own folders: only what pkg-config says.
cc -std=c11 -Wall -Wextra -pedantic -Werror -o "$work/by_pkgconfig" \
  "$source/tests/integration/install/roundtrip.c" $(pkg-config --cflags --libs hyperoffload)

mkdir "$work/consumer"
cp "$source/tests/integration/install/roundtrip.c" "$work/consumer/"
cat >"$work/consumer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C)
find_package(HyperOffload 0.1 REQUIRED)
add_executable(by_cmake roundtrip.c)
target_link_libraries(by_cmake PRIVATE HyperOffload::hyperoffload)
END
cmake -G Ninja -S "$work/consumer" -B "$work/consumer/build" -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null
cmake --build "$work/consumer/build" >/dev/null

# The example to copy: a project of its own, with the installed package alone.
cp -r "$source/tools/examples/minimal" "$work/"
cmake -G Ninja -S "$work/minimal" -B "$work/minimal/build" -DCMAKE_PREFIX_PATH="$work/moved" >/dev/null
cmake --build "$work/minimal/build" >/dev/null

cat >"$work/daemon.textproto" <<END
node_name: "install"
ddr_bytes: 134217728
segment_bytes: 8388608
unix_socket: "$work/control.sock"
END
"$daemon" --config "$work/daemon.textproto" 2>"$work/daemon.err" &
daemon_pid=$!
tries=0
while [ ! -S "$work/control.sock" ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 200 ] || { echo "the daemon does not come up:"; cat "$work/daemon.err"; exit 1; }
  sleep 0.05
done

# Before LD_LIBRARY_PATH is set: installed programs find the library beside them.
"$cli" status --pool "unix:$work/control.sock" >"$work/status" || { cat "$work/status"; exit 1; }
grep -q install "$work/status" || { echo "status does not name the node:"; cat "$work/status"; exit 1; }

# What programs open at run time lies where the library and the programs look for it, and opens there.
for driver in ucx ofi; do
  python3 -c 'import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])' \
    "$lib_dir/hyperoffload/hyperoffload-$driver.so" "ho_${driver}_module"
done
# The library's code stays, as its handler of signals does.
python3 -c '
import _ctypes, sys
_ctypes.dlclose(_ctypes.dlopen(sys.argv[1], 0))
assert sys.argv[1] in open("/proc/self/maps").read(), "the library is unloaded"' "$(realpath "$lib_dir/libhyperoffload.so")"
"$cli" bench transport --transport tcp --op get --size 64KiB --inflight 4 --seconds 0.3 -o json >"$work/bench"
python3 -c '
import json, sys
beside = {one["name"]: one for one in json.load(open(sys.argv[1]))["beside"]}
assert beside["plain UCX loop (tcp)"]["bytes_per_s"] > 0, beside' "$work/bench"

export LD_LIBRARY_PATH="$lib_dir"
for program in "$work/by_pkgconfig" "$work/consumer/build/by_cmake"; do
  said=$("$program" "unix:$work/control.sock")
  [ "$said" = "one address space" ] || { echo "$program said: $said"; exit 1; }
  echo "$(basename "$program"): $said"
done
for program in minimal minimal_c; do
  said=$(cd "$work/minimal" && PATH="$(dirname "$cli"):$PATH" "build/$program" "unix:$work/control.sock")
  case $said in
    "state 48, device memory "[1-4]" of 9 MiB") echo "$program: $said" ;;
    *) echo "$program said: $said"; exit 1 ;;
  esac
done
if "$work/by_pkgconfig" "unix:$work/nobody.sock"; then
  echo "connecting to nobody must fail"
  exit 1
fi
