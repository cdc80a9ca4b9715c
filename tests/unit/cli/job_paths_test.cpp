#include "tools/hyperoffload/pool/job_paths.hpp"
#include "common/transport/driver_names.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/client/fake_node.hpp"

namespace ho::cli {
namespace {

using namespace std::chrono_literals;

constexpr int kNodes = 8;

/// What the drivers of one test share.
struct Meeting {
  std::atomic<int> waiting{0};
  std::atomic<TimePoint> last_deadline{};  ///< the last connect() call's
};

/// A driver that connects nobody before all nodes are being connected: one after the other, none
/// ever would be.
class Together final : public transport::Transport {
 public:
  explicit Together(Meeting& meeting) : meeting_(meeting) {}
  [[nodiscard]] const transport::Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<transport::PeerId> connect(const transport::PeerAddress&,
                                                  TimePoint deadline) override {
    meeting_.last_deadline = deadline;
    meeting_.waiting += 1;
    while (meeting_.waiting < kNodes) {
      if (SteadyClock().now() >= deadline) return Error(Errc::kDeadline, "nobody else came");
      std::this_thread::sleep_for(1ms);
    }
    return transport::PeerId(1);
  }
  void close_peer(transport::PeerId) override {}
  [[nodiscard]] Result<transport::RegionId> attach(transport::PeerId,
                                                   transport::RegionGrant) override {
    return refusal();
  }
  void detach(transport::RegionId) override {}
  [[nodiscard]] Result<transport::LocalId> register_memory(std::span<std::byte>) override {
    return refusal();
  }
  void unregister_memory(transport::LocalId) override {}
  [[nodiscard]] Result<void> submit(const transport::MemoryOp&) override { return refusal(); }
  std::size_t poll(std::span<Completion>) override { return 0; }

 private:
  static Error refusal() { return Error(Errc::kUnsupported, "only connects"); }
  const transport::Caps caps_;
  Meeting& meeting_;
};

TEST_CASE("job paths: nodes that are asked at once are tried at once, each within its own time") {
  Meeting meeting;
  const JobPaths paths(*transport::parse_driver_names("auto"), [&](const std::string&) {
    client::Engine::Driver driver;
    driver.transport = std::make_unique<Together>(meeting);
    return Result<client::Engine::Driver>(std::move(driver));
  });
  std::vector<std::string> found(kNodes);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (std::string& driver : found) {
    threads.emplace_back([&] {
      client::FakeNode node({{"ucx"}, {"tcp"}});
      const auto path = paths.explain(node, SteadyClock().now() + 10s);  // 2 s of it for a node
      driver = path ? path->driver : path.error().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(found == std::vector<std::string>(kNodes, "ucx"));
  // Where time is short, what has not answered does not reach the node.
  meeting.waiting = -kNodes;
  const TimePoint soon = SteadyClock().now() + 100ms;
  client::FakeNode node({{"ucx"}, {"tcp"}});
  const auto path = paths.explain(node, soon);
  REQUIRE(path.ok());
  CHECK(path->driver == "tcp");
  CHECK(path->reason.find("ucx: nobody else came") != std::string::npos);
  CHECK(meeting.last_deadline.load() == soon);
}

}  // namespace
}  // namespace ho::cli
