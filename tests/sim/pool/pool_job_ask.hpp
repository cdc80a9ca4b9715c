#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "tests/sim/pool/pool_job.hpp"

namespace ho::test {

/// As ControlClient: the answer, kUnavailable when the connection closes, kDeadline.
template <typename T>
Result<T> PoolJob::ask(const std::shared_ptr<SimControl>& control, Duration timeout,
                       std::function<void(SimDaemon&, SimReply<T>)> act) {
  if (control->closed) return Error(Errc::kUnavailable, "the connection is closed");
  const auto answer = std::make_shared<std::optional<Result<T>>>();
  world_.send(control, [this, control, answer, act = std::move(act)](SimDaemon& daemon) {
    act(daemon, [this, control, answer](Result<T> result) {
      world_.answer(control, [this, answer, result = std::move(result)] {
        answer->emplace(result);
        wake_all();
      });
    });
  });
  const bool heard = world_.fibers().wait_until(
      [&] { return answer->has_value() || control->closed; }, world_.now() + timeout);
  if (answer->has_value()) return std::move(**answer);
  if (heard) return Error(Errc::kUnavailable, "the connection closed");
  return Error(Errc::kDeadline, "no answer in time");
}

/// As Sessions::ask(): again where the daemon is restarted meanwhile.
template <typename T>
Result<T> PoolJob::ask_node(NodeIndex index, Duration timeout,
                            std::function<void(SimDaemon&, SimReply<T>)> act) {
  Node& node = nodes_[index.value()];
  const auto await = [&] {
    const TimePoint end = world_.now() + kSimResume;
    world_.fibers().wait_until([&] { return !node.control->closed || !node.fault->resumable(); },
                               end);
  };
  await();
  auto answer = ask<T>(node.control, timeout, act);
  for (int i = 0; i < 2 && !answer; ++i) {
    if (answer.error().code() != Errc::kUnavailable || !node.control->closed) break;
    if (!node.fault->resumable()) break;
    await();
    answer = ask<T>(node.control, timeout, act);
  }
  return answer;
}

}  // namespace ho::test
