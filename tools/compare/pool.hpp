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

struct Connection {
  std::string address;    ///< as ho_connect_options::pool
  std::string transport;  ///< "auto", "local", "tcp"
  std::string name;
  std::uint64_t link_bytes_per_s = 0;  ///< limit each way; 0: none
};
[[nodiscard]] Result<std::unique_ptr<hyperoffload::Pool>> connect(const Connection& how);

/// Whether a plan may use flash, where the pool has any.
enum class Flash : std::uint8_t { kUnused, kMeasured };

struct PoolMeasurement {
  std::uint64_t device_bytes = 0;
  std::uint64_t capacity_bytes = 0;  ///< DDR and flash that the plan may assume
  Flash flash = Flash::kUnused;
  std::uint64_t link_bytes_per_s = 0;  ///< the connection's
};
/// What a plan may assume of the pool: its links, measured both ways at once
/// (tools/bench/pool/profile.hpp). Half a second, more on a slow link; with flash twice that.
[[nodiscard]] Result<Hardware> measure_pool(hyperoffload::Pool& pool, const PoolMeasurement& what);

}  // namespace ho::gpt
