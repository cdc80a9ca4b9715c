#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "common/base/result.hpp"
#include "proto/control/block_values.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

/// One node's block store, as a job asks it. Calls do not block. Each that starts calls `done`
/// once, on any thread, never within the call. @return kUnavailable, kBusy: nothing started, and
/// `done` is not called.
class BlocksControl {
 public:
  template <typename Value>
  using Answered = std::function<void(Result<Value>)>;

  BlocksControl() = default;
  BlocksControl(const BlocksControl&) = delete;
  BlocksControl& operator=(const BlocksControl&) = delete;
  virtual ~BlocksControl() = default;

  /// The daemon's connection has ended: nothing starts any more.
  [[nodiscard]] virtual bool closed() const = 0;

  // As ControlClient's functions of these names.
  [[nodiscard]] virtual Result<void> attach(const std::vector<SegmentId>& segments,
                                            Answered<std::vector<GrantedSegment>> done) = 0;
  [[nodiscard]] virtual Result<void> locate(std::span<const BlockDigest> keys,
                                            Answered<std::vector<BlockLocation>> done) = 0;
  [[nodiscard]] virtual Result<void> ask(BlocksQuestion question, std::span<const BlockDigest> keys,
                                         Answered<std::vector<bool>> done) = 0;
  [[nodiscard]] virtual Result<void> pin(std::span<const BlockDigest> keys,
                                         std::chrono::milliseconds time,
                                         Answered<BlocksPinned> done) = 0;
  [[nodiscard]] virtual Result<void> reserve(std::span<const BlockWish> wishes,
                                             Answered<std::vector<BlockSlot>> done) = 0;
  [[nodiscard]] virtual Result<void> settle(const BlocksSettlement& settlement,
                                            Answered<std::vector<bool>> done) = 0;
};

}  // namespace ho::client
