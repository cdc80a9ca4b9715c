#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log_fields.hpp"
#include "proto/control/event_values.hpp"

namespace ho::daemon {

/// Keeps the last events of each kind, numbered in one row, for administrators who ask afterwards.
/// note() writes each to the log too, so the journal has them all.
///
/// Bounded: a kind has room of its own, so that a flood of refusals cannot push out what
/// administrators did. Owner: the control thread. Lives in memory; ends with the daemon.
class Events {
 public:
  static constexpr std::size_t kKeptPerKind = 1024;
  static constexpr std::size_t kPerPage = 256;
  static constexpr std::size_t kTextBytesMax = 512;  ///< `who` and `detail` are cut there

  struct Note {
    EventKind kind = EventKind::kState;
    LogLevel level = LogLevel::kInfo;
    std::string_view what;   ///< one of few fixed texts: "session opened"
    SessionId session{};     ///< 0: none
    std::string who = {};    ///< the peer; empty: the daemon itself
    std::string owner = {};  ///< of the session, or the peer's: who may see the event
    std::vector<LogField> fields = {};
  };
  void note(const Note& note);
  /// The same without a line in the log: the caller limits those, so that a peer cannot fill it.
  void keep(const Note& note);

  struct Kept {
    EventInfo info;
    std::string owner;
  };
  struct Page {
    std::vector<const Kept*> events;  ///< in order; valid until the next note
    std::uint64_t lost = 0;  ///< events after `number` and up to `last` that are no longer kept
    std::uint64_t last = 0;  ///< where the next page begins
    bool more = false;       ///< it can be had now
  };
  /// Events with larger numbers, at most kPerPage, the oldest first.
  /// @param owner  whose events; empty: all.
  [[nodiscard]] Page after(std::uint64_t number, const std::string& owner) const;

 private:
  std::array<std::deque<Kept>, kEventKinds> kept_;
  std::uint64_t last_ = 0;
};

}  // namespace ho::daemon
