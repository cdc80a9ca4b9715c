#include "client/pool/leavers.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Other nodes may have room later: other jobs end, and nodes come.
constexpr Duration kAgainAfter = std::chrono::seconds(10);
/// The job uses it now, or a node that was to take or to give bytes did not answer.
constexpr Duration kSoon = std::chrono::seconds(1);
/// Pause between two parts, so that the job's transfers can begin.
constexpr Duration kBetweenParts = std::chrono::milliseconds(1);
constexpr Duration kUntilRung{-1};

}  // namespace

void Leavers::add(Leaver& leaver) {
  const std::lock_guard guard(mutex_);
  if (!thread_) thread_.emplace("ho-leave", options_.notices, [this] { return look(); });
  all_.push_back(&leaver);
  options_.notices->ring();  // a node may have been drained between the grant and now
}

void Leavers::remove(Leaver& leaver) {
  std::unique_lock guard(mutex_);
  std::erase(all_, &leaver);
  part_ended_.wait(guard, [&] { return moving_ != &leaver; });
}

/// The thread's work. @return as BellThread has it.
Duration Leavers::look() {
  const Notice notice = options_.notice();
  // Copies that readers have open stay where they were, also once their node is in use again.
  if (notice.drained + notice.ending == 0 && !stays_) return kUntilRung;
  const Look found = leave_one();
  if (found.moved) {
    parts_ += 1;
    return kBetweenParts;
  }
  if (parts_ > 0) {
    log(LogLevel::kInfo, "memory that the job allocated, or published, has moved off drained nodes",
        {{"parts", std::to_string(std::exchange(parts_, 0))}});
  }
  stays_ = found.stays;
  if (!stays_) return kUntilRung;
  const Errc code = found.why ? found.why->code() : Errc::kOk;
  if (code == Errc::kOk || code == Errc::kUnavailable || code == Errc::kDeadline) return kSoon;
  if (std::exchange(told_, notice.changes) != notice.changes) {
    log(LogLevel::kWarning,
        "memory that the job allocated, or published, stays on drained nodes for now",
        {{"why", found.why->message()}});
  }
  options_.use_new_nodes();
  return kAgainAfter;
}

/// Moves a part of one.
Leavers::Look Leavers::leave_one() {
  std::vector<Leaver*> all;
  {
    const std::lock_guard guard(mutex_);
    all = all_;
  }
  Look found;
  for (Leaver* const leaver : all) {
    {
      const std::lock_guard guard(mutex_);
      if (std::find(all_.begin(), all_.end(), leaver) == all_.end()) continue;  // it has ended
      moving_ = leaver;
    }
    const auto left = leaver->leave_drained();
    {
      const std::lock_guard guard(mutex_);
      moving_ = nullptr;
    }
    part_ended_.notify_all();
    if (!left && !found.why) found.why = left.error();
    found.stays = found.stays || !left || *left != Leaver::Left::kNothing;
    found.moved = left && *left == Leaver::Left::kMoved;
    if (found.moved) break;
  }
  return found;
}

}  // namespace ho::client
