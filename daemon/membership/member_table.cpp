#include "daemon/membership/member_table.hpp"

#include <utility>

namespace ho::daemon {

void MemberTable::read(const BookVersion& version, std::vector<Member> members, TimePoint now) {
  const bool replaced = version.cluster != last_.cluster || version.revision < last_.revision;
  std::map<NodeId, Entry> fresh;
  for (Member& member : members) {
    const NodeId node = member.info.node;
    fresh.insert_or_assign(node, Entry{std::move(member), std::nullopt});
  }
  for (auto& [node, entry] : members_) {
    if (replaced && !entry.gone_at) entry.gone_at = now + grace_;
    if (entry.gone_at && now < *entry.gone_at) fresh.try_emplace(node, std::move(entry));
  }
  members_ = std::move(fresh);
  last_ = version;
  news_ = false;
}

void MemberTable::tick(TimePoint now) {
  std::erase_if(members_,
                [&](const auto& one) { return one.second.gone_at && now >= *one.second.gone_at; });
}

void MemberTable::fail(const Error& error, TimePoint now) {
  if (trouble_.empty()) trouble_since_ = now;
  trouble_ = error.message();
}

std::vector<NodeInfo> MemberTable::others(NodeId self) const {
  std::vector<NodeInfo> out;
  for (const auto& [node, entry] : members_) {
    if (node != self) out.push_back(entry.member.info);
  }
  return out;
}

}  // namespace ho::daemon
