#include "common/transport/ofi/rail_try.hpp"

#include <exception>
#include <string>
#include <utility>

#include "common/transport/ofi/sockets.hpp"

namespace ho::transport {

Result<std::unique_ptr<RailTry>> RailTry::begin(Rail rail, const Clock& clock) {
  try {
    return std::unique_ptr<RailTry>(new RailTry(std::move(rail), clock));
  } catch (const std::exception& caught) {
    return Error(Errc::kExhausted, std::string("no thread to try it on: ") + caught.what());
  }
}

RailTry::RailTry(Rail rail, const Clock& clock)
    : rail_(std::move(rail)), clock_(clock), end_(clock.now() + kTime), thread_([this] {
        try {
          outcome_.emplace(connect());
        } catch (const std::exception&) {
          // In as few letters as a string holds without memory of its own.
          outcome_.emplace(Error(Errc::kExhausted, "out of memory"));
        }
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
