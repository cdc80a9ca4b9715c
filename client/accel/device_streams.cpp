#include "client/accel/device_streams.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

constexpr std::array<Lane, kLanes> kAllLanes = {Lane::kJob, Lane::kIn, Lane::kOut};
/// How often a job that is far ahead of its device looks for a mark that has ended.
constexpr auto kLookAgain = std::chrono::microseconds(50);

}  // namespace

Result<std::unique_ptr<DeviceStreams>> DeviceStreams::create(std::unique_ptr<Accel> accel) {
  std::unique_ptr<DeviceStreams> made(new DeviceStreams(std::move(accel)));
  for (const Lane lane : kAllLanes) {
    const std::size_t count = lane == Lane::kJob ? kJobMarksMax : kCopiesMax;
    for (std::size_t i = 0; i < count; ++i) {
      auto event = made->accel_->make_event();
      if (!event) return event.error();
      made->marks(lane).free.push_back(*event);
    }
  }
  return made;
}

DeviceStreams::~DeviceStreams() {
  HO_CHECK(pinned_.empty());
  HO_CHECK(idle());
}

Error DeviceStreams::keep(const Error& error) {
  if (!failure_) failure_ = error;
  return *failure_;
}

/// Takes out what has ended. @return whether anything has.
bool DeviceStreams::look(Lane lane) {
  Marks& known = marks(lane);
  bool any = false;
  while (!failure_ && !known.queued.empty()) {
    const auto happened = accel_->happened(known.queued.front().event);
    if (!happened) {
      failure_ = happened.error();
      return true;
    }
    if (!*happened) break;
    known.ended = known.queued.front().number;
    known.free.push_back(known.queued.front().event);
    known.queued.pop_front();
    any = true;
  }
  return any;
}

/// A mark for all that is queued in the lane; an event is free.
Result<void> DeviceStreams::mark(Lane lane, std::uint64_t number) {
  Marks& known = marks(lane);
  HO_CHECK(number > known.last && !known.free.empty());
  const AccelEvent event = known.free.back();
  if (auto ok = accel_->record(event, lane); !ok) return keep(ok.error());
  known.free.pop_back();
  known.queued.push_back({number, event});
  known.last = number;
  return {};
}

/// The lane goes on after `after`. Each number is waited for once in a lane.
Result<void> DeviceStreams::hold(Lane lane, const DeviceOrder& after) {
  for (const Lane other : kAllLanes) {
    const Marks& theirs = marks(other);
    const std::uint64_t number = after[other];
    std::uint64_t& held = marks(lane).held[other];
    if (other == lane || number <= theirs.ended || number <= held) continue;
    const auto at =
        std::lower_bound(theirs.queued.begin(), theirs.queued.end(), number,
                         [](const Mark& mark, std::uint64_t n) { return mark.number < n; });
    // The device would not wait for a mark that is not recorded yet.
    HO_CHECK(at != theirs.queued.end());
    if (auto ok = accel_->wait(lane, at->event); !ok) return keep(ok.error());
    held = at->number;
  }
  return {};
}

Result<void> DeviceStreams::mark_job(std::uint64_t number) {
  for (;;) {
    {
      const std::lock_guard guard(mutex_);
      if (marks(Lane::kJob).free.empty()) look(Lane::kJob);
      if (failure_) return *failure_;
      if (!marks(Lane::kJob).free.empty()) return mark(Lane::kJob, number);
    }
    std::this_thread::sleep_for(kLookAgain);
  }
}

std::uint64_t DeviceStreams::next_job_mark() const {
  const std::lock_guard guard(mutex_);
  return marks(Lane::kJob).last + 1;
}

Result<void> DeviceStreams::hold_job(const DeviceOrder& after) {
  const std::lock_guard guard(mutex_);
  if (failure_) return *failure_;
  return hold(Lane::kJob, after);
}

DeviceOrder DeviceStreams::everything() const {
  const std::lock_guard guard(mutex_);
  DeviceOrder all;
  for (const Lane lane : kAllLanes) all[lane] = marks(lane).last;
  return all;
}

Result<std::uint64_t> DeviceStreams::copy(const AccelCopy& copy, const DeviceOrder& after) {
  HO_CHECK(copy.lane != Lane::kJob && copy.bytes > 0 && copy.bytes <= kCopyBytesMax);
  const std::lock_guard guard(mutex_);
  if (failure_) return *failure_;
  Marks& own = marks(copy.lane);
  HO_CHECK(!own.free.empty());
  if (auto ok = hold(copy.lane, after); !ok) return ok.error();
  if (auto ok = accel_->copy(copy); !ok) return keep(ok.error());
  if (auto ok = mark(copy.lane, own.last + 1); !ok) return ok.error();
  return own.last;
}

bool DeviceStreams::has_room(Lane lane) const {
  const std::lock_guard guard(mutex_);
  return failure_ || !marks(lane).free.empty();
}

bool DeviceStreams::poll() {
  const std::lock_guard guard(mutex_);
  bool any = false;
  for (const Lane lane : kAllLanes) any = look(lane) || any;
  const bool moves = !marks(Lane::kIn).queued.empty() || !marks(Lane::kOut).queued.empty();
  if (!lost_.empty() && (!moves || failure_)) unpin_lost();
  news_ += any ? 1 : 0;
  return any;
}

bool DeviceStreams::ended(const DeviceOrder& order) const {
  const std::lock_guard guard(mutex_);
  return std::all_of(kAllLanes.begin(), kAllLanes.end(),
                     [&](Lane lane) { return order[lane] <= marks(lane).ended; });
}

bool DeviceStreams::idle() const {
  const std::lock_guard guard(mutex_);
  return failure_ || (marks(Lane::kIn).queued.empty() && marks(Lane::kOut).queued.empty());
}

void DeviceStreams::lose(std::uint32_t node) {
  const std::lock_guard guard(mutex_);
  if (!failure_) lost_.push_back(node);  // a device that has failed unpins nothing
}

void DeviceStreams::unpin_lost() {
  std::erase_if(pinned_, [&](const Pinned& pinned) {
    const bool lost = std::find(lost_.begin(), lost_.end(), pinned.node) != lost_.end();
    if (lost) accel_->unpin(pinned.memory);
    return lost;
  });
  lost_.clear();
}

std::optional<Error> DeviceStreams::failure() const {
  const std::lock_guard guard(mutex_);
  return failure_;
}

Result<void> DeviceStreams::pin(std::span<std::byte> memory, std::uint32_t node) {
  if (auto ok = accel_->pin(memory); !ok) return ok;
  const std::lock_guard guard(mutex_);
  pinned_.push_back({memory, node});
  return {};
}

void DeviceStreams::unpin(std::span<std::byte> memory) {
  const std::lock_guard guard(mutex_);
  const auto is_it = [&](const Pinned& pinned) { return pinned.memory.data() == memory.data(); };
  const auto at = std::find_if(pinned_.begin(), pinned_.end(), is_it);
  if (at == pinned_.end()) return;
  accel_->unpin(at->memory);
  pinned_.erase(at);
}

}  // namespace ho::client
