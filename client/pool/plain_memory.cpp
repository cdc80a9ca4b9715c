#include "client/pool/plain_memory.hpp"

#include <chrono>
#include <string>
#include <utility>

#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Other nodes may have room later: other jobs end, and nodes come.
constexpr Duration kAgainAfter = std::chrono::seconds(10);
/// A node that was to take or to give bytes did not answer.
constexpr Duration kSoon = std::chrono::seconds(1);
/// Between two segments the job's transfers begin.
constexpr Duration kPause = std::chrono::milliseconds(1);
constexpr Duration kUntilRung{-1};

}  // namespace

std::shared_ptr<PlainMemory::Allocation> PlainMemory::add(std::unique_ptr<Arena> arena,
                                                          Drained drained) {
  auto made = std::make_shared<Allocation>();
  made->arena = std::move(arena);
  if (drained == Drained::kStays) return made;
  const std::lock_guard guard(mutex_);
  leaving_.push_back(made);
  const auto notices = pool_.notices();
  if (thread_) {
    notices->ring();  // a node may have been drained between the grant and now
  } else {
    thread_.emplace("ho-leave", notices, [this] { return leave_drained(); });
  }
  return made;
}

void PlainMemory::end(const std::shared_ptr<Allocation>& allocation) {
  {
    const std::lock_guard guard(mutex_);
    std::erase(leaving_, allocation);
  }
  const std::lock_guard guard(allocation->mutex);
  pool_.release(std::move(allocation->arena));
}

/// The thread's work. @return as BellThread has it.
Duration PlainMemory::leave_drained() {
  const Notice notice = pool_.notice();
  if (notice.drained + notice.ending == 0) return kUntilRung;
  bool drained = false;
  const auto left = leave_one(drained);
  if (left && *left) {
    segments_ += 1;
    return kPause;
  }
  if (segments_ > 0) {
    log(LogLevel::kInfo, "memory that the job allocated has moved off drained nodes",
        {{"segments", std::to_string(std::exchange(segments_, 0))}});
  }
  if (!drained) return kUntilRung;
  const Errc why = left ? Errc::kOk : left.error().code();
  if (why == Errc::kUnavailable || why == Errc::kDeadline) return kSoon;
  if (!left && std::exchange(told_, notice.changes) != notice.changes) {
    log(LogLevel::kWarning, "memory that the job allocated stays on drained nodes for now",
        {{"why", left.error().message()}});
  }
  pool_.use_new_nodes(TriedNodes::kRest);
  return kAgainAfter;
}

/// Moves a segment of one allocation. @param drained  set where one lies on a drained node.
Result<bool> PlainMemory::leave_one(bool& drained) {
  std::vector<std::shared_ptr<Allocation>> all;
  {
    const std::lock_guard guard(mutex_);
    all = leaving_;
  }
  Result<bool> out = false;
  for (const auto& allocation : all) {
    const std::lock_guard guard(allocation->mutex);
    if (allocation->arena == nullptr || !pool_.on_drained(*allocation->arena)) continue;
    drained = true;
    pool_.engine().wait_unused(&allocation->arena->map);
    auto left = pool_.leave_drained(*allocation->arena, nullptr, [] {});
    if (left && *left) return left;
    if (out) out = std::move(left);
  }
  return out;
}

}  // namespace ho::client
