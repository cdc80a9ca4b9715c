#pragma once

#include <control.pb.h>

#include "proto/control/object_values.hpp"

// The messages of objects.proto beside their values. For sources that use the generated code, full
// or lite.
namespace ho {

template <typename Body>
void put_object_id(const ObjectPartId& id, Body* to) {
  to->set_name(id.name);
  to->set_version(id.version);
  to->set_run(id.run);
  to->set_part(id.part);
}

template <typename Body>
[[nodiscard]] ObjectPartId take_object_id(const Body& from) {
  return {from.name(), from.version(), from.run(), from.part()};
}

inline void put_object_part(const ObjectPart& part, hyperoffload::v1::ObjectPart* to) {
  put_object_id(part.id, to);
  to->set_parts(part.parts);
  to->set_description_low(part.description[0]);
  to->set_description_high(part.description[1]);
  for (const SegmentId id : part.segments) to->add_segment_ids(id.value());
  to->set_offset(part.offset_bytes);
  to->set_bytes(part.length_bytes);
  to->set_manifest_offset(part.manifest_offset_bytes);
  to->set_manifest_bytes(part.manifest_bytes);
  to->set_manifest_low(part.manifest[0]);
  to->set_manifest_high(part.manifest[1]);
}

/// Not checked: see is_sound().
[[nodiscard]] inline ObjectPart take_object_part(const hyperoffload::v1::ObjectPart& from) {
  ObjectPart out;
  out.id = take_object_id(from);
  out.parts = from.parts();
  out.description = {from.description_low(), from.description_high()};
  for (const std::uint64_t id : from.segment_ids()) out.segments.push_back(SegmentId(id));
  out.offset_bytes = from.offset();
  out.length_bytes = from.bytes();
  out.manifest_offset_bytes = from.manifest_offset();
  out.manifest_bytes = from.manifest_bytes();
  out.manifest = {from.manifest_low(), from.manifest_high()};
  return out;
}

}  // namespace ho
