#include "daemon/grant/staging.hpp"

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <memory>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/system/random.hpp"

namespace ho::daemon {

namespace {

constexpr std::size_t kExtentsPerSessionMax = 65536;
// How often all extents are looked at, and how late the logs may learn that one is in use.
constexpr auto kSweepPeriod = std::chrono::minutes(10);
constexpr auto kNotePeriod = std::chrono::hours(1);
/// A clock that is set by less costs an extent nothing that matters.
constexpr auto kClockStepMin = std::chrono::seconds(10);

Result<void> outcome_of(const flash::FlashAnswer& answer) {
  if (answer.error) return *answer.error;
  return {};
}

bool within(std::uint64_t offset, std::uint64_t length, std::uint64_t limit) {
  return offset <= limit && length <= limit - offset;
}

Error no_such_extent(std::uint64_t extent, SessionId session) {
  return Error(Errc::kNotFound, "extent " + std::to_string(extent) +
                                    " does not belong to session " +
                                    std::to_string(session.value()));
}

}  // namespace

Staging::Staging(Pool& pool, Grants& grants, flash::FlashLoop* flash, asio::io_context& io,
                 Options options)
    : pool_(pool), grants_(grants), flash_(flash), io_(io), options_(std::move(options)) {
  set_unused_max(options_.unused_max);
  if (flash_ == nullptr) return;
  for (const auto& info : flash_->left()) unclaimed_[info.id.value()] = info.length_bytes;
  flash_->listen([this] { asio::post(io_, [this] { collect(); }); });
  grants_.set_before_wipe([this](const auto& segments, std::function<void()> then) {
    before_wipe(segments, std::move(then));
  });
}

Error Staging::no_flash() const {
  return Error(Errc::kUnsupported,
               options_.node_name + " has no flash" +
                   (options_.flash_off.empty() ? "" : ": " + options_.flash_off));
}

/// Answers later, so that nobody who calls is called back.
void Staging::refuse(Error why, Done done) {
  asio::post(io_, [why = std::move(why), done = std::move(done)] { done(why); });
}

Result<void> Staging::ask(flash::FlashRequest request, Answered answered) {
  HO_CHECK(flash_ != nullptr);
  auto pushed = flash_->push(
      std::move(request), [this, answered = std::move(answered)](const flash::FlashAnswer& answer) {
        HO_CHECK(open_ > 0);
        --open_;
        answered(answer);
      });
  if (pushed) ++open_;
  return pushed;
}

void Staging::collect() {
  flash_->deliver();
  let_go();
}

Result<void> Staging::check_room(SessionId session) {
  if (flash_ == nullptr) return no_flash();
  if (auto open = pool_.check_open(); !open) return open.error();
  const SessionExtents& mine = sessions_[session];
  if (mine.extents.size() + mine.asked_for >= kExtentsPerSessionMax) {
    return Error(Errc::kExhausted, "a session has at most " +
                                       std::to_string(kExtentsPerSessionMax) + " flash extents");
  }
  return {};
}

/// Adds an extent that was made or found to the session, which may have ended meanwhile.
void Staging::adopt(SessionId session, std::uint64_t access, const flash::FlashAnswer& answer,
                    const Made& made) {
  const auto mine = sessions_.find(session);
  if (mine == sessions_.end()) return made(Error(Errc::kCanceled, "the session ended meanwhile"));
  HO_CHECK(mine->second.asked_for > 0);
  mine->second.asked_for -= 1;
  if (answer.error) return made(answer.error->at(options_.node_name));
  const std::uint64_t id = answer.extent.id.value();
  mine->second.extents[id] = {answer.extent.length_bytes, answer.extent.policy};
  users_[id].insert(session);
  made(FlashExtent{id, access, answer.extent.length_bytes});
}

void Staging::allocate(SessionId session, const Wanted& wanted, Made made) {
  const auto refused = [made](const Result<void>& why) { made(why.error()); };
  if (auto room = check_room(session); !room) return refuse(room.error(), refused);
  if (wanted.bytes == 0) {
    return refuse(Error(Errc::kInvalidArgument, "the extent has no bytes"), refused);
  }
  flash::ExtentSpec spec;
  const SessionRecord& record = pool_.sessions().at(session);
  spec.session = session.value();
  spec.access = random_u64();
  spec.owner = wanted.owner.empty() ? record.owner : wanted.owner;
  spec.owner_bytes_max = wanted.owner_bytes_max;
  spec.label = record.name;
  spec.policy =
      wanted.policy == FlashPolicy::kDurable ? flash::Policy::kDurable : flash::Policy::kScratch;
  spec.length_bytes = wanted.bytes;
  sessions_[session].asked_for += 1;
  auto asked = ask(flash::CreateExtent{spec},
                   [this, session, access = spec.access, made](const auto& answer) {
                     if (!answer.error && sessions_.count(session) == 0) drop(answer.extent.id);
                     adopt(session, access, answer, made);
                   });
  if (asked) return;
  sessions_[session].asked_for -= 1;
  refuse(asked.error(), refused);
}

/// Frees an extent whose session ended while it was made: a durable extent would stay forever.
void Staging::drop(flash::ExtentId extent) {
  // A scratch extent is already gone, which is fine.
  static_cast<void>(ask(flash::FreeExtent{extent}, [](const auto&) {}));
}

void Staging::open(SessionId session, const FlashExtent& extent, Made made) {
  if (auto room = check_room(session); !room) return made(room.error());
  sessions_[session].asked_for += 1;
  opening_.insert(extent.id);
  const flash::FindExtent find{flash::ExtentId(extent.id), extent.access};
  auto asked = ask(find, [this, session, extent, made](const auto& answer) {
    opening_.erase(opening_.find(extent.id));
    adopt(session, extent.access, answer, made);
  });
  if (asked) return;
  opening_.erase(opening_.find(extent.id));
  sessions_[session].asked_for -= 1;
  made(asked.error());
}

void Staging::free(SessionId session, std::uint64_t extent, Done done) {
  if (flash_ == nullptr) return done(no_flash());
  const auto mine = sessions_.find(session);
  if (mine == sessions_.end() || mine->second.extents.count(extent) == 0) {
    return done(no_such_extent(extent, session));
  }
  if (auto asked = free_extent(extent, done); !asked) return done(asked.error());
  mine->second.extents.erase(extent);
  forget_user(extent, session);
}

void Staging::forget_user(std::uint64_t extent, SessionId session) {
  const auto used = users_.find(extent);
  HO_CHECK(used != users_.end() && used->second.erase(session) == 1);
  if (used->second.empty()) users_.erase(used);
}

bool Staging::in_use(std::uint64_t extent) const {
  return users_.count(extent) > 0 || opening_.count(extent) > 0;
}

Result<void> Staging::free_extent(std::uint64_t extent, Done done) {
  return ask(flash::FreeExtent{flash::ExtentId(extent)},
             [done = std::move(done)](const auto& answer) { done(outcome_of(answer)); });
}

/// Adds to each extent a session that has it open.
Staging::Page Staging::page_of(const flash::FlashAnswer& answer) const {
  Page page;
  page.more = answer.next.has_value();
  for (const flash::ExtentInfo& info : answer.listed) {
    FlashExtentInfo out;
    out.id = info.id.value();
    out.length_bytes = info.length_bytes;
    out.policy =
        info.policy == flash::Policy::kDurable ? FlashPolicy::kDurable : FlashPolicy::kScratch;
    out.owner = info.about.owner;
    out.label = info.about.label;
    out.age = answer.time - info.about.created;
    const auto used = users_.find(out.id);
    if (used != users_.end()) out.session = *used->second.begin();
    if (used == users_.end()) out.unused = answer.time - info.about.used;
    if (expires(info)) out.left = options_.unused_max - out.unused;
    page.extents.push_back(std::move(out));
  }
  return page;
}

void Staging::set_unused_max(std::chrono::seconds unused_max) {
  options_.unused_max = unused_max;
  note_after_ = kNotePeriod;
  if (unused_max.count() > 0) {
    note_after_ = std::clamp(unused_max / 4, std::chrono::seconds(1), note_after_);
  }
  next_sweep_ = TimePoint();
}

bool Staging::expires(const flash::ExtentInfo& info) const {
  return options_.unused_max.count() > 0 && info.policy == flash::Policy::kDurable;
}

/// Looks at one page of extents that were not in use lately, and begins again after kSweepPeriod.
void Staging::tick(TimePoint now) {
  if (!patient_since_) patient_since_ = now;
  if (flash_ == nullptr || pool_.draining() || sweeping_ || now < next_sweep_) return;
  next_sweep_ = now + std::min<Duration>(kSweepPeriod, note_after_);
  const flash::ListExtents unused{sweep_after_, note_after_};
  const auto asked = ask(unused, [this, now](const auto& answer) { sweep(answer, now); });
  sweeping_ = asked.ok();
}

/// Set forward by a mistake, a clock must not make all extents look unused at once.
void Staging::notice_clock(std::chrono::sys_seconds time, TimePoint now) {
  const auto ahead =
      std::chrono::floor<std::chrono::seconds>(time.time_since_epoch() - now.time_since_epoch());
  const auto forward = ahead - clock_ahead_.value_or(ahead);
  clock_ahead_ = ahead;
  if (forward < kClockStepMin) return;
  patient_since_ = now;
  if (options_.unused_max.count() == 0) return;
  log(LogLevel::kWarning, "the clock was set forward; unused flash extents get more time",
      {{"seconds", std::to_string(forward.count())}});
}

void Staging::sweep(const flash::FlashAnswer& answer, TimePoint now) {
  sweeping_ = false;
  notice_clock(answer.time, now);
  // Jobs get time to come back after a restart.
  const bool may_end =
      now - *patient_since_ >= std::min<Duration>(options_.unused_max, kNotePeriod);
  sweep_after_ = answer.next.value_or(flash::ExtentId(0));
  if (answer.next) next_sweep_ = TimePoint();  // the next page with the next tick
  flash::NoteUsed used;
  for (const flash::ExtentInfo& info : answer.listed) {
    if (in_use(info.id.value())) {
      used.extents.push_back(info.id);
    } else if (may_end && expires(info) && answer.time - info.about.used >= options_.unused_max) {
      end_unused(info);
    }
  }
  // Where there is no room for it, the next sweep does it.
  if (!used.extents.empty()) static_cast<void>(ask(std::move(used), [](const auto&) {}));
}

void Staging::end_unused(const flash::ExtentInfo& info) {
  const auto done = [info](const Result<void>& freed) {
    log(freed ? LogLevel::kInfo : LogLevel::kWarning,
        freed ? "freed a flash extent that was not used" : "an unused flash extent was not freed",
        {{"extent", std::to_string(info.id.value())},
         {"bytes", format_bytes(info.length_bytes)},
         {"owner", info.about.owner},
         {"label", info.about.label},
         {"error", freed ? "" : freed.error().message()}});
  };
  static_cast<void>(free_extent(info.id.value(), done));
}

void Staging::list(std::uint64_t after, Listed listed) {
  if (flash_ == nullptr) return listed(no_flash());
  auto asked = ask(flash::ListExtents{flash::ExtentId(after)},
                   [this, listed](const auto& answer) { listed(page_of(answer)); });
  if (!asked) listed(asked.error());
}

/// A session that opens the extent later gets kNotFound.
void Staging::erase(std::uint64_t extent, Done done) {
  if (flash_ == nullptr) return done(no_flash());
  const std::string name = "extent " + std::to_string(extent);
  if (const auto used = users_.find(extent); used != users_.end()) {
    return done(Error(Errc::kConflict, name + " is in use by session " +
                                           std::to_string(used->second.begin()->value())));
  }
  if (in_use(extent)) return done(Error(Errc::kConflict, name + " is being opened"));
  if (auto asked = free_extent(extent, done); !asked) done(asked.error());
}

/// @return the memory of the segment.
Result<std::span<std::byte>> Staging::check_stage(SessionId session, const StageSpec& spec) {
  if (flash_ == nullptr) return no_flash();
  if (spec.length_bytes == 0 || spec.length_bytes > kStageBytesMax) {
    return Error(Errc::kInvalidArgument,
                 "the stage request has " + std::to_string(spec.length_bytes) +
                     " bytes; the limit is " + std::to_string(kStageBytesMax));
  }
  const auto mine = sessions_.find(session);
  if (mine == sessions_.end()) return no_such_extent(spec.extent, session);
  const auto extent = mine->second.extents.find(spec.extent);
  if (extent == mine->second.extents.end()) return no_such_extent(spec.extent, session);
  if (!within(spec.extent_offset_bytes, spec.length_bytes, extent->second.length_bytes)) {
    return Error(Errc::kOutOfRange, "the range exceeds extent " + std::to_string(spec.extent) +
                                        " of " + std::to_string(extent->second.length_bytes) +
                                        " bytes");
  }
  const SegmentRecord* const record = pool_.find(spec.segment);
  const auto live = grants_.memory(spec.segment);
  if (record == nullptr || record->session != session ||
      record->state != SegmentRecord::State::kLive || !live) {
    return Error(Errc::kNotFound, "segment " + std::to_string(spec.segment.value()) +
                                      " is not a live segment of session " +
                                      std::to_string(session.value()));
  }
  if (!within(spec.segment_offset_bytes, spec.length_bytes, live->bytes.size())) {
    return Error(Errc::kOutOfRange, "the range exceeds segment " +
                                        std::to_string(spec.segment.value()) + " of " +
                                        std::to_string(live->bytes.size()) + " bytes");
  }
  if (spec.direction == StageDirection::kIn && live->rights == transport::Rights::kRead) {
    return Error(Errc::kPermissionDenied,
                 "segment " + std::to_string(spec.segment.value()) + " was granted read-only");
  }
  if (mine->second.stages >= kStagesPerSessionMax) {
    return Error(Errc::kBusy, "more than " + std::to_string(kStagesPerSessionMax) +
                                  " stage requests of one session");
  }
  return live->bytes;
}

void Staging::stage(SessionId session, const StageSpec& spec, Done ended) {
  Done done = [this, spec, ended = std::move(ended),
               begun = SteadyClock().now()](const Result<void>& result) {
    transport::TrafficWay& way =
        spec.direction == StageDirection::kIn ? traffic_.get : traffic_.put;
    way.ops.add();
    (result ? way.bytes : way.errors).add(result ? spec.length_bytes : 1);
    way.latency.note(SteadyClock().now() - begun);
    ended(result);
  };
  auto memory = check_stage(session, spec);
  if (!memory) return refuse(memory.error(), std::move(done));
  flash::StageBytes stage;
  stage.session = session.value();
  stage.segment = *memory;
  stage.op.direction = spec.direction;
  stage.op.extent = flash::ExtentId(spec.extent);
  stage.op.offset_bytes = spec.extent_offset_bytes;
  stage.op.memory = memory->subspan(spec.segment_offset_bytes, spec.length_bytes);
  auto asked = ask(stage, [this, session, segment = spec.segment, done](const auto& answer) {
    HO_CHECK(used_.at(segment).stages > 0);
    used_.at(segment).stages -= 1;
    if (const auto mine = sessions_.find(session); mine != sessions_.end()) {
      HO_CHECK(mine->second.stages > 0);
      mine->second.stages -= 1;
    }
    done(answer.error ? answer.error->at(options_.node_name) : Result<void>());
  });
  if (!asked) return refuse(asked.error(), std::move(done));
  sessions_[session].stages += 1;
  Used& used = used_[spec.segment];
  used.bytes = *memory;
  used.stages += 1;
}

std::string Staging::leave(const std::set<flash::ExtentId>& extents) {
  HO_CHECK(flash_ != nullptr);
  return flash_->leave(extents);
}

std::vector<std::uint64_t> Staging::claim(SessionId session,
                                          const std::vector<std::uint64_t>& extents,
                                          std::uint64_t length_bytes) {
  std::vector<std::uint64_t> missing;
  flash::ClaimExtents claim;
  claim.session = session.value();
  for (const std::uint64_t id : extents) {
    const auto left = unclaimed_.find(id);
    if (left == unclaimed_.end() || left->second != length_bytes) {
      missing.push_back(id);
      continue;
    }
    unclaimed_.erase(left);
    sessions_[session].extents[id] = {length_bytes, flash::Policy::kScratch};
    users_[id].insert(session);
    claim.extents.push_back(flash::ExtentId(id));
  }
  if (claim.extents.empty()) return missing;
  HO_CHECK(ask(std::move(claim), [](const auto&) {}).ok());  // it is never refused
  return missing;
}

void Staging::free_unclaimed() {
  for (const auto& [id, length_bytes] : std::exchange(unclaimed_, {})) {
    static_cast<void>(free_extent(id, [](const auto&) {}));
  }
}

std::uint64_t Staging::scratch_bytes(SessionId session) const {
  const auto mine = sessions_.find(session);
  std::uint64_t bytes = 0;
  if (mine == sessions_.end()) return bytes;
  for (const auto& [id, open] : mine->second.extents) {
    if (open.policy == flash::Policy::kScratch) bytes += open.length_bytes;
  }
  return bytes;
}

void Staging::close_session(SessionId session, Grants::Ended answer) {
  const auto mine = sessions_.find(session);
  if (mine == sessions_.end()) return grants_.close_session(session, std::move(answer));
  flash::NoteUsed used;
  for (const auto& [extent, open] : mine->second.extents) {
    forget_user(extent, session);
    used.extents.push_back(flash::ExtentId(extent));
  }
  if (!used.extents.empty()) static_cast<void>(ask(std::move(used), [](const auto&) {}));
  sessions_.erase(mine);
  auto left = std::make_shared<int>(2);
  const auto one_done = [left, answer = std::move(answer)] {
    if (--*left == 0) answer();
  };
  auto asked = ask(flash::EndSession{session.value()}, [one_done](const auto&) { one_done(); });
  grants_.close_session(session, one_done);
  if (!asked) one_done();  // the flash thread has ended, and all scratch extents with it
}

void Staging::before_wipe(const std::vector<SegmentId>& segments, std::function<void()> then) {
  Ending ending;
  for (const SegmentId segment : segments) {
    if (used_.count(segment) > 0) ending.segments.push_back(segment);
  }
  if (ending.segments.empty()) return then();
  ending.then = std::move(then);
  endings_.push_back(std::move(ending));
  let_go();
}

bool Staging::in_use(const Ending& ending) const {
  return std::any_of(ending.segments.begin(), ending.segments.end(),
                     [&](SegmentId segment) { return used_.at(segment).stages > 0; });
}

/// Releases segments whose last transfer has ended.
void Staging::let_go() {
  const auto first = std::stable_partition(endings_.begin(), endings_.end(),
                                           [&](const Ending& one) { return in_use(one); });
  std::vector<Ending> over(std::make_move_iterator(first), std::make_move_iterator(endings_.end()));
  endings_.erase(first, endings_.end());
  for (const Ending& ending : over) forget(ending);
}

/// The kernel pins pages that are registered for I/O, so the flash thread unregisters them first.
void Staging::forget(const Ending& ending) {
  auto left = std::make_shared<std::size_t>(ending.segments.size());
  const auto one_done = [left, then = ending.then] {
    if (--*left == 0) then();
  };
  for (const SegmentId segment : ending.segments) {
    const flash::ForgetSegment request{used_.at(segment).bytes};
    used_.erase(segment);
    if (!ask(request, [one_done](const auto&) { one_done(); })) one_done();
  }
}

}  // namespace ho::daemon
