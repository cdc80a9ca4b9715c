// Takes over sessions' memory that an earlier process granted.
#include <utility>

#include "common/base/check.hpp"
#include "daemon/grant/grants.hpp"

namespace ho::daemon {

namespace {

/// In one request to the data thread.
constexpr std::size_t kExposeMax = 256;

}  // namespace

struct Grants::Adoption {
  SessionId session;
  std::vector<Adopted> left;  ///< taken from the end
  std::size_t exposing = 0;   ///< the last of them, under way
  Ended done;
  std::function<void(const Error&)> failed;
};

void Grants::adopt(SessionId session, const std::string& driver, std::vector<Adopted> segments,
                   Ended answer, std::function<void(const Error&)> failed) {
  auto adoption = std::make_shared<Adoption>();
  adoption->session = session;
  adoption->left = std::move(segments);
  adoption->done = std::move(answer);
  adoption->failed = std::move(failed);
  if (driver.empty()) return adopt_some(adoption);
  admit(session, driver, [this, adoption](const Result<std::string>& admitted) {
    if (!admitted) return abandon(adoption, admitted.error());
    adopt_some(adoption);
  });
}

/// Exposes the next run of segments of one driver.
void Grants::adopt_some(const std::shared_ptr<Adoption>& adoption) {
  std::vector<Adopted>& left = adoption->left;
  if (left.empty()) return adoption->done();
  DataLoop::ExposeRequest request;
  request.driver = left.back().driver;
  std::size_t first = left.size();
  while (first > 0 && left[first - 1].driver == request.driver &&
         left.size() - first < kExposeMax) {
    --first;
  }
  adoption->exposing = left.size() - first;
  if (request.driver == kUnexposed) {
    return adopted_some(adoption, std::vector<transport::Exposure>(adoption->exposing));
  }
  for (std::size_t i = first; i < left.size(); ++i) {
    const SegmentMemory& memory = left[i].memory;
    request.regions.push_back({memory.bytes(), left[i].rights, memory.fd(), adoption->session});
  }
  ++jobs_;
  const auto told = [this, adoption](const Result<std::vector<transport::Exposure>>& exposed) {
    HO_CHECK(jobs_ > 0);
    --jobs_;
    if (!exposed) return abandon(adoption, exposed.error());
    adopted_some(adoption, *exposed);
  };
  const auto accepted = data_.expose(std::move(request), posted(told));
  if (!accepted) told(accepted.error());
}

void Grants::adopted_some(const std::shared_ptr<Adoption>& adoption,
                          const std::vector<transport::Exposure>& exposures) {
  std::vector<Adopted>& left = adoption->left;
  HO_CHECK(exposures.size() == adoption->exposing && left.size() >= adoption->exposing);
  const std::size_t first = left.size() - adoption->exposing;
  for (std::size_t i = 0; i < exposures.size(); ++i) {
    Adopted& one = left[first + i];
    // No request has been served yet, so the session is there.
    HO_CHECK(pool_.activate(one.id));
    held_.emplace(one.id, Held{std::move(one.memory), exposures[i].id, exposures[i].key, one.driver,
                               one.rights});
  }
  while (left.size() > first) left.pop_back();
  adopt_some(adoption);
}

Result<void> Grants::keep(SessionId session) {
  const SessionRecord& record = pool_.sessions().at(session);
  std::vector<KeptSegment> segments;
  for (const SegmentId id : record.segments) {
    const auto held = held_.find(id);
    if (held == held_.end()) continue;
    if (auto stored = keeper_.put(id, held->second.memory.fd()); !stored) {
      for (const KeptSegment& one : segments) keeper_.forget(one.id);
      return stored;
    }
    segments.push_back(describe(id, held->second));
  }
  keeper_.opened(KeptSession{record});
  keeper_.granted(segments);
  return {};
}

void Grants::unkeep(SessionId session) {
  keeper_.ended(session);
  for (const SegmentId id : pool_.sessions().at(session).segments) keeper_.forget(id);
}

void Grants::abandon(const std::shared_ptr<Adoption>& adoption, const Error& why) {
  auto memory = std::make_shared<std::vector<SegmentMemory>>();
  std::vector<SegmentId> ids;
  for (Adopted& one : adoption->left) {
    pool_.abandon(one.id);
    keeper_.ended(one.id);
    ids.push_back(one.id);
    memory->push_back(std::move(one.memory));
  }
  wipe(std::move(memory), std::move(ids), [adoption, why] { adoption->failed(why); });
}

}  // namespace ho::daemon
