#include "common/transport/ofi/rail_try.hpp"

#include <utility>

#include "common/transport/ofi/sockets.hpp"

namespace ho::transport {

RailTry::RailTry(Rail rail, const Clock& clock)
    : rail_(std::move(rail)), clock_(clock), end_(clock.now() + kTime), thread_([this] {
        outcome_.emplace(connect());
        done_.store(true, std::memory_order_release);
      }) {}

RailTry::~RailTry() {
  stop();
  thread_.join();
}

Result<RailTry::Connections> RailTry::connect() const {
  const auto there = knock({&rail_.address, 1}, clock_, end_);
  if (!there.front()) return there.front().error();
  Connections made;
  while (made.size() < rail_.lanes) {
    auto connection = Connection::create(rail_.address, rail_.how, clock_, end_);
    if (!connection) return connection.error();
    made.push_back(std::move(*connection));
  }
  return made;
}

}  // namespace ho::transport
