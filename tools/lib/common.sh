# Shared by tools/quickstart and tools/test. Sourced, never run. The caller has `set -u` and defines
# `root` (the top of the checkout).
#
# Processes: everything the caller starts inherits HO_RUN_ID with a value that no other run has. stop_everything()
# ends exactly the processes that carry it, also those that have left the process group (daemons, test servers).
# A run inside a run appends its own value, so the outer one still finds what the inner one started.

run_id="ho-$$-$(date +%s%N)"
export HO_RUN_ID="${HO_RUN_ID:+$HO_RUN_ID:}$run_id"
child=
started_s=$(date +%s)

# elapsed: minutes and seconds since the script began.
elapsed() {
  local s=$(($(date +%s) - started_s))
  printf '%d:%02d' $((s / 60)) $((s % 60))
}

say() { printf '%s\n' "$*"; }
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# make_build_dir DIR: where there is none yet, makes one that git does not see, so that it may lie inside the checkout.
make_build_dir() {
  [ ! -d "$1" ] || return 0
  mkdir -p "$1" && echo '*' >"$1/.gitignore" || fail "cannot make the build directory $1"
}

# packages GROUP...: the names listed in tools/packages.txt under these groups.
packages() {
  local group
  for group in "$@"; do
    sed -n "/^\[$group\]/,/^\[/p" "$root/tools/packages.txt" | sed 's/#.*//; /^\[/d; s/[[:space:]]*$//; /^$/d'
  done
}

# missing_packages GROUP...: those of these groups that are not installed, one a line.
missing_packages() {
  local name
  while read -r name; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' || echo "$name"
  done < <(packages "$@")
}

# ask_for_root GROUP...: where packages of these groups are missing and this is not root, has sudo ask for its password
# now. To be called in the foreground: a background process group that reads the terminal is stopped, for ever.
ask_for_root() {
  [ "$(id -u)" -ne 0 ] && command -v dpkg-query >/dev/null || return 0
  [ -n "$(missing_packages "$@")" ] || return 0
  command -v sudo >/dev/null || fail "missing packages: $(missing_packages "$@" | xargs); run as root, or install sudo"
  sudo -v || fail "packages are missing, and sudo does not let us install them: $(missing_packages "$@" | xargs)"
}

# install_packages GROUP...: installs what is missing of these groups, with apt-get, as root or through sudo, which
# ask_for_root has asked before. Ignores SIGINT and SIGTERM, as does all that it starts: a package system must not be
# left half way, so an interrupted caller waits for it.
install_packages() {
  local missing=() as_root=()
  trap '' INT TERM HUP
  if ! command -v dpkg-query >/dev/null; then
    say "  this is no Debian system: tools/packages.txt names what must be there"
    return 0
  fi
  mapfile -t missing < <(missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    say "  all packages are there"
    return 0
  fi
  say "  installing: ${missing[*]}"
  [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  # The package lists of a machine that has them are good enough, and an update needs time.
  "${install[@]}" </dev/null >/dev/null 2>&1 && return 0
  say "  fetching the package lists first"
  "${apt[@]}" update </dev/null || fail "apt-get update failed"
  "${install[@]}" </dev/null >/dev/null || fail "apt-get could not install: ${missing[*]}"
}

# run COMMAND...: runs it in a process group of its own, named by $child meanwhile. Bash acts on a trap only when the
# foreground command has ended; waiting for a background one is interruptible. Job control also leaves the command its
# SIGINT, which "&" alone would ignore.
run() {
  local status
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  wait "$child"
  status=$?
  child=
  return $status
}

# run_to_its_end COMMAND...: the same for what an interruption must not end: end_child waits for it.
finish_first=no
run_to_its_end() {
  local status
  finish_first=yes
  run "$@"
  status=$?
  finish_first=no
  return $status
}

# end_child: ends what `run` has under way, with its whole process group; or waits for it.
end_child() {
  [ -n "$child" ] || return 0
  if [ $finish_first = yes ]; then
    say "waiting for the package system to finish"
    wait "$child"
  else
    kill -TERM -- "-$child" 2>/dev/null
  fi
  child=
}

# run_pids: the living processes of this run, one pid a line.
run_pids() {
  local environ pid
  for environ in $(grep -lzE "^HO_RUN_ID=(.*:)?$run_id(:|$)" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${environ#/proc/}
    pid=${pid%/environ}
    [ "$pid" -eq $$ ] || [ "$pid" -eq "$BASHPID" ] || echo "$pid"
  done
}

# stop_everything: ends every process of this run: SIGTERM, then SIGKILL after 10 s.
stop_everything() {
  local pids pid tries=0
  pids=$(run_pids)
  [ -n "$pids" ] || return 0
  for pid in $pids; do kill -TERM "$pid" 2>/dev/null; done
  while [ -n "$(run_pids)" ] && [ $tries -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1))
  done
  for pid in $(run_pids); do
    kill -CONT "$pid" 2>/dev/null
    kill -KILL "$pid" 2>/dev/null
  done
}
