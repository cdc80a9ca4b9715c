#pragma once

#include <vector>

namespace ho::test {

/// Where the targets of "ofi-rails" listen.
inline constexpr const char* kFirstRail = "127.0.0.1";
inline constexpr const char* kSecondRail = "127.0.0.2";

/// This process's connections to an address, by descriptor.
[[nodiscard]] std::vector<int> sockets_to(const char* address);

/// Breaks this process's connections to a rail under libfabric's feet; there must be some.
void break_rail(const char* address);

}  // namespace ho::test
