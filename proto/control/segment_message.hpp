#pragma once

#include <control.pb.h>

#include <utility>
#include <vector>

#include "common/base/result.hpp"
#include "proto/control/control_values.hpp"

namespace ho {

// Segments that a daemon shares, for both ends of a connection.

using SharedSegments = google::protobuf::RepeatedPtrField<hyperoffload::v1::SharedSegment>;

/// @return the descriptors that go with the answer, in the order of the segments that have one.
[[nodiscard]] inline std::vector<UniqueFd> put_segments(std::vector<GrantedSegment> from,
                                                        SharedSegments* to) {
  std::vector<UniqueFd> descriptors;
  for (GrantedSegment& segment : from) {
    auto* const out = to->Add();
    out->set_segment_id(segment.id.value());
    out->set_bytes(segment.length_bytes);
    out->set_key(segment.key);
    if (segment.fd.valid()) descriptors.push_back(std::move(segment.fd));
  }
  return descriptors;
}

/// @param expects_descriptors  whether each segment comes with one
/// @return kCorrupt where there are more or fewer.
[[nodiscard]] inline Result<std::vector<GrantedSegment>> take_segments(
    const SharedSegments& from, std::vector<UniqueFd> descriptors, bool expects_descriptors) {
  const auto count = static_cast<std::size_t>(from.size());
  if (expects_descriptors && descriptors.size() != count) {
    return Error(Errc::kCorrupt, "not one descriptor for each segment");
  }
  std::vector<GrantedSegment> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& each = from.Get(static_cast<int>(i));
    out[i].id = SegmentId(each.segment_id());
    out[i].length_bytes = each.bytes();
    out[i].key = each.key();
    if (expects_descriptors) out[i].fd = std::move(descriptors[i]);
  }
  return out;
}

}  // namespace ho
