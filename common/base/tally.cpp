#include "common/base/tally.hpp"

#include "common/base/log.hpp"

namespace ho {

/// With the lock. @return whether the cause was not logged for the owner in the last minute.
bool Tally::may_log(const std::string& cause, std::string_view owner) {
  const TimePoint now = clock_.now();
  std::pair key(cause, std::string(owner));
  if (logged_.size() >= kLoggedMax && logged_.count(key) == 0) {
    std::erase_if(logged_, [&](const auto& one) { return now - one.second >= kQuiet; });
    if (logged_.size() >= kLoggedMax) key = {"", ""};
  }
  const auto [at, is_new] = logged_.try_emplace(std::move(key), now);
  if (!is_new && now - at->second < kQuiet) return false;
  at->second = now;
  return true;
}

void Tally::note(std::string_view cause, std::string_view detail, const Who& who) {
  std::uint64_t so_far = 0;
  {
    const std::lock_guard lock(mutex_);
    auto found = causes_.find(cause);
    if (found == causes_.end()) {
      const bool room = causes_.size() + 1 < kCausesMax;
      found = causes_.try_emplace(room ? std::string(cause) : "other").first;
    }
    so_far = ++found->second;
    if (!may_log(found->first, who.owner)) return;
  }
  log(LogLevel::kWarning, what_,
      {{"cause", std::string(cause)},
       {"detail", std::string(detail)},
       {"so_far", std::to_string(so_far)},
       {"peer", std::string(who.peer)},
       {"kind", "refusal"}});
}

std::vector<Tally::Entry> Tally::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> all;
  for (const auto& [cause, count] : causes_) all.push_back({cause, count});
  return all;
}

}  // namespace ho
