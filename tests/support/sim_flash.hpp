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

/// What a simulated device does wrong, besides completing operations in any order.
struct SimFlashFaults {
  double io_error = 0;  ///< part of the operations that end with kIo and move nothing or a part
  double no_space = 0;  ///< part of the writes that end with kExhausted
  std::uint64_t dies_after = UINT64_MAX;  ///< operations; then the power is cut
  bool killed = false;                    ///< instead, the process ends alone
};

/// The bytes of one simulated path, which outlive its device as a disk outlives a computer.
///
/// `stable` is what survives a cut for certain; writes that no sync covered are in `loose`, and
/// each of their 512-byte sectors survives or not by itself, in any order, or holds neither.
class SimDisk {
 public:
  explicit SimDisk(std::uint64_t bytes) : stable_(bytes), current_(bytes) {}

  [[nodiscard]] std::uint64_t size() const { return stable_.size(); }
  [[nodiscard]] std::span<std::byte> current() { return current_; }

  void write(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t finished);
  /// A write that the cut caught: it may be there in part.
  void write_cut(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes stable what had finished before `started`.
  void sync(std::uint64_t started);
  void cut(Prng& random);
  /// A new device takes over: what the last one had finished is older than any sync of this one.
  void settle();
  /// From here on a cut leaves some sectors with neither the old nor the new bytes.
  void garble() { garbles_ = true; }
  /// Reads of this block fail until it is written.
  void spoil(std::uint64_t offset) { bad_.insert(offset / flash::kBlockBytes); }
  [[nodiscard]] bool readable(std::uint64_t offset, std::uint64_t bytes) const;
  /// Which run of the machine this is: a cut begins another.
  [[nodiscard]] std::uint64_t boot() const { return boot_; }
  /// Flips one bit, as if the flash had forgotten it.
  void flip(std::uint64_t byte, unsigned bit);

 private:
  struct Loose {
    std::uint64_t offset = 0;
    std::vector<std::byte> bytes;
    std::uint64_t finished = 0;  ///< when; UINT64_MAX: never
  };
  std::vector<std::byte> stable_;
  std::vector<std::byte> current_;
  std::vector<Loose> loose_;
  std::uint64_t boot_ = 1;
  bool garbles_ = false;
  std::set<std::uint64_t> bad_;  ///< blocks
};

/// A device over simulated disks. One seed fixes every order and fault. After the cut every
/// operation ends with kIo, and the disks hold what such a cut leaves.
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
  /// The process ends, the machine goes on: what had completed stays, also where no sync covered
  /// it, and what was under way is there whole, in part or not.
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
