#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/sim_flash.hpp"

namespace ho::test {

/// A simulated device that counts its operations and can delay some for long.
class LateDevice final : public flash::Device {
 public:
  /// Whether to delay an operation.
  using Pick = std::function<bool(const flash::DeviceOp&)>;

  /// @param waits  after this many waits, delayed operations continue and no more are delayed
  LateDevice(std::vector<std::shared_ptr<SimDisk>> disks, Pick pick, int waits)
      : sim_(std::move(disks), 1, {}), pick_(std::move(pick)), waits_(waits) {}
  /// @param late  the number of the operation to delay
  explicit LateDevice(std::vector<std::shared_ptr<SimDisk>> disks, std::uint64_t late = UINT64_MAX,
                      int waits = 2000)
      : LateDevice(
            std::move(disks), [this, late](const auto&) { return submitted_ == late + 1; }, waits) {
  }
  LateDevice(const LateDevice&) = delete;
  LateDevice& operator=(const LateDevice&) = delete;
  ~LateDevice() override {
    if (at_end_) at_end_(*this);
  }

  const std::vector<flash::DevicePath>& paths() const override { return sim_.paths(); }
  const flash::DeviceCaps& caps() const override { return sim_.caps(); }
  Result<void> add_memory(std::span<std::byte> memory) override { return sim_.add_memory(memory); }
  void remove_memory(std::span<std::byte> memory) override { sim_.remove_memory(memory); }
  Result<void> submit(const flash::DeviceOp& op) override {
    ++submitted_;
    ++open_;
    if (!pick_ || !pick_(op)) return sim_.submit(op);
    kept_.push_back(op);
    was_late_ = true;
    return {};
  }
  std::size_t poll(std::span<Completion> out) override {
    const std::size_t count = sim_.poll(out);
    for (const Completion& done : out.first(count)) failed_ += done.code == Errc::kOk ? 0 : 1;
    open_ -= count;
    return count;
  }
  void wait(Duration) override {
    if (!kept_.empty() && --waits_ == 0) end_late();
  }
  void wake() override {}

  /// Continues the delayed operations.
  void end_late() {
    pick_ = nullptr;
    for (const flash::DeviceOp& op : std::exchange(kept_, {})) static_cast<void>(sim_.submit(op));
  }
  /// Called by the destructor.
  void at_end(std::function<void(const LateDevice&)> call) { at_end_ = std::move(call); }
  [[nodiscard]] SimFlash& sim() { return sim_; }
  [[nodiscard]] const std::vector<flash::DeviceOp>& kept() const { return kept_; }
  [[nodiscard]] std::uint64_t open() const { return open_; }
  [[nodiscard]] std::uint64_t submitted() const { return submitted_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }
  [[nodiscard]] bool was_late() const { return was_late_; }

 private:
  SimFlash sim_;
  Pick pick_;
  int waits_;
  std::function<void(const LateDevice&)> at_end_;
  std::vector<flash::DeviceOp> kept_;
  std::uint64_t submitted_ = 0;
  std::uint64_t open_ = 0;  ///< accepted and not returned
  std::uint64_t failed_ = 0;
  bool was_late_ = false;
};

}  // namespace ho::test
