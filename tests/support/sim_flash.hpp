#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::test {

/// Faults of a simulated device. It always completes operations in random order.
struct SimFlashFaults {
  double io_error = 0;  ///< fraction of operations that end with kIo and move some or no bytes
  double no_space = 0;  ///< fraction of writes that end with kExhausted
  std::uint64_t dies_after = UINT64_MAX;  ///< number of operations before the power is cut
  bool killed = false;  ///< the process is killed instead; the machine keeps running
};

/// The bytes of one simulated path. Like a disk, they outlive the device that uses them.
///
/// `stable` has the bytes that survive a power cut for certain. `loose` has the writes that no sync
/// covers: at a cut each of their 512-byte sectors survives or not, in any order, or holds neither
/// the old nor the new bytes.
class SimDisk {
 public:
  explicit SimDisk(std::uint64_t bytes) : stable_(bytes), current_(bytes) {}

  [[nodiscard]] std::uint64_t size() const { return stable_.size(); }
  [[nodiscard]] std::span<std::byte> current() { return current_; }

  void write(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t finished);
  /// Applies a write that the cut interrupted: parts of it may survive.
  void write_cut(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes writes stable that had finished before `started`.
  void sync(std::uint64_t started);
  void cut(Prng& random);
  /// Call it when a new device takes over: writes finished before count as older than each of its
  /// syncs.
  void settle();
  /// From now on a cut leaves some sectors with neither the old nor the new bytes.
  void garble() { garbles_ = true; }
  /// Reads of this block fail until it is written.
  void spoil(std::uint64_t offset) { bad_.insert(offset / flash::kBlockBytes); }
  [[nodiscard]] bool readable(std::uint64_t offset, std::uint64_t bytes) const;
  /// Counts the boots of the machine: a power cut starts a new one.
  [[nodiscard]] std::uint64_t boot() const { return boot_; }
  /// Flips one bit, as decaying flash does.
  void flip(std::uint64_t byte, unsigned bit);

 private:
  struct Loose {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
    std::uint64_t finished = 0;  ///< when; UINT64_MAX: not finished
  };
  std::vector<std::byte> stable_;
  std::vector<std::byte> current_;
  std::vector<Loose> loose_;
  std::uint64_t boot_ = 1;
  bool garbles_ = false;
  std::set<std::uint64_t> bad_;  ///< block numbers
};

/// A device over simulated disks. One seed determines the order of operations and all faults. After
/// the cut every operation ends with kIo, and the disks hold what the cut left.
class SimFlash final : public flash::Device {
 public:
  SimFlash(std::vector<std::shared_ptr<SimDisk>> disks, std::uint64_t seed, SimFlashFaults faults);

  const std::vector<flash::DevicePath>& paths() const override { return paths_; }
  const flash::DeviceCaps& caps() const override { return caps_; }
  Result<void> add_memory(std::span<std::byte> memory) override;
  void remove_memory(std::span<std::byte> memory) override;
  Result<void> submit(const flash::DeviceOp& op) override;
  std::size_t poll(std::span<Completion> out) override;
  void wait(Duration time_max) override;
  void wake() override {}

  /// Cuts the power now.
  void cut();
  /// Kills the process while the machine keeps running. Completed operations stay, also without a
  /// sync. Operations in flight survive whole, in part or not at all.
  void kill();
  [[nodiscard]] bool dead() const { return dead_; }
  [[nodiscard]] std::uint64_t operations() const { return operations_; }
  void set_faults(const SimFlashFaults& faults) { faults_ = faults; }

 private:
  struct Pending {
    flash::DeviceOp op;
    std::uint64_t started = 0;
  };
  [[nodiscard]] Errc carry_out(const Pending& pending);

  std::vector<std::shared_ptr<SimDisk>> disks_;
  std::vector<flash::DevicePath> paths_;
  flash::DeviceCaps caps_;
  Prng random_;
  SimFlashFaults faults_;
  std::vector<Pending> pending_;
  std::uint64_t time_ = 0;
  std::uint64_t operations_ = 0;
  bool dead_ = false;
};

}  // namespace ho::test
