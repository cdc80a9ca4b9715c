#include "tools/examples/gpt/pool.hpp"

#include <algorithm>
#include <chrono>

#include "common/base/units.hpp"
#include "tools/bench/profile.hpp"

namespace ho::gpt {
namespace {

using hyperoffload::Pool;

}  // namespace

Error pool_error(const hyperoffload::Error& error) {
  const std::string text = error.what();
  const std::string prefix = std::string(ho_status_name(error.status())) + ": ";
  const bool prefixed = text.compare(0, prefix.size(), prefix) == 0;
  return Error(static_cast<Errc>(error.status()), prefixed ? text.substr(prefix.size()) : text);
}

Result<std::unique_ptr<Pool>> connect(const std::string& address, const std::string& transport,
                                      const std::string& name) {
  Pool::Options options;
  options.pool = address;
  options.name = name;
  options.transport = transport;
  auto pool = guarded([&options] { return std::make_unique<Pool>(options); });
  if (!pool) return pool.error().at("pool " + address);
  return pool;
}

Result<Hardware> measure_pool(Pool& pool, std::uint64_t device_bytes, std::uint64_t capacity_bytes,
                              Flash flash) {
  bench::ProfileOptions options;
  options.name = "measured over " + pool.transport();
  options.device_bytes = device_bytes;
  options.capacity_bytes = capacity_bytes;
  options.area_bytes = std::clamp<std::uint64_t>(capacity_bytes / 8, 16 * kMiB, 64 * kMiB);
  options.flash_bytes = flash == Flash::kMeasured ? capacity_bytes : 0;
  options.time = std::chrono::milliseconds(500);
  return bench::measure_profile(pool.get(), options);
}

}  // namespace ho::gpt
