#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/generation.hpp"

namespace ho::gpt {

/// Addresses when everything is on the device: weights and all KV blocks of all groups side by
/// side, then the activations of the current pass.
struct ResidentLayout {
  std::map<std::string, std::uint64_t> offset_bytes;  ///< weights and KV blocks, by name
  std::uint64_t activations_bytes = 0;                ///< where activations begin
  std::uint64_t bytes = 0;
};
/// @return as build_pass().
[[nodiscard]] Result<ResidentLayout> resident_layout(const DecoderOptions& options);

/// Keeps everything on the device, without a pool. Plans are compared with it.
class ResidentPasses final : public PassRunner {
 public:
  /// @return as build_pass(); kExhausted if the machine does not have the memory.
  [[nodiscard]] static Result<std::unique_ptr<ResidentPasses>> create(
      const DecoderOptions& options);

  [[nodiscard]] Result<void> run(const Pass& pass, std::span<const std::int32_t> tokens,
                                 StepContext& context) override;
  [[nodiscard]] PassUsage usage() const override { return {.peak_device_bytes = layout_.bytes}; }

 private:
  struct Placed {
    Model model;
    std::vector<std::byte*> address;  ///< by storage
  };

  ResidentPasses(const DecoderOptions& options, ResidentLayout layout, std::unique_ptr<Arena> arena)
      : options_(options), layout_(std::move(layout)), arena_(std::move(arena)) {}
  [[nodiscard]] Result<Placed*> placed(const Pass& pass);

  const DecoderOptions options_;
  const ResidentLayout layout_;
  const std::unique_ptr<Arena> arena_;
  std::map<Pass, Placed> passes_;
};

}  // namespace ho::gpt
