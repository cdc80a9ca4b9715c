#include "common/transport/tcp/check.hpp"

#include <array>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport::tcp {
namespace {

Admission broken(const char* why) { return {Admission::Verdict::kBroken, {}, why}; }
Admission denied(const char* why) { return {Admission::Verdict::kDenied, {}, why}; }

}  // namespace

bool well_formed(const Hello& hello) {
  return hello.magic == kMagic && hello.version == kVersion && hello.rail < kRailsMax &&
         static_cast<std::size_t>(hello.lane) < kLaneKinds && hello.zero == 0;
}

bool equal_secrets(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  unsigned different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different |= static_cast<unsigned>(a[i] ^ b[i]);
  return different == 0;
}

std::optional<SegmentKey> Segments::add(std::span<std::byte> memory, Rights rights) {
  HO_CHECK(!memory.empty());
  if (free_.empty()) {
    if (entries_.size() == kCountMax) return std::nullopt;
    free_.push_back(static_cast<std::uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const std::uint32_t segment = free_.back();
  free_.pop_back();
  Entry& entry = entries_[segment];
  HO_CHECK(entry.memory.empty());
  entry.memory = memory;
  entry.rights = rights;
  ++entry.generation;
  ++live_;
  return SegmentKey{segment, entry.generation, memory.size(), rights};
}

std::span<std::byte> Segments::remove(std::uint32_t segment, std::uint32_t generation) {
  if (segment >= entries_.size()) return {};
  Entry& entry = entries_[segment];
  if (entry.memory.empty() || entry.generation != generation) return {};
  HO_CHECK(live_ > 0);
  --live_;
  if (entry.generation < UINT32_MAX) free_.push_back(segment);
  return std::exchange(entry.memory, {});
}

Admission Segments::admit(const Request& request) const {
  using Bytes3 = std::array<std::uint8_t, 3>;
  if (request.magic != kMagic || request.zero != Bytes3{}) return broken("not a request");
  if (request.op != OpCode::kGet && request.op != OpCode::kPut) return broken("unknown request");
  if (request.length == 0 || request.length > kLengthMax) return broken("a length out of bounds");
  if (request.segment >= entries_.size()) return denied("unknown segment");
  const Entry& entry = entries_[request.segment];
  // One that is gone and one that never was look the same from outside.
  if (entry.memory.empty() || entry.generation != request.generation) {
    return denied("unknown segment");
  }
  if (request.op == OpCode::kPut && entry.rights != Rights::kReadWrite) {
    return denied("access without the right");
  }
  const std::uint64_t size = entry.memory.size();
  if (request.offset > size || request.length > size - request.offset) {
    return broken("range outside of the segment");
  }
  return {Admission::Verdict::kGranted, entry.memory.subspan(request.offset, request.length), {}};
}

}  // namespace ho::transport::tcp
