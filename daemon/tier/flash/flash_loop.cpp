#include "daemon/tier/flash/flash_loop.hpp"

#include <chrono>
#include <future>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "daemon/tier/flash/uring_device.hpp"

namespace ho::flash {

namespace {

constexpr auto kTurnMax = std::chrono::seconds(1);

}  // namespace

std::uint32_t today() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::hours>(now).count() /
                                    24);
}

Result<std::unique_ptr<Store>> FlashLoop::open() {
  UringOptions device_options;
  Store::Options options;
  for (const FlashPathOptions& path : options_.paths) {
    device_options.paths.push_back(path.path);
    options.write_bytes_per_day_max.push_back(path.write_bytes_per_day_max);
  }
  auto device = make_uring_device(device_options);
  if (!device) return device.error();
  options.day = today();
  options.salt = options_.salt;
  options.new_set = options_.new_set;
  return Store::open(std::move(*device), options, findings_);
}

Result<std::unique_ptr<FlashLoop>> FlashLoop::start(Options options) {
  std::unique_ptr<FlashLoop> loop(new FlashLoop(std::move(options)));
  // The ring belongs to the thread that makes it, so the store is opened there.
  std::promise<Result<void>> opened;
  auto outcome = opened.get_future();
  loop->thread_ = std::thread([&loop = *loop, &opened] {
    auto store = loop.open();
    if (!store) {
      opened.set_value(store.error());
      return;
    }
    loop.store_ = std::move(*store);
    loop.publish(*loop.store_);
    loop.device_.store(&loop.store_->device());
    opened.set_value(Result<void>());
    loop.run();
  });
  const Result<void> result = outcome.get();
  if (!result) return result.error();
  return loop;
}

FlashLoop::~FlashLoop() { stop(); }

void FlashLoop::stop() {
  stopping_.store(true);
  if (Device* const device = device_.exchange(nullptr)) device->wake();
  if (thread_.joinable()) thread_.join();
  store_.reset();
}

void FlashLoop::publish(const Store& store) {
  Status next;
  next.paths = store.paths();
  next.extents = store.extent_count();
  next.notice = store.notice();
  const std::lock_guard<std::mutex> guard(mutex_);
  status_ = std::move(next);
}

FlashLoop::Status FlashLoop::status() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return status_;
}

void FlashLoop::run() {
  while (!stopping_.load()) {
    store_->set_day(today());
    HO_CHECK(store_->poll({}) == 0);
    publish(*store_);
    store_->wait(kTurnMax);
  }
  if (auto closed = store_->close(); !closed) {
    log(LogLevel::kWarning, "flash: the write counters could not be saved",
        {{"error", closed.error().message()}});
  }
}

}  // namespace ho::flash
