#include "tools/hyperoffload/pool/measured_hardware.hpp"

#include <hyperoffload/hyperoffload.h>

#include "tools/bench/environment.hpp"
#include "tools/bench/pool/profile.hpp"
#include "tools/hyperoffload/pool/pool_view.hpp"

namespace ho::cli {
Result<Hardware> measured_hardware(Console& console, const PoolOptions& pool,
                                   const MeasureOptions& options) {
  // A pool that does not answer fails within the timeout.
  const auto answering = open_pool(pool, SteadyClock().now() + pool.timeout);
  if (!answering) return answering.error();
  const auto job = bench::connect_pool(
      {pool.pool, "hyperoffload, measuring links", options.transport, pool.tls});
  if (!job) return job.error();
  ho_pool_room room{};
  room.struct_bytes = sizeof room;
  if (const ho_status status = ho_pool_get_room(job->get(), HO_ALL_NODES, &room); status != HO_OK) {
    return Error(static_cast<Errc>(status), ho_last_error());
  }
  bench::ProfileOptions wanted;
  wanted.name = bench::machine_class();
  wanted.device_bytes = options.device_bytes;
  wanted.flash = true;
  wanted.flash_left_out = [&console](const Error& why) {
    console.note("flash is not measured: " + why.message());
  };
  wanted.time = options.time;
  auto hardware = bench::measure_profile(job->get(), wanted);
  if (hardware) hardware->failure_domains = room.failure_domains;
  return hardware;
}

}  // namespace ho::cli
