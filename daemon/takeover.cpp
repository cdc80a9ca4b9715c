#include "daemon/takeover.hpp"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "daemon/grant/kept_records.hpp"

namespace ho::daemon {

namespace {

/// One takeover; lives until `done` was called.
class Takeover : public std::enable_shared_from_this<Takeover> {
 public:
  Takeover(const Heirs& heirs, Inherited inherited, std::function<void(const TakenOver&)> done)
      : heirs_(heirs), inherited_(std::move(inherited)), done_(std::move(done)) {}

  void begin() {
    const TimePoint now = heirs_.clock.now();
    Kept& kept = inherited_.kept;
    heirs_.pool.skip_ids(kept.node.next_session, kept.node.next_segment);
    for (auto& [id, session] : kept.sessions) {
      session.lease_end =
          lease_end_taken_over(session, kept.alive, now, heirs_.pool.options().lease);
      left_.push_back(session);
    }
    for (const SessionId lost : inherited_.lost) {
      heirs_.pool.note_left_behind(lost);
      ++taken_.lost_sessions;
    }
    kept.alive = now;
    // The same state again: a process that dies meanwhile leaves as much as it found.
    heirs_.keeper.start(kept);
    next();
  }

 private:
  void next() {
    if (left_.empty()) return finish();
    const KeptSession session = std::move(left_.back());
    left_.pop_back();
    std::vector<Grants::Adopted> segments;
    if (auto taken = take(session, segments); !taken) {
      undo(session.id, std::move(segments));
      lose(session.id, taken.error());
      return next();
    }
    const auto count = static_cast<std::uint32_t>(segments.size());
    heirs_.grants.adopt(
        session.id, session.driver, std::move(segments),
        [self = shared_from_this(), count] {
          ++self->taken_.sessions;
          self->taken_.segments += count;
          self->next();
        },
        [self = shared_from_this(), id = session.id](const Error& why) {
          self->heirs_.staging.close_session(id, [] {});
          self->lose(id, why);
          self->next();
        });
  }

  [[nodiscard]] Result<void> check_driver(const std::string& name) const {
    const auto& drivers = heirs_.data.drivers();
    const bool offered = name.empty() || name == Grants::kUnexposed ||
                         std::any_of(drivers.begin(), drivers.end(),
                                     [&](const auto& one) { return one.name == name; });
    if (offered) return {};
    return Error(Errc::kUnsupported, "driver \"" + name + "\" is not offered any more");
  }

  /// Gives a session and its segments to the pool, and maps the segments.
  [[nodiscard]] Result<void> take(const KeptSession& session,
                                  std::vector<Grants::Adopted>& segments) {
    if (auto offered = check_driver(session.driver); !offered) return offered;
    if (auto taken = heirs_.pool.adopt(SessionRecord{session}); !taken) return taken;
    for (const auto& [id, segment] : inherited_.kept.segments) {
      if (segment.session != session.id) continue;
      if (auto offered = check_driver(segment.driver); !offered) return offered;
      if (auto taken = heirs_.pool.adopt(segment_record(segment)); !taken) return taken;
      SegmentMemory::AdoptSpec spec;
      spec.bytes = inherited_.kept.node.segment_bytes;
      spec.pages = segment.pages;
      spec.rights = segment.rights;
      spec.numa = segment.numa;
      const auto fd = inherited_.memory.find(id);
      HO_CHECK(fd != inherited_.memory.end());
      auto memory = SegmentMemory::adopt(std::move(fd->second), spec);
      inherited_.memory.erase(fd);
      if (!memory) return memory.error();
      segments.push_back({id, segment.driver, segment.rights, std::move(*memory)});
    }
    return {};
  }

  /// Takes back what take() has done of a session, and ends the memory that it did not come to.
  void undo(SessionId session, std::vector<Grants::Adopted> segments) {
    segments.clear();
    for (const auto& [id, segment] : inherited_.kept.segments) {
      if (segment.session != session) continue;
      if (const auto fd = inherited_.memory.find(id); fd != inherited_.memory.end()) {
        static_cast<void>(::ftruncate(fd->second.get(), 0) < 0);
        inherited_.memory.erase(fd);
      }
      heirs_.keeper.forget(id);
      if (heirs_.pool.find(id) == nullptr) continue;
      heirs_.pool.abandon(id);
      heirs_.pool.forget(id);
    }
    if (heirs_.pool.sessions().count(session) > 0) {
      HO_CHECK(heirs_.pool.close_session(session).empty());
    }
    heirs_.keeper.ended(session);
  }

  void lose(SessionId session, const Error& why) {
    ++taken_.lost_sessions;
    heirs_.pool.note_left_behind(session);
    log(LogLevel::kError, "a session of the last process is lost",
        {{"session", std::to_string(session.value())}, {"why", why.message()}});
  }

  void finish() {
    HO_CHECK(inherited_.memory.empty());
    if (taken_.sessions + taken_.lost_sessions > 0) {
      log(LogLevel::kInfo, "took over from the last process",
          {{"sessions", std::to_string(taken_.sessions)},
           {"segments", std::to_string(taken_.segments)},
           {"lost_sessions", std::to_string(taken_.lost_sessions)}});
    }
    done_(taken_);
  }

  const Heirs heirs_;
  Inherited inherited_;
  const std::function<void(const TakenOver&)> done_;
  std::vector<KeptSession> left_;
  TakenOver taken_;
};

}  // namespace

void take_over(const Heirs& heirs, Inherited inherited,
               std::function<void(const TakenOver&)> done) {
  std::make_shared<Takeover>(heirs, std::move(inherited), std::move(done))->begin();
}

}  // namespace ho::daemon
