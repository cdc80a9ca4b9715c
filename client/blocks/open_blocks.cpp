#include "client/blocks/open_blocks.hpp"

#include <utility>

#include "common/base/log.hpp"

namespace ho::client {

namespace {

constexpr Duration kOpenTimeout = std::chrono::seconds(2);

/// BlocksControl over a node's control connection.
class NodeBlocks final : public BlocksControl {
 public:
  NodeBlocks(const NodeSession& node, std::uint32_t store) : node_(node), store_(store) {}

  [[nodiscard]] Result<void> attach(const std::vector<SegmentId>& segments,
                                    Answered<std::vector<GrantedSegment>> done) override {
    return client().blocks_attach(node_.session, store_, node_.driver, segments, std::move(done));
  }
  [[nodiscard]] Result<void> locate(std::span<const BlockDigest> keys,
                                    Answered<std::vector<BlockLocation>> done) override {
    return client().blocks_locate(node_.session, store_, keys, std::move(done));
  }
  [[nodiscard]] Result<void> ask(BlocksQuestion question, std::span<const BlockDigest> keys,
                                 Answered<std::vector<bool>> done) override {
    return client().blocks_ask(node_.session, store_, question, keys, std::move(done));
  }
  [[nodiscard]] Result<void> pin(std::span<const BlockDigest> keys, std::chrono::milliseconds time,
                                 Answered<BlocksPinned> done) override {
    return client().blocks_pin(node_.session, store_, keys, time, std::move(done));
  }
  [[nodiscard]] Result<void> reserve(std::span<const BlockWish> wishes,
                                     Answered<std::vector<BlockSlot>> done) override {
    return client().blocks_reserve(node_.session, store_, wishes, std::move(done));
  }
  [[nodiscard]] Result<void> settle(const BlocksSettlement& settlement,
                                    Answered<std::vector<bool>> done) override {
    return client().blocks_settle(node_.session, store_, settlement, std::move(done));
  }

 private:
  /// The only one that the node has: see set_not_resumable().
  [[nodiscard]] ControlClient& client() const { return *client_; }

  const NodeSession& node_;
  const std::shared_ptr<ControlClient> client_ = node_.control();
  const std::uint32_t store_;
};

}  // namespace

Result<std::shared_ptr<Blocks>> open_blocks(Pool& pool, const BlocksTenantSpec& spec,
                                            Duration deadline) {
  Blocks::Options options;
  options.deadline = deadline;
  Error last(Errc::kUnsupported,
             "no node of the pool has a block store: none has blocks in its configuration");
  for (std::uint32_t i = 0; i < pool.nodes().size(); ++i) {
    const NodeSession& node = pool.nodes()[i];
    if (node.fault->reason() != FaultReason::kNone) continue;
    const auto store =
        node.control()->blocks_open(node.session, spec, SteadyClock().now() + kOpenTimeout);
    if (!store) {
      if (store.error().code() == Errc::kUnsupported) continue;
      if (store.error().code() == Errc::kInvalidArgument) return store.error();
      last = store.error().at(node.label);
      log(LogLevel::kWarning, "left the block store of a node out",
          {{"node", node.label}, {"reason", store.error().message()}});
      continue;
    }
    // Its blocks end with the daemon, so what is attached of them must not be taken for the next
    // one's: the node is lost to this job with its daemon.
    node.fault->set_not_resumable();
    // Nobody else reports a loss from before.
    if (node.control()->closed()) node.fault->report(FaultReason::kConnectionLost);
    // Another than at connect time, if the daemon was restarted since.
    Engine& engine = pool.engine();
    const transport::PeerId peer = engine.call([&] { return engine.peer(NodeIndex(i)); });
    options.nodes.push_back({node.control()->hello().node, NodeIndex(i),
                             pool.driver_of(NodeIndex(i)), peer, node.fault,
                             std::make_unique<NodeBlocks>(node, *store)});
  }
  if (options.nodes.empty()) return last;
  return Blocks::create(pool.engine(), std::move(options));
}

}  // namespace ho::client
