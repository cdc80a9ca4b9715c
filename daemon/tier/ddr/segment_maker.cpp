#include "daemon/tier/ddr/segment_maker.hpp"

#include "daemon/tier/ddr/machine_memory.hpp"

namespace ho::daemon {

Result<SegmentMemory> SegmentMaker::make(const SegmentMemory::Spec& spec) {
  // Those are set aside already; all others come from what is free now.
  if (spec.wanted == PageKind::kHugetlb2M) return SegmentMemory::create(spec);
  const std::uint64_t being_made = being_made_bytes_.fetch_add(spec.bytes);
  const auto made = [&]() -> Result<SegmentMemory> {
    const auto free = read_free_memory();
    if (!free) return free.error();
    if (auto room = check_free_memory(being_made + spec.bytes, *free); !room) return room.error();
    return SegmentMemory::create(spec);
  };
  auto result = made();
  being_made_bytes_.fetch_sub(spec.bytes);
  return result;
}

}  // namespace ho::daemon
