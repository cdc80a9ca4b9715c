# Shared by tools/quickstart and tools/test. Sourced, never run. The caller has `set -u` and defines
# `root` (the top of the checkout).
#
# Processes: everything the caller starts inherits HO_RUN_ID with a value that no other run has. stop_everything()
# ends exactly the processes that carry it, also those that have left the process group (daemons, test servers).
# A run inside a run appends its own value, so the outer one still finds what the inner one started.

run_id="ho-$$-$(date +%s%N)"
export HO_RUN_ID="${HO_RUN_ID:+$HO_RUN_ID:}$run_id"
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

# packages GROUP...: the names listed in tools/packages.txt under these groups.
packages() {
  local group
  for group in "$@"; do
    sed -n "/^\[$group\]/,/^\[/p" "$root/tools/packages.txt" | sed 's/#.*//; /^\[/d; s/[[:space:]]*$//; /^$/d'
  done
}

# install_packages GROUP...: installs what is missing of these groups, with apt-get, as root or through sudo.
install_packages() {
  local missing=() name as_root=()
  if ! command -v dpkg-query >/dev/null; then
    say "  this is no Debian system: tools/packages.txt names what must be there"
    return 0
  fi
  while read -r name; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' || missing+=("$name")
  done < <(packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    say "  all packages are there"
    return 0
  fi
  say "  installing: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing packages: ${missing[*]}; run as root, or install sudo"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
  local install=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
  # The package lists of a machine that has them are good enough, and an update needs time.
  "${install[@]}" </dev/null >/dev/null 2>&1 && return 0
  say "  fetching the package lists first"
  "${apt[@]}" update </dev/null || fail "apt-get update failed"
  "${install[@]}" </dev/null >/dev/null || fail "apt-get could not install: ${missing[*]}"
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
