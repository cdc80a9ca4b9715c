#include "tools/hyperoffload/pool/pool_view.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

namespace ho::cli {

namespace {

constexpr std::size_t kThreadsMax = 64;
constexpr std::size_t kNodesNamed = 16;  // in an error

Result<std::unique_ptr<ControlClient>> connect_to(
    const std::string& address, const std::string& tls,
    const std::shared_ptr<const tls::Context>& certificate, TimePoint deadline) {
  ControlClient::Options options;
  options.address = address;
  options.tls_folder = tls;
  options.tls = certificate;
  return ControlClient::connect(std::move(options), deadline);
}

/// The deadline of the next of `left` addresses: a silent address must not use up the time of the
/// others.
TimePoint share_of(TimePoint deadline, std::size_t left) {
  const TimePoint now = SteadyClock().now();
  return now + (deadline - now) / static_cast<std::int64_t>(left);
}

}  // namespace

Result<PoolView> open_pool(const PoolOptions& options, TimePoint deadline) {
  std::optional<Error> last;
  std::string others;  // why the addresses before it do not answer
  const auto failed = [&](const Error& error) {
    if (last) others += "; " + last->message();
    last = error;
  };
  std::shared_ptr<const tls::Context> certificate;
  if (!options.tls.empty()) {
    auto read = tls::Context::load(tls::files_in(options.tls));
    if (read) certificate = std::move(*read);
  }
  std::vector<std::string> addresses;
  std::istringstream list(options.pool);
  for (std::string address; std::getline(list, address, ',');) addresses.push_back(address);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const TimePoint turn_end = share_of(deadline, addresses.size() - i);
    auto client = connect_to(addresses[i], options.tls, certificate, turn_end);
    if (!client) {
      failed(client.error());
      continue;
    }
    auto nodes = (*client)->nodes(turn_end);
    if (!nodes) {
      failed(nodes.error());
      continue;
    }
    return PoolView{std::move(*client), std::move(*nodes), options.tls, certificate};
  }
  if (!last) return Error(Errc::kInvalidArgument, "no address given");
  return Error(last->code(), last->context() + others);
}

Result<const NodeInfo*> find_node(const std::vector<NodeInfo>& nodes, const std::string& name,
                                  const OwnNames& own) {
  const NodeInfo* found = nullptr;
  std::string numbers;  // nodes that have the name
  std::string known;
  std::size_t named = 0;
  for (const NodeInfo& node : nodes) {
    const std::string number = std::to_string(node.node.value());
    if (name == number) return &node;
    const auto itself = own.find(node.node);
    const std::string& own_name = itself == own.end() ? node.name : itself->second;
    if (named++ < kNodesNamed) {
      known += (known.empty() ? "" : ", ") + number + " (" + node.name +
               (own_name == node.name ? ")" : ", " + own_name + ")");
    }
    if (name != node.name && name != own_name) continue;
    found = &node;
    numbers += (numbers.empty() ? "" : ", ") + number;
  }
  if (found == nullptr) {
    return Error(Errc::kInvalidArgument, "the pool has no node " + name + "; it has " + known +
                                             (nodes.size() > kNodesNamed ? ", ..." : ""));
  }
  if (numbers.find(',') == std::string::npos) return found;
  return Error(Errc::kInvalidArgument,
               "several nodes are named " + name + "; write the number of one: " + numbers);
}

Result<std::vector<const NodeInfo*>> find_nodes(const PoolView& pool,
                                                const std::vector<std::string>& names,
                                                TimePoint deadline) {
  OwnNames own;
  if (!std::all_of(names.begin(), names.end(),
                   [&](const std::string& name) { return find_node(pool.nodes, name, {}).ok(); })) {
    for (const auto& one : ask_all<bool>(pool, deadline, [](auto&, auto) { return true; })) {
      if (!one.own_name.empty()) own[one.node.node] = one.own_name;
    }
  }
  std::vector<const NodeInfo*> out;
  for (const std::string& name : names) {
    const auto node = find_node(pool.nodes, name, own);
    if (!node) return node.error();
    out.push_back(*node);
  }
  return out;
}

Result<std::unique_ptr<ControlClient>> connect_node(const PoolView& pool, const NodeInfo& node,
                                                    TimePoint deadline) {
  Error last(Errc::kUnavailable, "the pool gives no address for it");
  std::size_t left = node.control_addresses.size();
  for (const std::string& address : node.control_addresses) {
    auto client = connect_to(address, pool.tls, pool.certificate, share_of(deadline, left--));
    if (!client) {
      last = client.error();
      continue;
    }
    if ((*client)->hello().node == node.node) return client;
    last = Error(Errc::kUnavailable, address + " is another node");
  }
  return last;
}

void for_each_at_once(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < std::min(count, kThreadsMax); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < count; i = next++) work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ho::cli
