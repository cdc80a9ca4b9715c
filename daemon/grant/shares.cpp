// Access to the segments of one session for others.
#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "daemon/grant/grants.hpp"

namespace ho::daemon {

namespace {

transport::Rights lesser(transport::Rights a, transport::Rights b) {
  return a == transport::Rights::kRead ? a : b;
}

}  // namespace

void Grants::share(const ShareSpec& spec, Made answer) {
  if (auto may = check_driver(spec.session, spec.driver); !may) return answer(may.error());
  if (spec.segments.size() > segments_per_grant_max(spec.driver)) {
    return answer(Error(Errc::kInvalidArgument, "too many segments in one request"));
  }
  Sharing sharing{spec.session, spec.driver, spec.rights, {}, std::move(answer)};
  std::vector<SegmentId> fresh;
  DataLoop::ExposeRequest request;
  request.driver = spec.driver;
  for (const SegmentId id : spec.segments) {
    const auto held = held_.find(id);
    const SegmentRecord* const record = pool_.find(id);
    const bool live = record != nullptr && record->state == SegmentRecord::State::kLive;
    const auto& listed = sharing.segments;
    if (held == held_.end() || !live) continue;
    if (std::count(listed.begin(), listed.end(), id) > 0) continue;
    sharing.segments.push_back(id);
    const auto& shares = held->second.shares;
    const bool known = std::any_of(shares.begin(), shares.end(),
                                   [&](const Share& one) { return sharing.is(one); });
    if (known) continue;
    fresh.push_back(id);
    const SegmentMemory& memory = held->second.memory;
    request.regions.push_back(
        {memory.bytes(), lesser(spec.rights, held->second.rights), memory.fd(), spec.session});
  }
  if (fresh.empty()) return hand_out(sharing);
  for (const SegmentId id : fresh) held_.at(id).sharing += 1;
  ++jobs_;
  const auto told = [this, sharing, fresh](const Result<std::vector<transport::Exposure>>& all) {
    end_sharing(sharing, fresh, all);
  };
  const auto accepted = data_.expose(std::move(request), posted(told));
  if (!accepted) told(accepted.error());
}

/// Takes over what the data thread exposed. Ends that waited for it go on.
void Grants::end_sharing(const Sharing& sharing, const std::vector<SegmentId>& fresh,
                         const Result<std::vector<transport::Exposure>>& exposed) {
  HO_CHECK(jobs_ > 0);
  --jobs_;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    Held& held = held_.at(fresh[i]);  // its end waited
    HO_CHECK(held.sharing > 0);
    held.sharing -= 1;
    if (exposed) {
      held.shares.push_back({sharing.session, sharing.driver, sharing.rights, (*exposed)[i]});
    }
  }
  const bool lives = pool_.sessions().count(sharing.session) > 0;
  if (!lives) end_shares(sharing.session);
  if (!exposed) {
    sharing.answer(exposed.error());
  } else if (!lives) {
    sharing.answer(Error(Errc::kNotFound, "the session ended meanwhile"));
  } else {
    hand_out(sharing);
  }
  for (Ending& ending : std::exchange(endings_, {})) {
    --jobs_;
    end(ending.segments, std::move(ending.answer));
  }
}

void Grants::hand_out(const Sharing& sharing) {
  std::vector<GrantedSegment> out;
  for (const SegmentId id : sharing.segments) {
    const auto found = held_.find(id);
    if (found == held_.end()) continue;  // it ended while others of the request were exposed
    const Held& held = found->second;
    const auto share = std::find_if(held.shares.begin(), held.shares.end(),
                                    [&](const Share& one) { return sharing.is(one); });
    if (share == held.shares.end() && held.sharing > 0) {
      return sharing.answer(Error(Errc::kBusy, "another request is making the same share"));
    }
    if (share == held.shares.end()) continue;
    GrantedSegment segment;
    segment.id = id;
    segment.length_bytes = held.memory.bytes().size();
    segment.key = share->exposure.key;
    if (sharing.driver == "local") {
      auto descriptor = held.memory.descriptor(lesser(sharing.rights, held.rights));
      if (!descriptor) return sharing.answer(descriptor.error());
      segment.fd = std::move(*descriptor);
    }
    out.push_back(std::move(segment));
  }
  sharing.answer(std::move(out));
}

/// Revokes what was shared with a session.
void Grants::end_shares(SessionId session) {
  for (auto& [id, held] : held_) {
    for (auto share = held.shares.begin(); share != held.shares.end();) {
      if (share->session != session) {
        ++share;
        continue;
      }
      DataLoop::RevokeRequest request;
      request.driver = share->driver;
      request.exposures.push_back(share->exposure.id);
      data_.revoke(std::move(request), [] {});
      share = held.shares.erase(share);
    }
  }
}

}  // namespace ho::daemon
