#include "client/blocks/open_blocks.hpp"

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "common/base/log.hpp"

namespace ho::client {

namespace {

constexpr Duration kOpenTimeout = std::chrono::seconds(2);

/// BlocksControl over a node's control connection.
class NodeBlocks final : public BlocksControl {
 public:
  NodeBlocks(const NodeSession& node, std::shared_ptr<ControlClient> client, std::uint32_t store)
      : node_(node), client_(std::move(client)), store_(store) {}

  [[nodiscard]] bool closed() const override { return client_->closed(); }
  [[nodiscard]] Result<void> attach(const std::vector<SegmentId>& segments,
                                    Answered<std::vector<GrantedSegment>> done) override {
    return client_->blocks_attach(node_.session, store_, node_.driver, segments, std::move(done));
  }
  [[nodiscard]] Result<void> locate(std::span<const BlockDigest> keys,
                                    Answered<std::vector<BlockLocation>> done) override {
    return client_->blocks_locate(node_.session, store_, keys, std::move(done));
  }
  [[nodiscard]] Result<void> ask(BlocksQuestion question, std::span<const BlockDigest> keys,
                                 Answered<std::vector<bool>> done) override {
    return client_->blocks_ask(node_.session, store_, question, keys, std::move(done));
  }
  [[nodiscard]] Result<void> pin(std::span<const BlockDigest> keys, std::chrono::milliseconds time,
                                 Answered<BlocksPinned> done) override {
    return client_->blocks_pin(node_.session, store_, keys, time, std::move(done));
  }
  [[nodiscard]] Result<void> reserve(std::span<const BlockWish> wishes,
                                     Answered<std::vector<BlockSlot>> done) override {
    return client_->blocks_reserve(node_.session, store_, wishes, std::move(done));
  }
  [[nodiscard]] Result<void> settle(const BlocksSettlement& settlement,
                                    Answered<std::vector<bool>> done) override {
    return client_->blocks_settle(node_.session, store_, settlement, std::move(done));
  }

 private:
  const NodeSession& node_;
  const std::shared_ptr<ControlClient> client_;  ///< to the daemon that opened the store
  const std::uint32_t store_;
};

using Client = std::shared_ptr<ControlClient>;

/// Opens a tenant's store by one of the node's control connections.
Result<BlocksStore> open_store(Pool& pool, NodeIndex index, const Client& client,
                               const BlocksTenantSpec& spec) {
  const NodeSession& node = pool.nodes()[index.value()];
  const auto store = client->blocks_open(node.session, spec, SteadyClock().now() + kOpenTimeout);
  if (!store) return store.error().at(node.label);
  Engine& engine = pool.engine();
  // Another than at connect time, if the daemon was restarted since.
  const transport::PeerId peer = engine.call([&] { return engine.peer(index); });
  return BlocksStore{peer, std::make_unique<NodeBlocks>(node, client, *store)};
}

/// Opens the stores again at the daemons that follow those of now. A mutex: the thread that opened
/// the blocks, and the one that resumes sessions, may find the same restart.
class Followed {
 public:
  Followed(Pool& pool, Blocks& blocks, BlocksTenantSpec spec, std::map<NodeIndex, Client> opened)
      : pool_(pool), blocks_(blocks), spec_(std::move(spec)), opened_(std::move(opened)) {}

  void look(NodeIndex index) {
    const std::lock_guard lock(mutex_);
    const auto now = pool_.nodes()[index.value()].control();
    if (std::exchange(opened_[index], now) == now) return;
    auto store = open_store(pool_, index, now, spec_);
    if (store) return blocks_.reopened(index, std::move(*store));
    log(LogLevel::kWarning, "the block store of a restarted node cannot be opened",
        {{"reason", store.error().message()}});
    blocks_.reopened(index, {});
  }

 private:
  Pool& pool_;
  Blocks& blocks_;
  const BlocksTenantSpec spec_;
  std::mutex mutex_;
  std::map<NodeIndex, Client> opened_;  ///< at which each store was opened last
};

/// Until the blocks are closed.
void follow(Pool& pool, Blocks& blocks, const BlocksTenantSpec& spec,
            const std::map<NodeIndex, Client>& opened) {
  const auto followed = std::make_shared<Followed>(pool, blocks, spec, opened);
  std::vector<std::uint64_t> listeners;
  for (const auto& [index, client] : opened) {
    listeners.push_back(pool.listen(index, [followed, node = index] { followed->look(node); }));
    followed->look(index);  // it may have been restarted before that
  }
  blocks.set_on_close([&pool, listeners] {
    for (const std::uint64_t listener : listeners) pool.end_listening(listener);
  });
}

}  // namespace

Result<std::shared_ptr<Blocks>> open_blocks(Pool& pool, const BlocksTenantSpec& spec,
                                            std::uint64_t block_bytes_max, Duration deadline) {
  Blocks::Options options;
  options.deadline = deadline;
  Error last(Errc::kUnsupported,
             "no node of the pool has a block store: none has blocks in its configuration");
  std::map<NodeIndex, Client> opened;
  for (std::uint32_t i = 0; i < pool.nodes().size(); ++i) {
    const NodeSession& node = pool.nodes()[i];
    if (node.fault->reason() != FaultReason::kNone) {
      last = Error(Errc::kUnavailable, node.label + " is lost: " + node.fault->words());
      continue;
    }
    auto client = pool.await_control(NodeIndex(i));
    auto store = open_store(pool, NodeIndex(i), client, spec);
    if (!store) {
      if (store.error().code() == Errc::kUnsupported) continue;
      if (store.error().code() == Errc::kInvalidArgument) return store.error();
      last = store.error();
      log(LogLevel::kWarning, "left the block store of a node out",
          {{"node", node.label}, {"reason", store.error().message()}});
      continue;
    }
    if (const auto most = client->hello().segment_bytes; block_bytes_max > most) {
      return Error(Errc::kInvalidArgument, "block_bytes: " + std::to_string(block_bytes_max) +
                                               " is more than a segment of " + node.label + ", " +
                                               std::to_string(most));
    }
    options.nodes.push_back({client->hello().node, NodeIndex(i), pool.driver_of(NodeIndex(i)),
                             node.fault, std::move(*store)});
    opened.emplace(NodeIndex(i), std::move(client));
  }
  if (options.nodes.empty()) return last;
  auto blocks = Blocks::create(pool.engine(), std::move(options));
  if (!blocks) return blocks;
  follow(pool, **blocks, spec, opened);
  return blocks;
}

}  // namespace ho::client
