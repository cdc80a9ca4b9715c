#include <control.pb.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/control/service.hpp"

namespace {

/// Everything behind the sockets, without drivers: no memory is made.
struct Daemon {
  Daemon() { ho::set_log_level(ho::LogLevel::kError); }

  static ho::daemon::Pool::Options options() {
    ho::daemon::Pool::Options out;
    out.node_name = "fuzz";
    out.capacity_bytes = 8 * ho::kMiB;
    out.segment_bytes = 2 * ho::kMiB;
    out.lease = std::chrono::seconds(10);
    out.sessions_max = 16;
    return out;
  }
  static std::unique_ptr<ho::daemon::DataLoop> make_loop() {
    auto made = ho::daemon::DataLoop::create({});
    HO_CHECK(made.ok());
    return std::move(*made);
  }

  ho::SteadyClock clock;
  asio::io_context io{1};
  ho::daemon::Pool pool{options(), clock.now()};
  std::unique_ptr<ho::daemon::DataLoop> data = make_loop();
  ho::daemon::Grants grants{pool, *data, io, ho::daemon::PagePlan{}};
  ho::daemon::Service service{pool, grants, *data, clock, {"boot", 1, {ho::NodeInfo{}}}};
};

}  // namespace

/// Any bytes as a request, before and after hello: exactly one answer, with the request's id.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Daemon daemon;
  hyperoffload::v1::Request request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  int answers = 0;
  const auto reply = [&](const hyperoffload::v1::Response& response, std::vector<ho::UniqueFd>) {
    HO_CHECK(response.id() == request.id());
    ++answers;
    return true;
  };
  const ho::daemon::PeerInfo peer{true, 1, "fuzz"};
  static_cast<void>(daemon.service.hello(request, peer, reply));
  HO_CHECK(answers == 1);
  daemon.service.handle(request, peer, reply);
  daemon.io.poll();
  HO_CHECK(answers == 2);
  return 0;
}
