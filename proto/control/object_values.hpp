#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/address.hpp"
#include "proto/control/control_values.hpp"

namespace ho {

/// XXH3-128, low and high.
using ObjectChecksum = std::array<std::uint64_t, 2>;

/// Names one part of one version of an object. Two parts with equal names have equal bytes.
struct ObjectPartId {
  std::string name;
  std::uint64_t version = 0;
  std::uint64_t run = 0;  ///< the publishing program
  std::uint32_t part = 0;
};

/// A part as its publisher announces it. The fields are those of ObjectPart in objects.proto.
struct ObjectPart {
  ObjectPartId id;
  std::uint32_t parts = 1;
  ObjectChecksum description{};
  std::vector<SegmentId> segments;
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t manifest_offset_bytes = 0;
  std::uint64_t manifest_bytes = 0;
  ObjectChecksum manifest{};
};

/// Segments that one part may lie in.
inline constexpr std::size_t kObjectSegmentsMax = 4096;
/// Parts that one version may have.
inline constexpr std::uint32_t kObjectPartsMax = 65'536;

/// The part's numbers fit together, in segments of this size.
[[nodiscard]] inline bool is_sound(const ObjectPart& part, std::uint64_t segment_bytes) {
  const std::uint64_t room = part.segments.size() * segment_bytes;
  return part.parts > 0 && part.parts <= kObjectPartsMax && part.id.part < part.parts &&
         !part.segments.empty() && part.segments.size() <= kObjectSegmentsMax &&
         part.offset_bytes <= room && part.length_bytes <= room - part.offset_bytes &&
         part.manifest_bytes <= part.length_bytes &&
         part.manifest_offset_bytes <= part.length_bytes - part.manifest_bytes;
}

/// A part that is kept from being dropped.
struct OpenObjectPart {
  std::uint64_t hold = 0;
  std::vector<GrantedSegment> segments;  ///< those that were asked for
};

/// A part, for people.
struct ObjectInfo {
  std::string name;  ///< "uid 1000/weights"; with a secret "shared/weights"
  std::uint64_t version = 0;
  std::uint64_t run = 0;
  std::uint32_t part = 0;
  std::uint32_t parts = 1;
  std::uint64_t length_bytes = 0;
  SessionId session;
  std::uint32_t readers = 0;
  std::uint64_t age_ms = 0;
};

}  // namespace ho
