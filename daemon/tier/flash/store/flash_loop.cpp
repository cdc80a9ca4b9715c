#include "daemon/tier/flash/store/flash_loop.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/system/memory_guard.hpp"

namespace ho::flash {

namespace {

constexpr auto kTurnMax = std::chrono::seconds(1);
constexpr auto kPublishPeriod = std::chrono::milliseconds(100);
// Limit for operations on the store at a time; the store has room for them.
constexpr std::uint32_t kRunningMax = 128;
/// Limit for the bytes of transfers in the store. It serves them in order, so more would delay the
/// next turn of all sessions. This many keep a device busy.
constexpr std::uint64_t kRunningBytesMax = 64U << 20U;

/// Requests that return something must not fail for lack of room. Each extent is claimed and freed
/// once, and each session ends once, which bounds their number.
bool gives_back(const FlashRequest& request) {
  return std::holds_alternative<FreeExtent>(request) ||
         std::holds_alternative<ClaimExtents>(request) ||
         std::holds_alternative<EndSession>(request) ||
         std::holds_alternative<ForgetSegment>(request);
}

/// The session that waits if this request has to; 0: no session.
std::uint64_t session_of(const FlashRequest& request) {
  if (const auto* const create = std::get_if<CreateExtent>(&request)) {
    return create->spec.session;
  }
  if (const auto* const claim = std::get_if<ClaimExtents>(&request)) return claim->session;
  const auto* const end = std::get_if<EndSession>(&request);
  return end == nullptr ? 0 : end->session;
}

std::chrono::sys_seconds wall_time() {
  return std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
}

Error closing() { return {Errc::kUnavailable, "flash is shutting down"}; }

}  // namespace

Result<std::unique_ptr<ExtentStore>> FlashLoop::open() {
  if (auto guard = install_memory_guard(); !guard) return guard.error();
  auto device = options_.make_device();
  if (!device) return device.error();
  ExtentStore::Options options;
  options.write_bytes_per_day_max = options_.write_bytes_per_day_max;
  options.time = wall_time();
  options.salt = options_.salt;
  options.new_set = options_.new_set;
  options.left = std::exchange(options_.left, {});
  return ExtentStore::open(std::move(*device), std::move(options), findings_);
}

Result<std::unique_ptr<FlashLoop>> FlashLoop::start(Options options) {
  HO_CHECK(options.make_device != nullptr);
  std::unique_ptr<FlashLoop> loop(new FlashLoop(std::move(options)));
  // The ring belongs to the thread that makes it, so this thread opens the store.
  std::promise<Result<void>> opened;
  auto outcome = opened.get_future();
  loop->thread_ = std::thread([&loop = *loop, &opened] {
    const bool takes = !loop.options_.left.empty();
    auto store = loop.open();
    if (!store) {
      opened.set_value(store.error());
      return;
    }
    loop.store_ = std::move(*store);
    if (takes) loop.left_ = loop.store_->extents();
    std::erase_if(loop.left_, [](const auto& one) { return one.policy != Policy::kScratch; });
    loop.publish();
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
  end_thread();
  store_.reset();
}

std::string FlashLoop::leave(const std::set<ExtentId>& extents) {
  HO_CHECK(store_ != nullptr);
  end_thread();
  std::string left = store_->leave(extents);
  store_.reset();
  return left;
}

void FlashLoop::end_thread() {
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    stopping_.store(true);
  }
  if (Device* const device = device_.exchange(nullptr)) device->wake();
  if (store_ != nullptr && thread_.joinable() &&
      ended_.get_future().wait_for(kStopMax) != std::future_status::ready) {
    log(LogLevel::kError, "flash: the device does not answer; ending without it", {});
    std::_Exit(EXIT_FAILURE);
  }
  if (thread_.joinable()) thread_.join();
}

void FlashLoop::listen(std::function<void()> ring) {
  const std::lock_guard<std::mutex> guard(queue_mutex_);
  HO_CHECK(under_way_ == 0 && ring_ == nullptr);
  ring_ = std::move(ring);
}

Result<void> FlashLoop::push(FlashRequest request, Answered answered) {
  HO_CHECK(answered != nullptr);
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    if (stopping_.load()) return closing();
    if (!gives_back(request) && under_way_ >= kRequestsMax) {
      return Error(Errc::kBusy, "too many flash requests are in flight");
    }
    under_way_ += 1;
    requests_.push_back({std::move(request), std::move(answered)});
  }
  if (Device* const device = device_.load()) device->wake();
  return {};
}

void FlashLoop::deliver() {
  std::vector<Answer> answers;
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    HO_CHECK(under_way_ >= answers_.size());
    under_way_ -= answers_.size();
    answers.swap(answers_);
  }
  for (const Answer& one : answers) one.answered(one.answer);
}

void FlashLoop::answer(Answered& answered, FlashAnswer answer) {
  HO_CHECK(answered != nullptr);
  bool first = false;
  {
    const std::lock_guard<std::mutex> guard(queue_mutex_);
    first = answers_.empty();
    answers_.push_back({std::exchange(answered, nullptr), std::move(answer)});
  }
  if (first && ring_) ring_();
}

void FlashLoop::publish() {
  Status next;
  next.paths = store_->paths();
  next.extents = store_->extent_count();
  next.owned_bytes = store_->owned_bytes();
  next.notice = store_->notice();
  for (std::size_t i = 0; i < next.paths.size(); ++i) {
    const PathStatus& path = next.paths[i];
    if (!path.broken || (i < status_.paths.size() && status_.paths[i].broken)) continue;
    log(LogLevel::kError, "flash: a path takes no durable change until the next start",
        {{"path", path.name}, {"why", path.broken_why}});
  }
  const std::lock_guard<std::mutex> guard(status_mutex_);
  status_ = std::move(next);
}

FlashLoop::Status FlashLoop::status() const {
  const std::lock_guard<std::mutex> guard(status_mutex_);
  return status_;
}

/// Announces a segment to the device once: its memory is then pinned and mapped for I/O.
void FlashLoop::announce(std::span<std::byte> segment) {
  const auto known = [&](std::span<std::byte> one) { return one.data() == segment.data(); };
  if (segment.empty() || std::any_of(segments_.begin(), segments_.end(), known)) return;
  segments_.push_back(segment);
  // If it cannot be registered, operations on it are slower.
  static_cast<void>(store_->device().add_memory(segment));
}

FlashLoop::Served FlashLoop::serve(const ForgetSegment& what, Answered& answered) {
  const auto at = std::find_if(segments_.begin(), segments_.end(), [&](std::span<std::byte> one) {
    return one.data() == what.segment.data();
  });
  if (at != segments_.end()) {
    store_->device().remove_memory(what.segment);
    segments_.erase(at);
  }
  answer(answered, {});
  return Served::kYes;
}

FlashLoop::Served FlashLoop::serve(const CreateExtent& what, Answered& answered) {
  const auto made = store_->create(what.spec);
  if (!made && made.error().code() == Errc::kBusy) return Served::kWaits;
  publish();
  if (!made) {
    answer(answered, {made.error()});
  } else if (what.spec.policy == Policy::kDurable) {
    making_.push_back({*made, std::move(answered)});
  } else {
    answer(answered, {{}, *store_->find(*made)});
  }
  return Served::kYes;
}

/// Answers requests for durable extents that have become durable. @return their number.
std::size_t FlashLoop::answer_made() {
  return std::erase_if(making_, [this](Making& one) {
    switch (store_->making(one.extent)) {
      case ExtentStore::Making::kUnderWay: return false;
      case ExtentStore::Making::kMade:
        answer(one.answered, {{}, *store_->find(one.extent)});
        return true;
      case ExtentStore::Making::kFailed:
        answer(one.answered,
               {Error(Errc::kIo, "an I/O error in the log; the extent was not made")});
        return true;
    }
    return false;
  });
}

/// The same error for each mismatch, so that no client can find numbers by trying.
FlashLoop::Served FlashLoop::serve(const FindExtent& what, Answered& answered) {
  if (store_->opens(what.extent, what.access)) {
    store_->note_used(what.extent);
    answer(answered, {{}, *store_->find(what.extent)});
  } else {
    answer(answered,
           {Error(Errc::kNotFound, "no durable extent " + std::to_string(what.extent.value()) +
                                       " with this access number")});
  }
  return Served::kYes;
}

FlashLoop::Served FlashLoop::serve(const ListExtents& what, Answered& answered) {
  FlashAnswer out;
  out.time = time_;
  out.listed = store_->extents(what.after, kListMax + 1);
  if (out.listed.size() > kListMax) {
    out.listed.pop_back();
    out.next = out.listed.back().id;
  }
  if (what.unused_min.count() > 0) {
    std::erase_if(out.listed, [&](const ExtentInfo& one) {
      return one.policy != Policy::kDurable || time_ - one.about.used < what.unused_min;
    });
  }
  answer(answered, std::move(out));
  return Served::kYes;
}

FlashLoop::Served FlashLoop::serve(const ClaimExtents& what, Answered& answered) {
  for (const ExtentId extent : what.extents) store_->claim(extent, what.session);
  answer(answered, {});
  return Served::kYes;
}

FlashLoop::Served FlashLoop::serve(const NoteUsed& what, Answered& answered) {
  for (const ExtentId extent : what.extents) store_->note_used(extent);
  answer(answered, {});
  return Served::kYes;
}

/// Cancels the session's transfers that have not begun.
FlashLoop::Served FlashLoop::serve(const EndSession& what, Answered& answered) {
  const auto queue = transfers_.find(what.session);
  if (queue != transfers_.end()) {
    for (Asked& asked : queue->second) {
      answer(asked.answered, {Error(Errc::kCanceled, "the session ended")});
    }
    transfers_.erase(queue);
  }
  store_->end_session(what.session);
  publish();
  answer(answered, {});
  return Served::kYes;
}

FlashLoop::Served FlashLoop::serve(const FreeExtent& what, Answered& answered) {
  if (free_running_.empty()) return Served::kWaits;
  const OpId op(free_running_.back());
  return keep(store_->submit(FreeOp{op, what.extent}), answered, {{}, 0, true});
}

FlashLoop::Served FlashLoop::serve(const StageBytes& what, Answered& answered) {
  if (free_running_.empty()) return Served::kWaits;
  announce(what.segment);
  TransferOp op = what.op;
  op.op = OpId(free_running_.back());
  return keep(store_->submit(op), answered, {{}, op.memory.size(), false});
}

/// Keeps an operation in its slot until the store has finished it.
FlashLoop::Served FlashLoop::keep(const Result<void>& started, Answered& answered,
                                  Running running) {
  if (!started && started.error().code() == Errc::kBusy) return Served::kWaits;
  if (!started) {
    answer(answered, {started.error()});
    return Served::kYes;
  }
  running.answered = std::exchange(answered, nullptr);
  running_bytes_ += running.bytes;
  running_[free_running_.back()] = std::move(running);
  free_running_.pop_back();
  return Served::kYes;
}

FlashLoop::Served FlashLoop::serve(Asked& asked) {
  return std::visit([&](const auto& what) { return serve(what, asked.answered); }, asked.what);
}

void FlashLoop::take_requests() {
  const std::lock_guard<std::mutex> guard(queue_mutex_);
  for (Asked& asked : requests_) {
    const auto* const stage = std::get_if<StageBytes>(&asked.what);
    auto& queue = stage == nullptr ? waiting_ : transfers_[stage->session];
    queue.push_back(std::move(asked));
  }
  requests_.clear();
}

/// Serves all requests except transfers. A request that has to wait, for example for a path's
/// budget, blocks only its own session.
std::size_t FlashLoop::serve_waiting() {
  std::size_t served = 0;
  std::set<std::uint64_t> waits;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const std::uint64_t session = session_of(next->what);
    if (waits.contains(session) || serve(*next) == Served::kWaits) {
      waits.insert(session);
      ++next;
    } else {
      next = waiting_.erase(next);
      ++served;
    }
  }
  return served;
}

/// Serves one transfer of each session in turn, while the store accepts any.
std::size_t FlashLoop::serve_transfers() {
  std::size_t served = 0;
  std::size_t refused = 0;  // sessions in a row that the store refused; after a full round stop
  while (refused < transfers_.size()) {
    auto turn = transfers_.upper_bound(last_session_);
    if (turn == transfers_.end()) turn = transfers_.begin();
    Asked& next = turn->second.front();
    if (stopping_.load()) {
      answer(next.answered, {closing()});
    } else if (running_bytes_ >= kRunningBytesMax || free_running_.empty()) {
      break;
    } else if (serve(next) == Served::kWaits) {
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
    HO_CHECK(slot < running_.size() && running_[slot].answered != nullptr);
    Running ended = std::exchange(running_[slot], {});
    free_running_.push_back(slot);
    HO_CHECK(running_bytes_ >= ended.bytes);
    running_bytes_ -= ended.bytes;
    if (ended.frees) publish();
    FlashAnswer out;
    switch (const Errc code = done[i].done.code) {
      case Errc::kOk: break;
      case Errc::kCanceled: out.error = Error(code, "the extent's session ended"); break;
      case Errc::kUnavailable:
        out.error = Error(code, "the segment's memory no longer exists");
        break;
      default: out.error = Error(code, store_->describe(done[i].fault));
    }
    answer(ended.answered, std::move(out));
  }
  return count;
}

void FlashLoop::run() {
  const SteadyClock clock;
  running_.resize(kRunningMax);
  for (std::uint32_t i = kRunningMax; i-- > 0;) free_running_.push_back(i);
  for (;;) {
    time_ = wall_time();
    store_->set_time(time_);
    // reap() consumes the wake, so requests pushed before the wake are seen after it. In the other
    // order they could wait until the next wake.
    std::size_t handled = reap() + answer_made();
    take_requests();
    handled += serve_waiting() + serve_transfers();
    const TimePoint now = clock.now();
    if (handled == 0 || now - published_ >= kPublishPeriod) {
      publish();
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
