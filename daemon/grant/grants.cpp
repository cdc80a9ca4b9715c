#include "daemon/grant/grants.hpp"

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "proto/control/control_values.hpp"

namespace ho::daemon {

namespace {

constexpr std::size_t kJobsMax = 256;
// Two, so that a small grant does not have to wait for a large one.
constexpr std::size_t kMakers = 2;

}  // namespace

struct Grants::Job {
  Spec spec;
  Made answer;
  std::vector<SegmentId> segments;
  std::shared_ptr<std::vector<SegmentMemory>> memory;
  bool keep = false;            ///< the session is to outlive this process
  std::optional<Error> unkept;  ///< why it cannot
};

Grants::Grants(Pool& pool, DataLoop& data, asio::io_context& io, PagePlan pages, Keeper& keeper)
    : pool_(pool),
      data_(data),
      io_(io),
      pages_(pages),
      keeper_(keeper),
      makers_(std::make_unique<asio::thread_pool>(kMakers)),
      wiper_(std::make_unique<asio::thread_pool>(1)) {}

Grants::~Grants() { stop(); }

void Grants::stop() {
  give_up();
  if (reserve_) reserve_->stop();
  makers_->join();
  wiper_->join();
}

PageKind Grants::page_kind(SegmentId segment) const {
  const auto found = held_.find(segment);
  return found == held_.end() ? pages_.kind : found->second.memory.page_kind();
}

std::optional<NumaNode> Grants::numa_node(SegmentId segment) const {
  const auto found = held_.find(segment);
  return found == held_.end() ? std::nullopt : found->second.memory.numa_node();
}

std::optional<Grants::Live> Grants::memory(SegmentId segment) const {
  const auto found = held_.find(segment);
  if (found == held_.end()) return std::nullopt;
  return Live{found->second.memory.bytes(), found->second.rights};
}

void Grants::post(std::function<void()> task) { asio::post(io_, std::move(task)); }

void Grants::admit(SessionId session, const std::string& driver, Admitted answer) {
  ++jobs_;
  const auto told = [this, session, driver, answer](const Result<std::string>& admitted) {
    HO_CHECK(jobs_ > 0);
    --jobs_;
    // The session may have ended meanwhile and been dismissed.
    if (admitted && pool_.sessions().count(session) > 0) admitted_[session] = {driver, *admitted};
    answer(admitted);
  };
  const SessionRecord& record = pool_.sessions().at(session);
  const transport::Credentials credentials{session, record.token, record.certificate,
                                           share_of_(record.owner)};
  const auto accepted = data_.admit(driver, credentials, posted(told));
  if (!accepted) told(accepted.error());
}

void Grants::fence(SessionId session, const transport::RailFence& rail, Fenced answer) {
  const auto admitted = admitted_.find(session);
  if (admitted == admitted_.end()) {
    return answer(Error(Errc::kConflict, "the session's driver has no rails"));
  }
  ++jobs_;
  const auto told = [this, session, answer](const Result<std::string>& fenced) {
    HO_CHECK(jobs_ > 0);
    --jobs_;
    const auto still = admitted_.find(session);
    if (fenced && !fenced->empty() && still != admitted_.end()) still->second.address = *fenced;
    answer(fenced);
  };
  const auto accepted = data_.fence(admitted->second.driver, session, rail, posted(told));
  if (!accepted) told(accepted.error());
}

Result<void> Grants::check_driver(SessionId session, const std::string& driver) const {
  const auto admitted = admitted_.find(session);
  if (driver == "local" || (admitted != admitted_.end() && admitted->second.driver == driver))
    return {};
  return Error(Errc::kConflict, "the session was not opened for the driver " + driver);
}

void Grants::make(const Spec& spec, Made answer) {
  const std::uint64_t segment_bytes = pool_.options().segment_bytes;
  const std::uint64_t most = segments_per_grant_max(spec.driver);
  const std::uint64_t wanted = spec.bytes / segment_bytes + (spec.bytes % segment_bytes != 0);
  if (jobs_ >= kJobsMax) return answer(Error(Errc::kBusy, "too many grants are being made"));
  if (spec.driver != kUnexposed) {
    if (auto may = check_driver(spec.session, spec.driver); !may) return answer(may.error());
  }
  // A request that the pool can never satisfy gets that error first, however large it is.
  if (wanted > most && spec.bytes <= pool_.options().capacity_bytes - pool_.granted_bytes()) {
    return answer(Error(
        Errc::kInvalidArgument,
        std::to_string(wanted) + " segments in one request; the limit is " + std::to_string(most)));
  }
  auto segments = pool_.reserve(spec.session, spec.bytes, spec.driver, spec.near);
  if (!segments) return answer(segments.error());
  auto job = std::make_shared<Job>();
  job->spec = spec;
  job->answer = std::move(answer);
  job->segments = std::move(*segments);
  job->keep = keeper_.keeps(spec.session);
  ++jobs_;
  Places places;
  for (const SegmentId id : job->segments) places.push_back(pool_.find(id)->numa);
  asio::post(*makers_, [this, job, places] {
    auto made = make_memory(places, job->spec.rights);
    if (!made) {
      asio::post(io_, [this, job, error = made.error()] { fail(job, error); });
      return;
    }
    job->memory = std::make_shared<std::vector<SegmentMemory>>(std::move(*made));
    if (auto stored = store(*job); !stored) job->unkept = stored.error();
    asio::post(io_, [this, job] { expose(job); });
  });
}

SegmentMemory::Spec Grants::segment_spec() const {
  SegmentMemory::Spec spec;
  spec.bytes = pool_.options().segment_bytes;
  spec.wanted = pages_.kind;
  spec.fallback = pages_.fallback;
  spec.otherwise = pages_.otherwise;
  spec.stop = &giving_up_;
  return spec;
}

/// On a worker.
Result<std::vector<SegmentMemory>> Grants::make_memory(const Places& places,
                                                       transport::Rights rights) {
  SegmentMemory::Spec spec = segment_spec();
  spec.rights = rights;
  std::vector<SegmentMemory> made;
  made.reserve(places.size());
  for (const auto& place : places) {
    if (auto ready = reserve_ ? reserve_->take(place) : std::nullopt) {
      if (auto sealed = ready->seal(rights); !sealed) return sealed.error();
      made.push_back(std::move(*ready));
      continue;
    }
    spec.numa = place;
    auto memory = maker_.make(spec);
    if (!memory) return memory.error();
    made.push_back(std::move(*memory));
  }
  return made;
}

void Grants::reserve(std::vector<Inherited::Reserved> left,
                     std::function<void(std::uint64_t)> progress,
                     std::function<void(Result<void>)> filled) {
  HO_CHECK(!reserve_);
  SegmentMemory::Spec spec = segment_spec();
  spec.rights.reset();
  reserve_ = std::make_unique<Reserve>(Reserve::Parts{pool_, maker_, keeper_, io_}, spec);
  reserve_->adopt(std::move(left));
  reserve_->fill(std::move(progress), std::move(filled));
}

void Grants::tick() {
  if (!reserve_) return;
  if (jobs_ == 0) reserve_->drop_surplus();
  reserve_->look();
}

/// On a worker: sending to systemd may take a while.
Result<void> Grants::store(const Job& job) {
  if (!job.keep) return {};
  for (std::size_t i = 0; i < job.segments.size(); ++i) {
    if (auto stored = keeper_.put(job.segments[i], (*job.memory)[i].fd()); !stored) return stored;
  }
  return {};
}

KeptSegment Grants::describe(SegmentId segment, const Held& held) const {
  const SegmentRecord& record = *pool_.find(segment);
  KeptSegment out;
  out.id = segment;
  out.session = record.session;
  out.offset_bytes = record.offset_bytes;
  out.driver = held.driver;
  out.rights = held.rights;
  out.pages = held.memory.page_kind();
  out.share = record.numa;
  out.numa = held.memory.numa_node();
  // The descriptor is open. On a failure the next process finds another file.
  static_cast<void>(describe_file(held.memory.fd(), out));
  return out;
}

const Grants::Admission* Grants::admission(SessionId session) const {
  const auto found = admitted_.find(session);
  return found == admitted_.end() ? nullptr : &found->second;
}

const std::string& Grants::key(SegmentId segment) const { return held_.at(segment).key; }

void Grants::leave() {
  const Kept* const kept = keeper_.kept();
  for (auto& [id, held] : held_) {
    if (kept != nullptr && kept->segments.count(id) > 0) held.memory.leave();
  }
  if (reserve_) reserve_->leave();
}

void Grants::expose(const std::shared_ptr<Job>& job) {
  if (job->spec.driver == kUnexposed) {
    return hand_out(job, std::vector<transport::Exposure>(job->segments.size()));
  }
  DataLoop::ExposeRequest request;
  request.driver = job->spec.driver;
  for (const SegmentMemory& memory : *job->memory) {
    request.regions.push_back({memory.bytes(), job->spec.rights, memory.fd(), job->spec.session});
  }
  const auto told = [this, job](const Result<std::vector<transport::Exposure>>& exposed) {
    if (!exposed) return fail(job, exposed.error());
    fault_in_mappings(job, *exposed);
  };
  const auto accepted = data_.expose(std::move(request), posted(told));
  if (!accepted) told(accepted.error());
}

/// Faults in a driver's own mapping of existing pages. This is cheap compared with making the
/// pages, but the data thread would otherwise fault on each page at its first transfer.
void Grants::fault_in_mappings(const std::shared_ptr<Job>& job,
                               std::vector<transport::Exposure> exposures) {
  HO_CHECK(!exposures.empty());
  if (exposures.front().mapping.empty()) return hand_out(job, std::move(exposures));
  asio::post(*makers_, [this, job, exposures = std::move(exposures)]() mutable {
    const Touch touch = job->spec.rights == transport::Rights::kRead ? Touch::kRead : Touch::kWrite;
    for (const auto& exposure : exposures) {
      // Optional: later transfers fault in the pages that fail here.
      static_cast<void>(fault_in(exposure.mapping, touch, &giving_up_));
    }
    asio::post(io_, [this, job, exposures = std::move(exposures)]() mutable {
      hand_out(job, std::move(exposures));
    });
  });
}

void Grants::hand_out(const std::shared_ptr<Job>& job, std::vector<transport::Exposure> exposures) {
  HO_CHECK(exposures.size() == job->segments.size());
  std::vector<GrantedSegment> out;
  std::optional<Error> failure;
  for (std::size_t i = 0; i < exposures.size(); ++i) {
    const SegmentId id = job->segments[i];
    if (!pool_.activate(id)) failure = Error(Errc::kNotFound, "the session ended meanwhile");
    SegmentMemory& memory = (*job->memory)[i];
    note_place(id, memory);
    GrantedSegment segment;
    segment.id = id;
    segment.length_bytes = memory.bytes().size();
    segment.key = exposures[i].key;
    if (job->spec.driver == "local") {
      auto fd = memory.descriptor(job->spec.rights);
      if (fd) segment.fd = std::move(*fd);
      if (!fd) failure = fd.error();
    }
    out.push_back(std::move(segment));
    held_.emplace(id, Held{std::move(memory), exposures[i].id, exposures[i].key, job->spec.driver,
                           job->spec.rights});
  }
  HO_CHECK(jobs_ > 0);
  --jobs_;
  if (!failure) {
    // Before the answer: a client finds all memory again that it knows of.
    std::vector<KeptSegment> records;
    for (const SegmentId id : job->segments) records.push_back(describe(id, held_.at(id)));
    if (job->unkept) keeper_.give_up(job->spec.session, *job->unkept);
    keeper_.granted(records);
    return job->answer(std::move(out));
  }
  const bool session_lives = pool_.sessions().count(job->spec.session) == 1;
  if (session_lives) HO_CHECK(pool_.release(job->spec.session, job->segments).ok());
  end(job->segments, [job, error = *failure] { job->answer(error); });
}

/// At most once a second: a job may ask again and again.
void Grants::log_failure(const Spec& spec, const Error& error) {
  const TimePoint now = SteadyClock().now();
  if (failure_logged_ && now - *failure_logged_ < std::chrono::seconds(1)) return;
  failure_logged_ = now;
  log(LogLevel::kWarning, "a grant failed",
      {{"session", std::to_string(spec.session.value())},
       {"bytes", format_bytes(spec.bytes)},
       {"driver", spec.driver},
       {"error", error.message()}});
}

/// Not a failure, but the job is slower than it could be while it has this memory.
void Grants::note_place(SegmentId segment, const SegmentMemory& memory) {
  const auto meant = pool_.find(segment)->numa;
  const auto found = memory.numa_node();
  if (misplaced_ || !meant || !found || found == meant) return;
  misplaced_ = true;
  log(LogLevel::kWarning, "memory is on another NUMA node than preferred; logged once",
      {{"meant", std::to_string(meant->value())}, {"found", std::to_string(found->value())}});
}

void Grants::fail(const std::shared_ptr<Job>& job, const Error& error) {
  log_failure(job->spec, error);
  for (const SegmentId id : job->segments) pool_.abandon(id);
  auto memory = job->memory ? job->memory : std::make_shared<std::vector<SegmentMemory>>();
  job->memory.reset();
  HO_CHECK(jobs_ > 0);
  --jobs_;
  wipe(std::move(memory), job->segments, [job, error] { job->answer(error); });
}

void Grants::end(const std::vector<SegmentId>& segments, Ended answer) {
  const bool sharing = std::any_of(segments.begin(), segments.end(),
                                   [this](SegmentId id) { return held_.at(id).sharing > 0; });
  if (sharing) {
    ++jobs_;
    endings_.push_back({segments, std::move(answer)});
    return;
  }
  std::map<std::string, DataLoop::RevokeRequest> by_driver;
  auto memory = std::make_shared<std::vector<SegmentMemory>>();
  for (const SegmentId id : segments) {
    const auto found = held_.find(id);
    HO_CHECK(found != held_.end());
    keeper_.ended(id);
    const auto revoke = [&](const std::string& driver, transport::ExposureId exposure) {
      auto& request = by_driver[driver];
      request.driver = driver;
      request.exposures.push_back(exposure);
    };
    if (found->second.driver != kUnexposed) revoke(found->second.driver, found->second.exposure);
    for (const Share& share : found->second.shares) revoke(share.driver, share.exposure.id);
    memory->push_back(std::move(found->second.memory));
    held_.erase(found);
  }
  if (segments.empty()) return answer();
  ++jobs_;
  const auto revoked = [this, memory, segments, answer = std::move(answer)] {
    const auto unused = [this, memory, segments, answer] {
      --jobs_;
      wipe(memory, segments, answer);
    };
    if (before_wipe_) return before_wipe_(segments, unused);
    unused();
  };
  if (by_driver.empty()) return revoked();
  auto left = std::make_shared<std::size_t>(by_driver.size());
  for (auto& [driver, request] : by_driver) {
    data_.revoke(std::move(request), [this, left, revoked] {
      asio::post(io_, [left, revoked] {
        if (--*left == 0) revoked();
      });
    });
  }
}

void Grants::wipe(std::shared_ptr<std::vector<SegmentMemory>> memory,
                  std::vector<SegmentId> segments, Ended answer) {
  ++jobs_;
  asio::post(*wiper_, [this, memory = std::move(memory), segments = std::move(segments),
                       answer = std::move(answer)]() mutable {
    for (const SegmentId id : segments) keeper_.forget(id);
    memory->clear();  // unmapped, truncated, closed
    asio::post(io_, [this, segments = std::move(segments), answer = std::move(answer)] {
      for (const SegmentId id : segments) pool_.forget(id);
      --jobs_;
      answer();
      tick();
    });
  });
}

void Grants::close_session(SessionId session, Ended answer) {
  admitted_.erase(session);
  end_shares(session);
  keeper_.ended(session);
  end(pool_.close_session(session), std::move(answer));
  data_.dismiss(session);  // after the revokes that end() has queued
}

}  // namespace ho::daemon
