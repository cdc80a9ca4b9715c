#include "common/base/tally.hpp"

#include "common/base/log.hpp"

namespace ho {

void Tally::note(std::string_view cause, std::string_view detail) {
  std::uint64_t so_far = 0;
  {
    const std::lock_guard lock(mutex_);
    auto found = causes_.find(cause);
    if (found == causes_.end()) {
      const bool room = causes_.size() + 1 < kCausesMax;
      found = causes_.try_emplace(room ? std::string(cause) : "other").first;
    }
    Kept& kept = found->second;
    kept.count += 1;
    const TimePoint now = clock_.now();
    if (kept.count > 1 && now - kept.logged < kQuiet) return;
    kept.logged = now;
    so_far = kept.count;
  }
  log(LogLevel::kWarning, what_,
      {{"cause", std::string(cause)},
       {"detail", std::string(detail)},
       {"so_far", std::to_string(so_far)}});
}

std::vector<Tally::Entry> Tally::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> all;
  for (const auto& [cause, kept] : causes_) all.push_back({cause, kept.count});
  return all;
}

}  // namespace ho
