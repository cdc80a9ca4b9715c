#pragma once

#include <vector>

namespace ho::test {

/// Where the targets of "tcp-rails" listen.
inline constexpr const char* kFirstRail = "127.0.0.1";
inline constexpr const char* kSecondRail = "127.0.0.2";

/// This process's connections to an address, by descriptor.
[[nodiscard]] std::vector<int> sockets_to(const char* address);

/// Breaks this process's connections to a rail behind its driver's back. @return whether there were
/// any.
[[nodiscard]] bool break_rail(const char* address);

/// Whether a call on one of those descriptors failed with this errno because its connection had
/// ended meanwhile.
[[nodiscard]] bool went_away(int error);

}  // namespace ho::test
