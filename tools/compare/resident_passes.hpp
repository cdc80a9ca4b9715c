#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/generation.hpp"

namespace ho::gpt {

/// Keeps everything on the device, without a pool. Plans are compared with it.
class ResidentPasses final : public PassRunner {
 public:
  /// @return as resident_layout(); kExhausted if the machine does not have the memory.
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
