#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "common/base/check.hpp"
#include "daemon/tier/flash/log/layout.hpp"

namespace ho::test {

/// The contents of a sparse path, and the operations on it.
struct SparseDisk {
  explicit SparseDisk(std::uint64_t bytes) : geometry(*flash::plan_geometry(bytes)) {}
  flash::Geometry geometry;
  std::map<std::uint64_t, std::array<std::byte, flash::kBlockBytes>> blocks;  ///< metadata blocks
  std::uint64_t reads = 0;
  std::uint64_t read_bytes = 0;
};

/// A device with one large path that stores only metadata: written data is dropped and must not be
/// read. Operations end in order at the next poll().
class SparseDevice final : public flash::Device {
 public:
  explicit SparseDevice(std::shared_ptr<SparseDisk> disk) : disk_(std::move(disk)) {
    paths_.push_back({"sparse", disk_->geometry.path_bytes});
    caps_.depth_ops = 64;
  }

  const std::vector<flash::DevicePath>& paths() const override { return paths_; }
  const flash::DeviceCaps& caps() const override { return caps_; }
  Result<void> add_memory(std::span<std::byte>) override { return {}; }
  void remove_memory(std::span<std::byte>) override {}
  Result<void> submit(const flash::DeviceOp& op) override {
    if (pending_.size() >= caps_.depth_ops) return Error(Errc::kBusy, "queue full");
    pending_.push_back(op);
    return {};
  }
  std::size_t poll(std::span<Completion> out) override {
    const std::size_t count = std::min(out.size(), pending_.size());
    for (std::size_t i = 0; i < count; ++i) {
      carry_out(pending_[i]);
      out[i] = {pending_[i].op, Errc::kOk, pending_[i].memory.size()};
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  void wait(Duration) override {}
  void wake() override {}

 private:
  void carry_out(const flash::DeviceOp& op) {
    const auto& geometry = disk_->geometry;
    const std::uint64_t data = geometry.data_offset(0);
    const std::uint64_t end = data + std::uint64_t{geometry.data_blocks} * flash::kBlockBytes;
    const bool metadata = op.offset_bytes + op.memory.size() <= data || op.offset_bytes >= end;
    if (op.kind == flash::DeviceOpKind::kRead) {
      ++disk_->reads;
      disk_->read_bytes += op.memory.size();
    }
    for (std::uint64_t at = 0; at < op.memory.size(); at += flash::kBlockBytes) {
      std::byte* const memory = op.memory.data() + at;
      const std::uint64_t block = (op.offset_bytes + at) / flash::kBlockBytes;
      if (op.kind == flash::DeviceOpKind::kWrite) {
        if (metadata) std::memcpy(disk_->blocks[block].data(), memory, flash::kBlockBytes);
        continue;
      }
      const auto found = disk_->blocks.find(block);
      HO_CHECK(metadata);
      if (found == disk_->blocks.end()) {
        std::memset(memory, 0, flash::kBlockBytes);
      } else {
        std::memcpy(memory, found->second.data(), flash::kBlockBytes);
      }
    }
  }

  std::shared_ptr<SparseDisk> disk_;
  std::vector<flash::DevicePath> paths_;
  flash::DeviceCaps caps_;
  std::vector<flash::DeviceOp> pending_;
};

}  // namespace ho::test
