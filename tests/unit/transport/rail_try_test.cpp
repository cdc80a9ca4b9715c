#include "common/transport/ofi/rail_try.hpp"

#include <netinet/in.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <new>
#include <thread>

#include "common/base/unique_fd.hpp"

namespace ho::transport {
namespace {

/// Threads that are given no stack size cannot be made: theirs would be all addresses there are.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    REQUIRE(::pthread_getattr_default_np(&before_) == 0);
    REQUIRE(::pthread_attr_init(&huge) == 0);
    REQUIRE(::pthread_attr_setstacksize(&huge, std::size_t{1} << 62) == 0);
    REQUIRE(::pthread_setattr_default_np(&huge) == 0);
    (void)::pthread_attr_destroy(&huge);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    (void)::pthread_setattr_default_np(&before_);
    (void)::pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_{};
};

/// Memory is out for whoever asks it after its owner did.
class FailingClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    if (std::this_thread::get_id() != owner_) throw std::bad_alloc();
    return TimePoint{};
  }

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
};

/// An address where nobody answers, while it lives.
class Silence {
 public:
  Silence() {
    REQUIRE(socket_.valid());
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    auto* const any = reinterpret_cast<sockaddr*>(&where);
    REQUIRE(::bind(socket_.get(), any, length) == 0);
    REQUIRE(::listen(socket_.get(), 8) == 0);
    REQUIRE(::getsockname(socket_.get(), any, &length) == 0);
    rail_.address.provider = "tcp";
    rail_.address.format = FI_SOCKADDR_IN;
    rail_.address.name.assign(reinterpret_cast<const char*>(&where), sizeof where);
    rail_.lanes = 1;
  }
  [[nodiscard]] const RailTry::Rail& rail() const { return rail_; }

 private:
  const UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  RailTry::Rail rail_;
};

TEST_CASE("rail try: with no thread to be had it has failed, and is no end of the process") {
  const Silence silence;
  const SteadyClock clock;
  {
    const NoThreads none;
    const auto begun = RailTry::begin(silence.rail(), clock);
    REQUIRE_FALSE(begun.ok());
    CHECK(begun.error().code() == Errc::kExhausted);
  }
  CHECK(RailTry::begin(silence.rail(), clock).ok());
}

TEST_CASE("rail try: one that finds no memory ends with an error") {
  const Silence silence;
  const FailingClock clock;
  const auto begun = RailTry::begin(silence.rail(), clock);
  REQUIRE(begun.ok());
  while (!(*begun)->done()) std::this_thread::yield();
  const auto made = (*begun)->take();
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kExhausted);
}

}  // namespace
}  // namespace ho::transport
