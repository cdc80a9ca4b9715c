#pragma once

#include <control.pb.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/result.hpp"
#include "proto/control/control_values.hpp"

namespace ho {

// Segments that a daemon grants or shares, for both ends of a connection.

template <typename Message>
void put_segment(const GrantedSegment& from, Message* to) {
  to->set_segment_id(from.id.value());
  to->set_bytes(from.length_bytes);
  to->set_key(from.key);
}

/// @return the descriptors that go with the answer, in the order of the segments that have one.
template <typename Message>
[[nodiscard]] std::vector<UniqueFd> put_segments(std::vector<GrantedSegment> from,
                                                 google::protobuf::RepeatedPtrField<Message>* to) {
  std::vector<UniqueFd> descriptors;
  for (GrantedSegment& segment : from) {
    put_segment(segment, to->Add());
    if (segment.fd.valid()) descriptors.push_back(std::move(segment.fd));
  }
  return descriptors;
}

/// @param expects_descriptors  whether each segment comes with one
/// @return kCorrupt where there are more or fewer.
template <typename Message>
[[nodiscard]] Result<std::vector<GrantedSegment>> take_segments(
    const google::protobuf::RepeatedPtrField<Message>& from, std::vector<UniqueFd> descriptors,
    bool expects_descriptors) {
  const auto count = static_cast<std::size_t>(from.size());
  if (descriptors.size() != (expects_descriptors ? count : 0)) {
    return Error(Errc::kCorrupt, std::to_string(descriptors.size()) + " descriptors for " +
                                     std::to_string(count) + " segments");
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
