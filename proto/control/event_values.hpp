#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/control/control_values.hpp"

namespace ho {

/// What an event is about, as control.proto numbers it.
enum class EventKind : std::uint8_t {
  kState,    ///< the daemon itself: it serves, drains, has read its configuration
  kSession,  ///< a session began or ended
  kGrant,    ///< memory or flash was granted
  kRefusal,  ///< a request or a connection was refused
  kAct,      ///< an administrator did something
};
inline constexpr std::size_t kEventKinds = 5;
inline constexpr std::array<std::string_view, kEventKinds> kEventKindNames{
    "state", "session", "grant", "refusal", "act"};

/// Something that happened on a node.
struct EventInfo {
  std::uint64_t number = 0;   ///< from 1, since the daemon's start; larger is later
  std::uint64_t time_ms = 0;  ///< since 1970, UTC, by the node's clock
  EventKind kind = EventKind::kState;
  std::string what;     ///< "session opened"
  SessionId session{};  ///< 0: none
  std::string who;      ///< "unix uid=0 pid=12"; empty: the daemon itself
  std::string detail;   ///< "name=train driver=local"
};

/// The events of a node from a number on.
struct EventsPage {
  std::vector<EventInfo> events;  ///< the oldest first
  std::uint64_t last = 0;         ///< where the next page begins
  std::uint64_t lost = 0;         ///< events up to there that the daemon no longer keeps
};

}  // namespace ho
