#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/nearest.hpp"
#include "common/text/json.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct Help {
  Errc code;
  std::string_view meaning;
  std::string_view advice;
};

constexpr std::array<Help, 14> kHelp{{
    {Errc::kInvalidArgument,
     "An argument, an option or a file's content is wrong. Nothing was started.",
     "The message names the argument and what is expected. Files are checked by `hyperoffload "
     "verify` "
     "(schedules) and `hyperoffloadd --check-config` (configurations)."},
    {Errc::kNotFound,
     "A file, a tensor, a session, an extent or a ticket does not exist, or no longer.",
     "Check the name. `hyperoffload sessions`, `segments` and `flash ls` list what a pool has. "
     "Bytes of "
     "flash that were never staged out cannot be staged in."},
    {Errc::kAlreadyExists, "The name is taken.", "Choose another name, or end what has it."},
    {Errc::kOutOfRange,
     "An offset and a length reach beyond the object, or a file is larger than its "
     "limit.",
     "Compare them with the object's size, which the message has. In a job this is a mistake in "
     "the "
     "caller's arithmetic."},
    {Errc::kPermissionDenied,
     "The caller has no right to it: a wrong or revoked key, the socket's group, "
     "a file's mode.",
     "Control sockets belong to the group hyperoffload: add the user to it (usermod -aG "
     "hyperoffload "
     "USER) and log in again. A job that was stopped for longer than its lease has lost its "
     "memory."},
    {Errc::kBusy, "A queue or a table is full at the moment.",
     "Try again after some transfers have ended: ho_wait gives tickets back. A daemon that is "
     "draining "
     "takes no new sessions."},
    {Errc::kExhausted, "There is not enough memory, flash, address space or quota for the request.",
     "`hyperoffload status` says what each node has free, `sessions` who holds the rest. Take a "
     "larger "
     "pool, a larger --device-memory or a smaller model; a plan may use flash."},
    {Errc::kUnavailable, "A node is gone, or it cannot be reached.",
     "`hyperoffload status` says which nodes answer and by which driver. Look at the node's log "
     "(journalctl -u hyperoffloadd). What lay in its DDR is lost if the daemon ended: connect anew "
     "and "
     "load the last checkpoint."},
    {Errc::kDeadline,
     "Something was not finished in time: the peer is stopped, overloaded or cut off.",
     "Look whether the daemon runs and the network carries its traffic. op_deadline_ms of "
     "ho_connect_options bounds transfers, --timeout bounds commands."},
    {Errc::kCanceled, "The operation ended because its owner was closed.",
     "This follows another failure or a disconnect: look for the message before it."},
    {Errc::kCorrupt, "Bytes do not match their checksum or their format.",
     "A schedule or graph was cut or changed: make it again. On flash, `hyperoffload fsck PATH` "
     "names the "
     "damaged blocks; the data is never handed out."},
    {Errc::kUnsupported, "It is known, but not in this build, this version or on this machine.",
     "The message says what is missing: an RDMA device, flash in the pool, a newer kernel. "
     "`hyperoffload "
     "status -o wide` says why a node's driver is off."},
    {Errc::kConflict,
     "The object's state does not allow it: a call out of order, a schedule that breaks a "
     "rule, two nodes with one id.",
     "Compare the order of calls with hyperoffload.h. If the planner made an illegal plan, report "
     "it."},
    {Errc::kIo, "The operating system failed a call.",
     "The message has the system's own words (errno). A full or failing disk and missing limits "
     "(ulimit -l, -n) are common causes."},
}};

static_assert(kHelp.size() == static_cast<std::size_t>(Errc::kIo));  // all but kOk

int number_of(Errc code) { return static_cast<int>(code); }

/// "unavailable", "UNAVAILABLE", "HO_UNAVAILABLE" and "8" mean one code.
const Help* find(std::string text) {
  for (char& c : text) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (text.rfind("ho-", 0) == 0) text.erase(0, 3);
  const auto found = std::find_if(kHelp.begin(), kHelp.end(), [&](const Help& one) {
    return errc_name(one.code) == text || std::to_string(number_of(one.code)) == text;
  });
  return found == kHelp.end() ? nullptr : &*found;
}

void write(JsonWriter& json, const Help& help) {
  json.begin_object()
      .field("code", errc_name(help.code))
      .field("number", number_of(help.code))
      .field("meaning", help.meaning)
      .field("advice", help.advice)
      .end();
}

int list_all(Console& console) {
  if (console.json()) {
    JsonWriter json;
    json.begin_object().key("codes").begin_array();
    for (const Help& one : kHelp) write(json, one);
    console.print(std::move(json.end().end()).text());
    return kExitDone;
  }
  Table table({{"NUMBER", Table::kRight}, {"CODE"}, {"MEANING"}});
  for (const Help& one : kHelp) {
    table.add({std::to_string(number_of(one.code)), std::string(errc_name(one.code)),
               std::string(one.meaning)});
  }
  console.print(table.text(console.format()));
  return kExitDone;
}

int run_explain_error(Console& console, const std::string& code) {
  if (code.empty()) return list_all(console);
  const Help* const help = find(code);
  if (help == nullptr) {
    std::vector<std::string_view> names;
    for (const Help& one : kHelp) names.push_back(errc_name(one.code));
    return console.refuse(
        Error(Errc::kNotFound, "no error code is \"" + code + "\"" + did_you_mean(code, names)));
  }
  if (console.json()) {
    JsonWriter json;
    write(json, *help);
    console.print(std::move(json).text());
  } else {
    console.print(Facts(std::string(errc_name(help->code)) + " (" +
                        std::to_string(number_of(help->code)) + ")")
                      .add("meaning", std::string(help->meaning))
                      .add("advice", std::string(help->advice))
                      .text(console.format()));
  }
  return kExitDone;
}

}  // namespace

void add_explain_error(Program& program) {
  auto [command, code] = add_command<std::string>(
      program, program.root(), "explain-error",
      "Say what an error code means and what to do about it", run_explain_error);
  command.add_option("CODE", code,
                     "as messages show it (unavailable), its number, or HO_UNAVAILABLE; "
                     "without it all are listed");
  set_manual(command, {"", {"hyperoffload explain-error unavailable"}, {{kExitDone, "explained"}}});
}

}  // namespace ho::cli
