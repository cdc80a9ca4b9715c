#include "daemon/tier/flash/store/flash_loop.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <set>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/memory_guard.hpp"

namespace ho::flash {

namespace {

constexpr auto kTurnMax = std::chrono::seconds(1);
constexpr auto kPublishPeriod = std::chrono::milliseconds(100);
// Operations on the store at a time; it has room for as many.
constexpr std::uint32_t kRunningMax = 128;
/// Transfers that the store may have: it serves them in order, so what more it had would stand
/// before everybody's next turn. Keeps a device busy.
constexpr std::uint64_t kRunningBytesMax = 64U << 20U;

bool is_transfer(const FlashRequest& request) {
  return request.kind == FlashRequest::Kind::kRead || request.kind == FlashRequest::Kind::kWrite;
}

/// What gives something back, and so must not be lost for want of room. Each extent is freed once,
/// each session ends once: their number is bounded by that.
bool gives_back(const FlashRequest& request) {
  return request.kind == FlashRequest::Kind::kFree ||
         request.kind == FlashRequest::Kind::kEndSession ||
         request.kind == FlashRequest::Kind::kForget;
}

}  // namespace

std::uint32_t today() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::hours>(now).count() /
                                    24);
}

Result<std::unique_ptr<ExtentStore>> FlashLoop::open() {
  if (auto guard = install_memory_guard(); !guard) return guard.error();
  auto device = options_.make_device();
  if (!device) return device.error();
  ExtentStore::Options options;
  options.write_bytes_per_day_max = options_.write_bytes_per_day_max;
  options.day = today();
  options.salt = options_.salt;
  options.new_set = options_.new_set;
  return ExtentStore::open(std::move(*device), options, findings_);
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
    loop.ended_.set_value();
  });
  const Result<void> result = outcome.get();
  if (!result) return result.error();
  return loop;
}

FlashLoop::~FlashLoop() { stop(); }

void FlashLoop::stop() {
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    stopping_.store(true);
  }
  if (Device* const device = device_.exchange(nullptr)) device->wake();
  if (store_ != nullptr && thread_.joinable() &&
      ended_.get_future().wait_for(kStopMax) != std::future_status::ready) {
    log(LogLevel::kError, "flash: the device does not answer; leaving without it", {});
    std::_Exit(EXIT_FAILURE);
  }
  if (thread_.joinable()) thread_.join();
  store_.reset();
}

void FlashLoop::listen(std::function<void()> ring) {
  const std::lock_guard<std::mutex> guard(queue_mutex_);
  HO_CHECK(under_way_ == 0);
  ring_ = std::move(ring);
}

Result<void> FlashLoop::push(FlashRequest request) {
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    if (stopping_.load()) return Error(Errc::kUnavailable, "flash is being closed");
    if (!gives_back(request) && under_way_ >= kRequestsMax) {
      return Error(Errc::kBusy, "too many flash requests are under way");
    }
    under_way_ += 1;
    requests_.push_back(request);
  }
  if (Device* const device = device_.load()) device->wake();
  return {};
}

std::vector<FlashAnswer> FlashLoop::take() {
  const std::lock_guard<std::mutex> guard(queue_mutex_);
  HO_CHECK(under_way_ >= answers_.size());
  under_way_ -= answers_.size();
  return std::exchange(answers_, {});
}

void FlashLoop::answer(FlashAnswer answer) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    first = answers_.empty();
    answers_.push_back(std::move(answer));
  }
  if (first && ring_) ring_();
}

void FlashLoop::publish(const ExtentStore& store) {
  Status next;
  next.paths = store.paths();
  next.extents = store.extent_count();
  next.notice = store.notice();
  for (std::size_t i = 0; i < next.paths.size(); ++i) {
    const PathStatus& path = next.paths[i];
    if (!path.broken || (i < status_.paths.size() && status_.paths[i].broken)) continue;
    log(LogLevel::kError, "flash: a path takes no durable change until the next start",
        {{"path", path.name}, {"why", path.broken_why}});
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  status_ = std::move(next);
}

FlashLoop::Status FlashLoop::status() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return status_;
}

/// Tells the device once of memory that requests come back to: it is pinned and mapped for I/O
/// then.
void FlashLoop::announce(std::span<std::byte> region) {
  const auto known = [&](std::span<std::byte> one) { return one.data() == region.data(); };
  if (region.empty() || std::any_of(regions_.begin(), regions_.end(), known)) return;
  regions_.push_back(region);
  // Where it cannot be registered, operations on it work at a higher price.
  static_cast<void>(store_->device().add_memory(region));
}

void FlashLoop::forget(std::span<std::byte> region) {
  const auto at = std::find_if(regions_.begin(), regions_.end(), [&](std::span<std::byte> one) {
    return one.data() == region.data();
  });
  if (at == regions_.end()) return;
  store_->device().remove_memory(region);
  regions_.erase(at);
}

/// @return false: it has to wait.
bool FlashLoop::create(const FlashRequest& request) {
  const auto made = store_->create({request.owner, request.length_bytes, request.policy});
  if (!made && made.error().code() == Errc::kBusy) return false;
  publish(*store_);
  if (!made) {
    answer({request.cookie, made.error().code(), made.error().context(), {}, 0});
    return true;
  }
  FlashAnswer out{request.cookie, Errc::kOk, "", *made, request.length_bytes};
  if (request.policy == Policy::kScratch) {
    answer(std::move(out));
  } else {
    making_.push_back(std::move(out));
  }
  return true;
}

/// Answers for durable extents that have become safe. @return how many.
std::size_t FlashLoop::answer_made() {
  std::size_t answered = 0;
  for (std::size_t i = 0; i < making_.size();) {
    const auto making = store_->making(making_[i].extent);
    if (making == ExtentStore::Making::kUnderWay) {
      ++i;
      continue;
    }
    FlashAnswer out = std::move(making_[i]);
    making_.erase(making_.begin() + static_cast<std::ptrdiff_t>(i));
    if (making == ExtentStore::Making::kFailed) {
      out = {out.cookie, Errc::kIo, "an I/O error in the log; the extent is not made", {}, 0};
    }
    answer(std::move(out));
    ++answered;
  }
  return answered;
}

/// One answer for whatever does not fit, so that nobody learns numbers by asking.
void FlashLoop::find(const FlashRequest& request) {
  const auto found = store_->find(request.extent);
  if (!found || found->policy != Policy::kDurable || found->owner.object != request.owner.object) {
    return answer(
        {request.cookie,
         Errc::kNotFound,
         "no durable extent " + std::to_string(request.extent.value()) + " with this access number",
         {},
         0});
  }
  answer({request.cookie, Errc::kOk, "", found->id, found->length_bytes});
}

void FlashLoop::list(const FlashRequest& request) {
  FlashAnswer out;
  out.cookie = request.cookie;
  out.listed = store_->extents(request.extent, kListMax + 1);
  out.more = out.listed.size() > kListMax;
  if (out.more) out.listed.pop_back();
  answer(std::move(out));
}

/// @return false: the store has no room now.
bool FlashLoop::start_op(const FlashRequest& request) {
  if (free_running_.empty()) return false;
  const std::uint32_t slot = free_running_.back();
  const OpId op(slot);
  Result<void> started;
  if (request.kind == FlashRequest::Kind::kFree) {
    started = store_->submit(FreeOp{op, request.extent});
  } else {
    announce(request.region);
    const auto direction =
        request.kind == FlashRequest::Kind::kRead ? StageDirection::kIn : StageDirection::kOut;
    started = store_->submit(
        TransferOp{op, direction, request.extent, request.offset_bytes, request.memory});
  }
  if (!started && started.error().code() == Errc::kBusy) return false;
  if (!started) {
    answer({request.cookie, started.error().code(), started.error().context(), request.extent, 0});
    return true;
  }
  free_running_.pop_back();
  running_[slot] = {request.cookie, request.memory.size(), true,
                    request.kind == FlashRequest::Kind::kFree};
  running_bytes_ += running_[slot].bytes;
  return true;
}

/// @return false: it has to wait.
bool FlashLoop::serve_one(const FlashRequest& request) {
  switch (request.kind) {
    case FlashRequest::Kind::kCreate: return create(request);
    case FlashRequest::Kind::kFind: find(request); return true;
    case FlashRequest::Kind::kList: list(request); return true;
    case FlashRequest::Kind::kEndSession:
      cancel(request.owner);
      store_->end_session(request.owner.instance, request.owner.session);
      publish(*store_);
      break;
    case FlashRequest::Kind::kForget: forget(request.region); break;
    case FlashRequest::Kind::kFree:
    case FlashRequest::Kind::kRead:
    case FlashRequest::Kind::kWrite: return start_op(request);
  }
  answer({request.cookie, Errc::kOk, "", {}, 0});
  return true;
}

/// Answers a session's transfers that have not begun.
void FlashLoop::cancel(const Owner& session) {
  const auto queue = transfers_.find(session.session);
  if (queue == transfers_.end()) return;
  for (const FlashRequest& request : queue->second) {
    answer({request.cookie, Errc::kCanceled, "the session ended", request.extent, 0});
  }
  transfers_.erase(queue);
}

std::size_t FlashLoop::serve() {
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    for (const FlashRequest& request : requests_) {
      auto& queue = is_transfer(request) ? transfers_[request.owner.session] : waiting_;
      queue.push_back(request);
    }
    requests_.clear();
  }
  std::size_t served = 0;
  // One that has to wait, for its path's budget say, holds up its own session alone.
  std::set<std::uint64_t> waits;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const std::uint64_t session = next->owner.session;
    if (waits.contains(session) || !serve_one(*next)) {
      waits.insert(session);
      ++next;
    } else {
      next = waiting_.erase(next);
      ++served;
    }
  }
  return served + serve_transfers();
}

/// One transfer of each session in turn, as long as the store takes any.
std::size_t FlashLoop::serve_transfers() {
  std::size_t served = 0;
  std::size_t refused = 0;  // sessions in a row: after a round of them the store takes none
  while (refused < transfers_.size()) {
    auto turn = transfers_.upper_bound(last_session_);
    if (turn == transfers_.end()) turn = transfers_.begin();
    const FlashRequest& next = turn->second.front();
    if (stopping_.load()) {
      answer({next.cookie, Errc::kUnavailable, "flash is being closed", next.extent, 0});
    } else if (running_bytes_ >= kRunningBytesMax || free_running_.empty()) {
      break;
    } else if (!serve_one(next)) {
      last_session_ = turn->first;
      ++refused;
      continue;
    }
    ++served;
    refused = 0;
    last_session_ = turn->first;
    turn->second.pop_front();
    if (turn->second.empty()) transfers_.erase(turn);
  }
  return served;
}

std::size_t FlashLoop::reap() {
  std::array<StoreCompletion, 32> done;
  const std::size_t count = store_->poll(done);
  for (std::size_t i = 0; i < count; ++i) {
    const auto slot = static_cast<std::uint32_t>(done[i].done.op.value());
    HO_CHECK(slot < running_.size() && running_[slot].used);
    FlashAnswer out;
    out.cookie = running_[slot].cookie;
    out.code = done[i].done.code;
    out.extent = done[i].fault.extent;
    out.length_bytes = done[i].done.moved_bytes;
    if (out.code == Errc::kCanceled) {
      out.text = "the extent's session ended";
    } else if (out.code == Errc::kUnavailable) {
      out.text = "the segment's memory is not there any more";
    } else if (out.code != Errc::kOk) {
      out.text = store_->describe(done[i].fault);
    }
    if (running_[slot].frees) publish(*store_);
    running_bytes_ -= running_[slot].bytes;
    running_[slot] = {};
    free_running_.push_back(slot);
    answer(std::move(out));
  }
  return count;
}

void FlashLoop::run() {
  const SteadyClock clock;
  running_.resize(kRunningMax);
  for (std::uint32_t i = kRunningMax; i-- > 0;) free_running_.push_back(i);
  for (;;) {
    store_->set_day(today());
    // What a wake announced is taken by reap(), so what was pushed before is seen after it: the
    // other way round it would lie until the next wake.
    std::size_t handled = reap() + answer_made();
    handled += serve();
    const TimePoint now = clock.now();
    if (handled == 0 || now - published_ >= kPublishPeriod) {
      publish(*store_);
      published_ = now;
    }
    store_->tend_logs(now);
    const bool idle = waiting_.empty() && transfers_.empty() && making_.empty() &&
                      free_running_.size() == running_.size();
    if (stopping_.load() && idle && handled == 0) break;
    if (handled == 0) store_->wait(store_->sealed() ? kTurnMax : ExtentStore::kSealAfter);
  }
  if (auto closed = store_->close(); !closed) {
    log(LogLevel::kWarning, "flash: the write counters could not be saved",
        {{"error", closed.error().message()}});
  }
}

}  // namespace ho::flash
