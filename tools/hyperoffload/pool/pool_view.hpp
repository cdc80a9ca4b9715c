#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/tls/context.hpp"
#include "proto/control/control_client.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

/// One node of a pool and its answer.
template <typename Answer>
struct NodeAnswer {
  NodeInfo node;
  Result<Answer> answer = Error(Errc::kUnavailable, "not asked");
  std::string own_name = {};  ///< what it calls itself; empty: it was not reached
};

/// The nodes of the pool that the first answering address belongs to.
struct PoolView {
  std::unique_ptr<ControlClient> first;
  std::vector<NodeInfo> nodes;  ///< the answering one first
  std::string tls;              ///< as PoolOptions has it
  /// The same, read once for all nodes; null: nothing to read, or a connection says why not.
  std::shared_ptr<const tls::Context> certificate;
};

/// @return the last address's error if none answers, with what the others said.
[[nodiscard]] Result<PoolView> open_pool(const PoolOptions& options, TimePoint deadline);

/// What nodes call themselves. In a static pool others may know them by another name.
using OwnNames = std::map<NodeId, std::string>;

/// Finds a node by its number, else by one of its names. @return kInvalidArgument: no node has it,
/// or several have the name.
[[nodiscard]] Result<const NodeInfo*> find_node(const std::vector<NodeInfo>& nodes,
                                                const std::string& name, const OwnNames& own);
/// The same for several. Asks the nodes for their own names where the pool does not know one.
/// @return the first one's error.
[[nodiscard]] Result<std::vector<const NodeInfo*>> find_nodes(const PoolView& pool,
                                                              const std::vector<std::string>& names,
                                                              TimePoint deadline);

/// Runs `ask` for every node at once, each on a thread and connection of its own (64 at a time).
template <typename Answer>
std::vector<NodeAnswer<Answer>> ask_all(
    const PoolView& pool, TimePoint deadline,
    const std::function<Result<Answer>(ControlClient&, TimePoint)>& ask);

/// Connects to a node by the first of its addresses that answers.
[[nodiscard]] Result<std::unique_ptr<ControlClient>> connect_node(const PoolView& pool,
                                                                  const NodeInfo& node,
                                                                  TimePoint deadline);

/// Calls `work(i)` for i in [0, count) on up to 64 threads. Returns when all are done.
void for_each_at_once(std::size_t count, const std::function<void(std::size_t)>& work);

template <typename Answer>
std::vector<NodeAnswer<Answer>> ask_all(
    const PoolView& pool, TimePoint deadline,
    const std::function<Result<Answer>(ControlClient&, TimePoint)>& ask) {
  std::vector<NodeAnswer<Answer>> answers;
  for (const NodeInfo& node : pool.nodes) {
    answers.push_back({node, Error(Errc::kUnavailable, "not asked")});
  }
  for_each_at_once(answers.size(), [&](std::size_t i) {
    // Reuses the connection unless it is closed: the daemon may have been restarted.
    const auto take = [&](ControlClient& client) {
      answers[i].own_name = client.hello().node_name;
      answers[i].answer = ask(client, deadline);
    };
    if (i == 0 && !pool.first->closed()) return take(*pool.first);
    auto client = connect_node(pool, answers[i].node, deadline);
    if (client) return take(**client);
    answers[i].answer = client.error();
  });
  return answers;
}

}  // namespace ho::cli
