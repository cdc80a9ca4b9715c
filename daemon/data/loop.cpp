#include "daemon/data/loop.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/system/signals.hpp"

namespace ho::daemon {

namespace {

constexpr std::size_t kWaitingMax = 256;
/// Requests between two looks at the targets: registering memory with a device takes a while,
/// and no transfers are served meanwhile.
constexpr std::size_t kRequestsPerRound = 4;
// Waking a sleeping thread costs 15-50 us, so a little spinning pays.
// Source: FACTS, wake-up cost measured on a two-core virtual machine, 2026.
constexpr Duration kSpin = std::chrono::microseconds(30);
// A back-stop only: a driver's descriptor is what wakes the thread.
constexpr int kSleepMsMax = 1000;

/// Where an exposure does not end, everything at its driver does: the memory is another's next, and
/// an access that could still come in would be to that.
void revoke_or_shut(transport::Target& target, transport::ExposureId exposure) {
  const auto done = target.revoke(exposure);
  if (done) return;
  HO_CHECK(done.error().code() != Errc::kNotFound);
  log(LogLevel::kError, "revoke failed; the driver serves nobody any more",
      {{"driver", std::string(target.caps().name)}, {"error", done.error().message()}});
  target.shut();
}

}  // namespace

Result<std::unique_ptr<DataLoop>> DataLoop::create(
    std::vector<std::unique_ptr<transport::Target>> targets) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return errno_error(errno, "eventfd");
  std::unique_ptr<DataLoop> made(new DataLoop(std::move(targets), std::move(wake)));
  const SignalsBlocked blocked;
  made->thread_ = std::thread([loop = made.get()] { loop->run(); });
  pthread_setname_np(made->thread_.native_handle(), "ho-data");
  return made;
}

DataLoop::DataLoop(std::vector<std::unique_ptr<transport::Target>> targets, UniqueFd wake)
    : targets_(std::move(targets)), wake_(std::move(wake)) {
  for (const auto& target : targets_) drivers_.push_back(target->caps());
}

DataLoop::~DataLoop() { stop(); }

void DataLoop::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  push([] {});
  thread_.join();
}

void DataLoop::push(Request request) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
    pending_.store(true);
  }
  const std::uint64_t one = 1;
  // EAGAIN only where the counter is full, and then the thread is awake anyway.
  if (::write(wake_.get(), &one, sizeof(one)) < 0) HO_CHECK(errno == EAGAIN);
}

Result<void> DataLoop::push_unless_busy(Request request) {
  {
    const std::lock_guard lock(mutex_);
    if (requests_.size() >= kWaitingMax) {
      return Error(Errc::kBusy, "too many requests wait for the data thread");
    }
  }
  push(std::move(request));
  return {};
}

Result<void> DataLoop::admit(const std::string& driver, const transport::Credentials& session,
                             Admitted answer) {
  return push_unless_busy([this, driver, session, answer = std::move(answer)] {
    transport::Target* const target = find(driver);
    HO_CHECK(target != nullptr);
    answer(target->admit(session));
  });
}

void DataLoop::dismiss(SessionId session) {
  push([this, session] {
    for (const auto& target : targets_) target->dismiss(session);
  });
}

Result<void> DataLoop::fence(const std::string& driver, SessionId session,
                             const transport::RailFence& rail, Fenced answer) {
  return push_unless_busy([this, driver, session, rail, answer = std::move(answer)] {
    transport::Target* const target = find(driver);
    HO_CHECK(target != nullptr);
    answer(target->fence(session, rail));
  });
}

Result<void> DataLoop::expose(ExposeRequest request, Exposed answer) {
  return push_unless_busy([this, request = std::move(request), answer = std::move(answer)] {
    answer(do_expose(request));
  });
}

void DataLoop::revoke(RevokeRequest request, Revoked answer) {
  push([this, request = std::move(request), answer = std::move(answer)] {
    do_revoke(request);
    answer();
  });
}

void DataLoop::shut() {
  push([this] {
    for (const auto& target : targets_) target->shut();
  });
}

transport::Target* DataLoop::find(const std::string& driver) {
  for (const auto& target : targets_) {
    if (target->caps().name == driver) return target.get();
  }
  return nullptr;
}

Result<std::vector<transport::Exposure>> DataLoop::do_expose(const ExposeRequest& request) {
  transport::Target* const target = find(request.driver);
  HO_CHECK(target != nullptr);
  std::vector<transport::Exposure> made;
  for (const auto& region : request.regions) {
    auto exposure = target->expose(region);
    if (!exposure) {
      for (const auto& earlier : made) revoke_or_shut(*target, earlier.id);
      return exposure.error().at("expose over " + request.driver);
    }
    made.push_back(std::move(*exposure));
  }
  return made;
}

void DataLoop::do_revoke(const RevokeRequest& request) {
  transport::Target* const target = find(request.driver);
  HO_CHECK(target != nullptr);
  for (const auto exposure : request.exposures) revoke_or_shut(*target, exposure);
}

std::size_t DataLoop::serve_requests() {
  if (!pending_.load(std::memory_order_acquire)) return 0;
  std::array<Request, kRequestsPerRound> taken;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    while (count < taken.size() && !requests_.empty()) {
      taken[count++] = std::move(requests_.front());
      requests_.pop_front();
    }
    pending_.store(!requests_.empty());
  }
  for (std::size_t i = 0; i < count; ++i) taken[i]();
  return count;
}

std::size_t DataLoop::serve_targets() {
  std::size_t handled = 0;
  for (const auto& target : targets_) handled += target->progress();
  return handled;
}

void DataLoop::sleep() {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  for (const auto& target : targets_) {
    if (target->wait_descriptor() < 0) continue;
    if (!target->arm()) return;
    entries.push_back({target->wait_descriptor(), POLLIN, 0});
  }
  if (::poll(entries.data(), entries.size(), kSleepMsMax) < 0) HO_CHECK(errno == EINTR);
  if ((entries[0].revents & POLLIN) != 0) {
    std::uint64_t count = 0;
    if (::read(wake_.get(), &count, sizeof(count)) < 0) HO_CHECK(errno == EAGAIN);
  }
}

void DataLoop::run() {
  const SteadyClock clock;
  TimePoint last_event = clock.now();
  while (true) {
    const std::size_t handled = serve_requests() + serve_targets();
    if (stopping_.load() && !pending_.load()) return;
    const TimePoint now = clock.now();
    if (handled > 0) {
      last_event = now;
    } else if (now - last_event >= kSpin) {
      sleep();
      last_event = clock.now();
    }
  }
}

}  // namespace ho::daemon
