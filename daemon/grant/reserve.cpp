#include "daemon/grant/reserve.hpp"

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <chrono>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

constexpr Duration kRetry = std::chrono::seconds(1);

}  // namespace

Reserve::Reserve(const Parts& parts, const SegmentMemory::Spec& how)
    : parts_(parts), how_(how), worker_(std::make_unique<asio::thread_pool>(1)) {
  HO_CHECK(!how_.rights && how_.stop != nullptr);
}

Reserve::~Reserve() { stop(); }

void Reserve::stop() {
  stopped_ = true;
  worker_->join();
}

void Reserve::leave() {
  for (auto& [number, one] : ready_) {
    if (one.stored) one.memory.leave();
  }
}

std::vector<std::optional<NumaNode>> Reserve::places() const {
  std::vector<std::optional<NumaNode>> out;
  for (const NumaShare& share : parts_.pool.numa()) out.emplace_back(share.node);
  if (out.empty()) out.emplace_back(std::nullopt);
  return out;
}

std::uint64_t Reserve::ready_bytes(std::optional<NumaNode> place) const {
  const std::lock_guard lock(mutex_);
  return how_.bytes * static_cast<std::uint64_t>(std::count_if(
                          ready_.begin(), ready_.end(),
                          [&](const auto& one) { return one.second.place == place; }));
}

std::int64_t Reserve::missing(std::optional<NumaNode> place) const {
  std::uint64_t capacity = parts_.pool.options().capacity_bytes;
  std::uint64_t granted = parts_.pool.granted_bytes();
  for (const NumaShare& share : parts_.pool.numa()) {
    if (share.node != place) continue;
    capacity = share.capacity_bytes;
    granted = share.granted_bytes;
  }
  return static_cast<std::int64_t>(capacity) -
         static_cast<std::int64_t>(granted + ready_bytes(place));
}

std::uint64_t Reserve::bytes() const {
  const std::lock_guard lock(mutex_);
  return ready_.size() * how_.bytes;
}

void Reserve::adopt(std::vector<Inherited::Reserved> left) {
  const auto known = places();
  for (Inherited::Reserved& one : left) {
    last_number_ = std::max(last_number_, one.number);
    SegmentMemory::AdoptSpec spec;
    spec.bytes = how_.bytes;
    spec.pages = one.huge ? PageKind::kHugetlb2M : how_.otherwise;
    spec.numa = one.place;
    const bool fits =
        std::find(known.begin(), known.end(), one.place) != known.end() && missing(one.place) > 0;
    // It is given back where it does not fit any more, or cannot be mapped.
    auto memory = SegmentMemory::adopt(std::move(one.memory), spec);
    if (!fits || !memory) {
      parts_.keeper.forget_reserved(one.number, one.place);
      continue;
    }
    const std::lock_guard lock(mutex_);
    ready_.emplace(one.number, Ready{std::move(*memory), one.place, true});
  }
}

void Reserve::fill(std::function<void(std::uint64_t)> progress,
                   std::function<void(Result<void>)> filled) {
  progress_ = std::move(progress);
  filled_ = std::move(filled);
  look();
}

void Reserve::report(const Result<void>& outcome) {
  if (const auto told = std::exchange(filled_, nullptr)) told(outcome);
}

std::optional<SegmentMemory> Reserve::take(std::optional<NumaNode> place) {
  std::map<std::uint64_t, Ready>::node_type taken;
  {
    const std::lock_guard lock(mutex_);
    // Stored ones first: the store has room for the grant then.
    auto best = ready_.end();
    for (auto one = ready_.begin(); one != ready_.end(); ++one) {
      if (one->second.place != place) continue;
      if (best == ready_.end() || one->second.stored) best = one;
      if (best->second.stored) break;
    }
    if (best == ready_.end()) return std::nullopt;
    taken = ready_.extract(best);
  }
  if (taken.mapped().stored) parts_.keeper.forget_reserved(taken.key(), place);
  return std::move(taken.mapped().memory);
}

/// One segment at a time: the kernel locks the process's memory map while it makes pages.
void Reserve::look() {
  if (making_ || stopped_ || parts_.pool.draining() || clock_.now() < not_before_) return;
  for (const auto& place : places()) {
    if (missing(place) > 0) return make(place);
  }
  if (short_) log(LogLevel::kInfo, "the reserve of memory is whole again");
  short_ = false;
  report({});
}

void Reserve::drop_surplus() {
  for (const auto& place : places()) {
    if (missing(place) < 0) static_cast<void>(take(place));
  }
}

void Reserve::make(std::optional<NumaNode> place) {
  making_ = true;
  SegmentMemory::Spec spec = how_;
  spec.numa = place;
  const std::uint64_t number = ++last_number_;
  asio::post(*worker_, [this, spec, place, number] {
    auto memory = parts_.maker.make(spec);
    const bool stored = memory && parts_.keeper.put_reserved(number, place, memory->fd()).ok();
    auto shared = std::make_shared<Result<SegmentMemory>>(std::move(memory));
    asio::post(parts_.io, [this, shared, place, stored, number] {
      made(std::move(*shared), place, stored, number);
    });
  });
}

void Reserve::made(Result<SegmentMemory> memory, std::optional<NumaNode> place, bool stored,
                   std::uint64_t number) {
  making_ = false;
  if (memory) {
    {
      const std::lock_guard lock(mutex_);
      ready_.emplace(number, Ready{std::move(*memory), place, stored});
    }
    if (progress_) progress_(bytes());
    return look();
  }
  if (stopped_) return;
  not_before_ = clock_.now() + kRetry;
  const Error error =
      memory.error().at("ddr_reserve: took " + format_bytes(bytes()) + " and " +
                        format_bytes(parts_.pool.granted_bytes()) + " are granted, of " +
                        format_bytes(parts_.pool.options().capacity_bytes));
  if (!short_) {
    log(LogLevel::kWarning, "memory of the pool cannot be reserved now",
        {{"error", error.context()}});
  }
  short_ = true;
  report(error);
}

}  // namespace ho::daemon
