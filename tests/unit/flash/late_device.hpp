#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/sim_flash.hpp"

namespace ho::test {

/// A simulated device that counts its operations and can keep one back for long.
class LateDevice final : public flash::Device {
 public:
  /// @param late the number of the operation that is kept back; it ends after so many waits.
  explicit LateDevice(std::vector<std::shared_ptr<SimDisk>> disks, std::uint64_t late = UINT64_MAX,
                      int waits = 2000)
      : sim_(std::move(disks), 1, {}), late_(late), waits_(waits) {}

  const std::vector<flash::DevicePath>& paths() const override { return sim_.paths(); }
  const flash::DeviceCaps& caps() const override { return sim_.caps(); }
  Result<void> add_memory(std::span<std::byte> memory) override { return sim_.add_memory(memory); }
  void remove_memory(std::span<std::byte> memory) override { sim_.remove_memory(memory); }
  Result<void> submit(const flash::DeviceOp& op) override {
    if (submitted_++ != late_) return sim_.submit(op);
    kept_ = op;
    return {};
  }
  std::size_t poll(std::span<Completion> out) override {
    const std::size_t count = sim_.poll(out);
    for (const Completion& done : out.first(count)) failed_ += done.code == Errc::kOk ? 0 : 1;
    return count;
  }
  void wait(Duration) override {
    if (kept_ && --waits_ == 0) end_late();
  }
  void wake() override {}

  /// The operation that was kept back goes on.
  void end_late() {
    if (kept_) static_cast<void>(sim_.submit(*std::exchange(kept_, std::nullopt)));
  }
  [[nodiscard]] std::uint64_t submitted() const { return submitted_; }
  [[nodiscard]] std::uint64_t failed() const { return failed_; }
  [[nodiscard]] bool was_late() const { return submitted_ > late_; }

 private:
  SimFlash sim_;
  std::uint64_t late_;
  int waits_;
  std::optional<flash::DeviceOp> kept_;
  std::uint64_t submitted_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace ho::test
