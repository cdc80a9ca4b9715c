# Functions that tools/quickstart, tools/test and others share. Source it; do not run it. The caller
# sets `set -u` and defines `root` (the top of the checkout).
#
# Processes: everything that the caller starts inherits HO_RUN_ID, whose value is unique to this
# run. stop_everything() ends exactly the processes with this value, also those outside the process
# group (daemons, test servers). A nested run appends its own value, so the outer run still finds
# its processes.

run_id="ho-$$-$(date +%s%N)"
export HO_RUN_ID="${HO_RUN_ID:+$HO_RUN_ID:}$run_id"
child=
started_s=$(date +%s)

# elapsed: prints minutes and seconds since the script began.
elapsed() {
  local s=$(($(date +%s) - started_s))
  printf '%d:%02d' $((s / 60)) $((s % 60))
}

say() { printf '%s\n' "$*"; }
fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# make_build_dir DIR: makes the directory if it does not exist, and hides it from git, so that it
# may be inside the checkout.
make_build_dir() {
  [ ! -d "$1" ] || return 0
  mkdir -p "$1" && echo '*' >"$1/.gitignore" || fail "cannot make the build directory $1"
}

# packages GROUP...: prints the names listed in tools/packages.txt under these groups.
packages() {
  local group
  for group in "$@"; do
    sed -n "/^\[$group\]/,/^\[/p" "$root/tools/packages.txt" | sed 's/#.*//; /^\[/d; s/[[:space:]]*$//; /^$/d'
  done
}

# missing_packages GROUP...: prints those of these groups that are not installed, one per line.
missing_packages() {
  local name
  while read -r name; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' || echo "$name"
  done < <(packages "$@")
}

# ask_for_root GROUP...: if packages of these groups are missing and this is not root, makes sudo
# ask for its password now. Call it in the foreground: a background process group that reads the
# terminal would stop forever.
ask_for_root() {
  [ "$(id -u)" -ne 0 ] && command -v dpkg-query >/dev/null || return 0
  [ -n "$(missing_packages "$@")" ] || return 0
  command -v sudo >/dev/null || fail "missing packages: $(missing_packages "$@" | xargs); run as root, or install sudo"
  sudo -v || fail "packages are missing, and sudo does not allow their installation: $(missing_packages "$@" | xargs)"
}

# install_packages GROUP...: installs missing packages of these groups with apt-get, as root or
# through sudo (ask_for_root has asked before). Ignores SIGINT and SIGTERM, as do its processes: a
# package installation must not be interrupted, so an interrupted caller waits for it.
install_packages() {
  local missing=() as_root=()
  trap '' INT TERM HUP
  if ! command -v dpkg-query >/dev/null; then
    say "  this is not a Debian system: install the equivalents of tools/packages.txt"
    return 0
  fi
  mapfile -t missing < <(missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    say "  all packages are installed"
    return 0
  fi
  say "  installing: ${missing[*]}"
  [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  # If the machine has package lists, they usually suffice, and an update takes time.
  "${install[@]}" </dev/null >/dev/null 2>&1 && return 0
  say "  fetching the package lists first"
  "${apt[@]}" update </dev/null || fail "apt-get update failed"
  "${install[@]}" </dev/null >/dev/null || fail "apt-get could not install: ${missing[*]}"
}

# run COMMAND...: runs it in its own process group, whose id is in $child meanwhile. Bash runs a
# trap only when the foreground command ends, but waiting for a background one is interruptible. Job
# control also keeps SIGINT for the command, which a plain "&" would ignore.
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

# run_to_its_end COMMAND...: the same for a command that an interruption must not end: end_child
# waits for it.
finish_first=no
run_to_its_end() {
  local status
  finish_first=yes
  run "$@"
  status=$?
  finish_first=no
  return $status
}

# end_child: ends the command of `run` with its process group, or waits for it.
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

# run_pids: prints the pids of this run's living processes, one per line.
run_pids() {
  local environ pid
  for environ in $(grep -lzE "^HO_RUN_ID=(.*:)?$run_id(:|$)" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${environ#/proc/}
    pid=${pid%/environ}
    [ "$pid" -eq $$ ] || [ "$pid" -eq "$BASHPID" ] || echo "$pid"
  done
}

# stop_everything: ends every process of this run with SIGTERM, then SIGKILL after 10 s.
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
