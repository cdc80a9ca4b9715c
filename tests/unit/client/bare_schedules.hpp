#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <optional>

#include "client/replay/executor.hpp"

namespace ho::client {

using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::Position;
using schedule::Schedule;

/// A schedule with `positions` bare ops: dependencies are all the executor looks at.
inline Schedule bare(std::uint32_t positions) {
  Schedule made;
  for (std::uint32_t i = 0; i < positions; ++i) {
    schedule::OpInfo info;
    info.id = i;
    made.ops.push_back(info);
    schedule::ScheduledOp op;
    op.op = OpIndex(i);
    made.positions.push_back(op);
  }
  return made;
}

inline CacheOp cache_op(CacheOpKind kind, std::optional<std::uint32_t> after,
                        std::optional<std::uint32_t> before, bool next_step = false) {
  CacheOp op;
  op.kind = kind;
  if (after) op.after_position = Position(*after);
  if (before) op.before_position = Position(*before);
  op.before_next_step = next_step;
  return op;
}

inline CacheOp of_storage(std::uint32_t storage, CacheOp op) {
  op.storage = StorageIndex(storage);
  return op;
}

inline Instance take(Executor& executor) {
  const auto ready = executor.next();
  REQUIRE(ready.has_value());
  return ready->instance;
}

}  // namespace ho::client
