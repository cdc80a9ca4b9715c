#include "daemon/tier/flash/log/path_set.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "daemon/tier/flash/log/blocking_io.hpp"

namespace ho::flash {

namespace {

Result<void> check_set(const std::vector<Volume>& volumes) {
  const Superblock& first = volumes.front().super;
  for (std::size_t i = 0; i < volumes.size(); ++i) {
    const Superblock& super = volumes[i].super;
    if (super.set != first.set) {
      return Error(Errc::kConflict, volumes[i].name + ": belongs to another set of paths than " +
                                        volumes.front().name);
    }
    if (super.path_count != volumes.size()) {
      return Error(Errc::kConflict, volumes[i].name + ": belongs to a set of " +
                                        std::to_string(super.path_count) + " paths; " +
                                        std::to_string(volumes.size()) + " are configured");
    }
    if (super.path_index != i) {
      return Error(Errc::kConflict,
                   volumes[i].name + ": is path " + std::to_string(super.path_index + 1) +
                       " of its set, but is configured as path " + std::to_string(i + 1));
    }
  }
  return {};
}

struct Recovered {
  std::vector<Volume> volumes;
  std::vector<std::string> blank;  ///< names of paths
};

Result<Recovered> recover_all(BlockingIo& io, Findings& findings) {
  Recovered out;
  const auto& paths = io.device().paths();
  for (std::uint16_t i = 0; i < paths.size(); ++i) {
    auto volume = recover(io, PathIndex(i), findings);
    if (volume) {
      out.volumes.push_back(std::move(*volume));
    } else if (volume.error().code() == Errc::kNotFound) {
      out.blank.push_back(paths[i].name);
    } else {
      return volume.error();
    }
  }
  return out;
}

/// Reads all paths as one set. @return none where they are to be formatted.
Result<std::vector<Volume>> read_set(BlockingIo& io, Findings& findings) {
  if (io.device().paths().size() > kPathsMax) {
    return Error(Errc::kInvalidArgument, "more than 64 flash paths");
  }
  auto recovered = recover_all(io, findings);
  if (!recovered) return recovered.error();
  auto& [volumes, blank] = *recovered;
  // An interrupted first start: the pool never had contents, whatever sets exist now.
  const bool unused = std::all_of(volumes.begin(), volumes.end(),
                                  [](const Volume& one) { return one.super.epoch == 1; });
  if (unused && !volumes.empty() && (!blank.empty() || !check_set(volumes))) {
    findings.push_back("an earlier first start was interrupted; all paths are formatted again");
    return std::vector<Volume>();
  }
  if (volumes.empty()) return std::vector<Volume>();
  if (!blank.empty()) {
    return Error(Errc::kConflict, blank.front() + ": is blank, but " + volumes.front().name +
                                      " belongs to a set of " +
                                      std::to_string(volumes.front().super.path_count) + " paths");
  }
  if (auto set = check_set(volumes); !set) return set.error();
  return std::move(volumes);
}

Result<std::vector<Volume>> format_all(BlockingIo& io, const SetId& set, Findings& findings) {
  const auto count = static_cast<std::uint16_t>(io.device().paths().size());
  std::vector<Volume> out;
  for (std::uint16_t i = 0; i < count; ++i) {
    auto made = format(io, PathIndex(i), set, count);
    if (!made) return made.error();
    findings.push_back(made->name + ": blank; formatted");
    out.push_back(std::move(*made));
  }
  return out;
}

bool same(const ExtentInfo& a, const ExtentInfo& b) {
  ExtentAbout about = b.about;
  about.used = a.about.used;  // each path has its own last note
  return a.length_bytes == b.length_bytes && a.about == about;
}

/// All paths must agree about an extent that is on several.
Result<std::map<ExtentId, ExtentInfo>> collect_extents(const std::vector<Volume>& volumes) {
  std::map<ExtentId, ExtentInfo> out;
  for (const Volume& volume : volumes) {
    for (const auto& [id, shard] : volume.table.shards()) {
      const auto [known, is_new] = out.emplace(id, shard.info);
      if (is_new || same(known->second, shard.info)) continue;
      return Error(Errc::kCorrupt, volume.name + ": extent " + std::to_string(id.value()) +
                                       " differs between this path and another");
    }
  }
  return out;
}

/// Drops extents that are not on all of their paths: they were being made or freed when the daemon
/// ended, and were never acknowledged as made.
void drop_incomplete(std::vector<Volume>& volumes, const std::map<ExtentId, ExtentInfo>& extents,
                     Findings& findings) {
  const auto paths = static_cast<std::uint16_t>(volumes.size());
  for (const auto& [id, info] : extents) {
    const Striping striping(id, paths);
    bool whole = true;
    for (Volume& volume : volumes) {
      const bool needed = striping.shard_blocks(volume.path, info.length_bytes) > 0;
      whole = whole && (!needed || volume.table.find(id) != nullptr);
    }
    if (whole) continue;
    findings.push_back("extent " + std::to_string(id.value()) +
                       ": was being made or freed; dropped");
    for (Volume& volume : volumes) {
      const Shard* const shard = volume.table.find(id);
      if (shard == nullptr) continue;
      for (const std::uint32_t block : shard->physical) volume.space.give({block, 1});
      volume.table.shards().erase(id);
    }
  }
}

}  // namespace

Result<std::vector<Volume>> open_path_set(Device& device, const SetId& new_set,
                                          Findings& findings) {
  HO_CHECK(!device.paths().empty());
  BlockingIo io(device);
  auto recovered = read_set(io, findings);
  if (!recovered) return recovered.error();
  std::vector<Volume>& volumes = *recovered;
  if (volumes.empty()) {
    auto made = format_all(io, new_set, findings);
    if (!made) return made.error();
    volumes = std::move(*made);
  }
  // After a kill, what was read here may be only in the device's cache, including the superblock.
  // The new log overwrites the durable one, which a power cut would bring back. So syncs first.
  for (Volume& volume : volumes) {
    if (auto safe = io.sync(volume.path); !safe) return safe.error();
    if (auto repaired = repair_superblocks(io, volume); !repaired) return repaired.error();
  }
  const auto extents = collect_extents(volumes);
  if (!extents) return extents.error();
  drop_incomplete(volumes, *extents, findings);
  return std::move(volumes);
}

Result<void> check_path_set(Device& device) {
  BlockingIo io(device);
  Findings findings;
  const auto read = read_set(io, findings);
  if (!read) return read.error();
  return {};
}

}  // namespace ho::flash
