#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "client/transfer/mover.hpp"
#include "client/transfer/ticks.hpp"

namespace ho::client {

/// Whether the transfer thread looks at everything by itself, or sleeps until its bell rings.
enum class Awake : std::uint8_t { kYes, kNo };

/// How the transfer thread names a node and what it answered, in messages.
struct NodeWords {
  std::string label;  ///< as EngineNode::label
  std::string said;   ///< the node's own words for a failed stage; else empty
};

/// Why a node refuses a transfer that it allowed before. What it says of the session itself comes
/// by another connection, and may come later.
inline constexpr std::string_view kTakenBack =
    "it has taken the memory back, since the job's lease lapsed or an administrator ended the "
    "session";

/// Something that keeps the transfer thread in work beside plain transfers: the plan that a runtime
/// runs. Every call comes from the transfer thread, between attach and detach.
class TransferSource {
 public:
  virtual ~TransferSource() = default;

  /// Takes in what its job did and starts what became ready. @return whether anything happened.
  virtual bool feed(Mover& mover, const TickClock& clock) = 0;
  /// A transfer of its own ended; `words` are of done.node, filled where done.code is an error.
  virtual void transfer_done(Mover& mover, const TransferDone& done, const NodeWords& words,
                             std::uint64_t now_ticks) = 0;
  /// The pool has one more node: the next NodeIndex. @param label  as EngineNode::label.
  virtual void add_node(const std::string& label) = 0;
  /// It has bytes on this node.
  [[nodiscard]] virtual bool uses(NodeIndex node) const = 0;
  /// Stops it: the first reason stays. @param node  the lost one, whose tensors the message names.
  virtual void fail(const std::string& what, std::optional<NodeIndex> node) = 0;
  /// Nothing is in flight anywhere: fails it where its job waits for what can never come.
  virtual void fail_if_stuck() = 0;
  /// Before the thread sleeps, and after it woke: its job must know when to ring.
  virtual void announce_wake(Awake awake) = 0;
  /// Starts nothing more, and has the mover send nothing more. @return whether none of its
  /// transfers is in flight.
  [[nodiscard]] virtual bool cancel(Mover& mover) = 0;
};

}  // namespace ho::client
