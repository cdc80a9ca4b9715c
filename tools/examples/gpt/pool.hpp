#pragma once

#include <cstdint>
#include <hyperoffload/hyperoffload.hpp>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"

namespace ho::gpt {

/// Our Error of the library's: the codes are the same, in the same order.
[[nodiscard]] Error pool_error(const hyperoffload::Error& error);

/// Runs `call`, turning the wrapper's exception into an Error: no exception goes further.
template <typename Call>
[[nodiscard]] auto guarded(Call&& call) -> Result<decltype(call())> {
  try {
    if constexpr (std::is_void_v<decltype(call())>) {
      std::forward<Call>(call)();
      return {};
    } else {
      return std::forward<Call>(call)();
    }
  } catch (const hyperoffload::Error& error) {
    return pool_error(error);
  }
}

/// @param address    as ho_connect_options::pool
/// @param transport  "auto", "local", "ofi"
[[nodiscard]] Result<std::unique_ptr<hyperoffload::Pool>> connect(const std::string& address,
                                                                  const std::string& transport,
                                                                  const std::string& name);

/// Whether a plan may use flash, where the pool has any.
enum class Flash : std::uint8_t { kUnused, kMeasured };

/// What a plan may assume of the pool: its links, measured both ways at once
/// (tools/bench/profile.hpp). Half a second, with flash twice that.
/// @param capacity_bytes  of the pool's DDR and of its flash, as the plan shall see them
[[nodiscard]] Result<Hardware> measure_pool(hyperoffload::Pool& pool, std::uint64_t device_bytes,
                                            std::uint64_t capacity_bytes, Flash flash);

}  // namespace ho::gpt
