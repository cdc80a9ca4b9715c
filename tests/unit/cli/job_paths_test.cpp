#include "tools/hyperoffload/job_paths.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace ho::cli {
namespace {

using namespace std::chrono_literals;

constexpr int kNodes = 8;

/// A driver that connects nobody before all nodes are being connected: one after the other, none
/// ever would be.
class Together final : public transport::Transport {
 public:
  explicit Together(std::atomic<int>& waiting) : waiting_(waiting) {}
  [[nodiscard]] const transport::Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<transport::PeerId> connect(const transport::PeerAddress&,
                                                  TimePoint deadline) override {
    waiting_ += 1;
    while (waiting_ < kNodes) {
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
  [[nodiscard]] Result<void> submit(const transport::GetOp&) override { return refusal(); }
  [[nodiscard]] Result<void> submit(const transport::PutOp&) override { return refusal(); }
  std::size_t poll(std::span<Completion>) override { return 0; }

 private:
  static Error refusal() { return Error(Errc::kUnsupported, "only connects"); }
  const transport::Caps caps_;
  std::atomic<int>& waiting_;
};

TEST_CASE("job paths: nodes that are asked at once are tried at once, each within its own time") {
  std::atomic<int> waiting{0};
  const JobPaths paths(*client::parse_allowed("auto"), [&](const std::string&) {
    client::Engine::Driver driver;
    driver.transport = std::make_unique<Together>(waiting);
    return Result<client::Engine::Driver>(std::move(driver));
  });
  HelloReply hello;
  hello.boot_id = "another machine";
  hello.drivers = {{"ucx", "there"}, {"ofi", "there"}};
  std::vector<std::string> found(kNodes);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (std::string& driver : found) {
    threads.emplace_back([&] {
      const auto path = paths.explain(hello, SteadyClock().now() + 10s);
      driver = path ? path->endpoint.driver : path.error().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(found == std::vector<std::string>(kNodes, "ucx"));
  // Where time is short, what has not answered does not reach the node.
  waiting = -kNodes;
  const TimePoint begin = SteadyClock().now();
  const auto path = paths.explain(hello, begin + 100ms);
  REQUIRE(path.ok());
  CHECK(path->endpoint.driver == "ofi");
  CHECK(path->reason.find("ucx: nobody else came") != std::string::npos);
  CHECK(SteadyClock().now() - begin < 1500ms);
}

}  // namespace
}  // namespace ho::cli
