#include "tests/support/sim_flash.hpp"

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"

namespace ho::test {

namespace {

constexpr std::size_t kSectorBytes = 512;  // a device writes a sector whole or not at all

// memcpy, not std::copy: that becomes memmove, which is slow under AddressSanitizer.
void put(std::vector<std::byte>& disk, std::uint64_t offset, std::span<const std::byte> bytes) {
  HO_CHECK(offset + bytes.size() <= disk.size());
  if (!bytes.empty()) std::memcpy(disk.data() + offset, bytes.data(), bytes.size());
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  std::vector<std::byte> out(bytes.size());
  put(out, 0, bytes);
  return out;
}

}  // namespace

void SimDisk::write(std::uint64_t offset, std::span<const std::byte> bytes,
                    std::uint64_t finished) {
  put(current_, offset, bytes);
  loose_.push_back({offset, copy_of(bytes), finished});
  const std::uint64_t end = (offset + bytes.size()) / flash::kBlockBytes;
  bad_.erase(bad_.lower_bound(offset / flash::kBlockBytes), bad_.lower_bound(end));
}

bool SimDisk::readable(std::uint64_t offset, std::uint64_t bytes) const {
  const auto first = bad_.lower_bound(offset / flash::kBlockBytes);
  return first == bad_.end() || *first * flash::kBlockBytes >= offset + bytes;
}

void SimDisk::write_cut(std::uint64_t offset, std::span<const std::byte> bytes) {
  loose_.push_back({offset, copy_of(bytes), UINT64_MAX});
}

void SimDisk::sync(std::uint64_t started) {
  std::vector<Loose> left;
  for (Loose& write : loose_) {
    if (write.finished >= started) {
      left.push_back(std::move(write));
      continue;
    }
    put(stable_, write.offset, write.bytes);
  }
  loose_ = std::move(left);
}

void SimDisk::cut(Prng& random) {
  for (std::size_t i = loose_.size(); i > 1; --i) std::swap(loose_[i - 1], loose_[random.below(i)]);
  for (const Loose& write : loose_) {
    // The sector survives whole, not at all, or torn.
    const std::uint64_t fate = random.below(3);
    if (fate == 0) continue;
    for (std::size_t at = 0; at < write.bytes.size(); at += kSectorBytes) {
      if (fate == 2 && random.below(2) == 0) continue;
      std::byte* const sector = stable_.data() + write.offset + at;
      std::memcpy(sector, write.bytes.data() + at, kSectorBytes);
      if (fate == 2 && garbles_ && random.below(4) == 0) {
        const std::uint64_t noise = random.next() | 1U;
        std::memcpy(sector + random.below(kSectorBytes / 8) * 8, &noise, sizeof(noise));
      }
    }
  }
  loose_.clear();
  put(current_, 0, stable_);
  ++boot_;
}

void SimDisk::settle() {
  for (Loose& write : loose_) write.finished = 0;
}

void SimDisk::flip(std::uint64_t byte, unsigned bit) {
  const auto mask = static_cast<std::byte>(1U << bit);
  stable_[byte] ^= mask;
  current_[byte] ^= mask;
  for (Loose& write : loose_) {
    const std::uint64_t at = byte - write.offset;
    if (byte >= write.offset && at < write.bytes.size()) write.bytes[at] ^= mask;
  }
}

SimFlash::SimFlash(std::vector<std::shared_ptr<SimDisk>> disks, std::uint64_t seed,
                   SimFlashFaults faults)
    : disks_(std::move(disks)), random_(seed), faults_(faults) {
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    paths_.push_back({"sim" + std::to_string(i), disks_[i]->size()});
  }
  caps_.depth_ops = 8 + static_cast<std::uint32_t>(random_.below(72));
  caps_.memory_alignment = 512;
  caps_.boot = disks_.front()->boot();
  for (auto& disk : disks_) disk->settle();
}

Result<void> SimFlash::add_memory(std::span<std::byte>) { return {}; }
void SimFlash::remove_memory(std::span<std::byte>) {}

Result<void> SimFlash::submit(const flash::DeviceOp& op) {
  HO_CHECK(op.path.value() < disks_.size());
  HO_CHECK(op.offset_bytes % flash::kBlockBytes == 0);
  HO_CHECK(op.memory.size() % flash::kBlockBytes == 0);
  HO_CHECK(op.memory.size() <= flash::kDeviceOpBytesMax);
  HO_CHECK(reinterpret_cast<std::uintptr_t>(op.memory.data()) % caps_.memory_alignment == 0);
  HO_CHECK(op.offset_bytes + op.memory.size() <= paths_[op.path.value()].size_bytes);
  if (pending_.size() >= caps_.depth_ops) return Error(Errc::kBusy, "queue full");
  pending_.push_back({op, ++time_});
  return {};
}

Errc SimFlash::carry_out(const Pending& pending) {
  SimDisk& disk = *disks_[pending.op.path.value()];
  const auto& op = pending.op;
  if (random_.unit() < faults_.io_error) {
    // Some bytes may move before the error.
    if (op.kind == flash::DeviceOpKind::kWrite && random_.below(2) == 0) {
      const std::size_t part = random_.below(op.memory.size() / kSectorBytes) * kSectorBytes;
      disk.write(op.offset_bytes, op.memory.first(part), time_);
    }
    return Errc::kIo;
  }
  switch (op.kind) {
    case flash::DeviceOpKind::kRead: {
      if (!disk.readable(op.offset_bytes, op.memory.size())) return Errc::kIo;
      const auto from = disk.current().subspan(op.offset_bytes, op.memory.size());
      std::memcpy(op.memory.data(), from.data(), from.size());
      return Errc::kOk;
    }
    case flash::DeviceOpKind::kWrite:
      if (random_.unit() < faults_.no_space) return Errc::kExhausted;
      disk.write(op.offset_bytes, op.memory, time_);
      return Errc::kOk;
    case flash::DeviceOpKind::kSync: disk.sync(pending.started); return Errc::kOk;
  }
  return Errc::kIo;
}

std::size_t SimFlash::poll(std::span<Completion> out) {
  std::size_t count = 0;
  // Completes only some operations, so that the seed determines their order.
  while (count < out.size() && !pending_.empty() && (dead_ || random_.below(3) != 0)) {
    const auto at = static_cast<std::ptrdiff_t>(random_.below(pending_.size()));
    const Pending pending = pending_[static_cast<std::size_t>(at)];
    if (!dead_ && operations_ >= faults_.dies_after) faults_.killed ? kill() : cut();
    ++time_;
    const Errc code = dead_ ? Errc::kIo : carry_out(pending);
    if (!dead_) ++operations_;
    pending_.erase(pending_.begin() + at);
    const bool moved = code == Errc::kOk;
    out[count++] = {pending.op.op, code, moved ? pending.op.memory.size() : 0};
  }
  return count;
}

void SimFlash::wait(Duration) {}

void SimFlash::cut() {
  HO_CHECK(!dead_);
  for (const Pending& pending : pending_) {
    if (pending.op.kind != flash::DeviceOpKind::kWrite) continue;
    disks_[pending.op.path.value()]->write_cut(pending.op.offset_bytes, pending.op.memory);
  }
  for (auto& disk : disks_) disk->cut(random_);
  dead_ = true;
}

void SimFlash::kill() {
  HO_CHECK(!dead_);
  for (const Pending& pending : pending_) {
    if (pending.op.kind != flash::DeviceOpKind::kWrite) continue;
    const std::uint64_t fate = random_.below(3);  // the same as at a power cut
    for (std::size_t at = 0; fate != 0 && at < pending.op.memory.size(); at += kSectorBytes) {
      if (fate == 2 && random_.below(2) == 0) continue;
      disks_[pending.op.path.value()]->write(pending.op.offset_bytes + at,
                                             pending.op.memory.subspan(at, kSectorBytes), ++time_);
    }
  }
  dead_ = true;
}

}  // namespace ho::test
