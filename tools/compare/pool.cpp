#include "tools/compare/pool.hpp"

#include <algorithm>

#include "common/base/units.hpp"
#include "tools/bench/pool/profile.hpp"

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

Result<std::unique_ptr<Pool>> connect(const Connection& how) {
  Pool::Options options;
  options.pool = how.address;
  options.name = how.name;
  options.transport = how.transport;
  options.link_bytes_per_s = how.link_bytes_per_s;
  auto pool = guarded([&options] { return std::make_unique<Pool>(options); });
  if (!pool) return pool.error().at("pool " + how.address);
  return pool;
}

Result<Hardware> measure_pool(Pool& pool, const PoolMeasurement& what) {
  bench::ProfileOptions options;
  options.name = "measured over " + pool.transport();
  options.device_bytes = what.device_bytes;
  options.capacity_bytes = what.capacity_bytes;
  options.area_bytes = std::clamp<std::uint64_t>(what.capacity_bytes / 8, 16 * kMiB, 64 * kMiB);
  options.flash = what.flash == Flash::kMeasured;
  options.time = bench::profile_time(static_cast<double>(what.link_bytes_per_s));
  return bench::measure_profile(pool.get(), options);
}

}  // namespace ho::gpt
