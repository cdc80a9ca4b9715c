#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::DaemonProcess;
using test::filled;
using test::StagingClient;

constexpr auto kIn = StageDirection::kIn;
constexpr auto kOut = StageDirection::kOut;

/// A daemon with one flash file.
struct FlashNode {
  explicit FlashNode(std::uint64_t bytes = 16 * kMiB, std::string more_config = "")
      : more(std::move(more_config)) {
    test::make_file(path, bytes);
    why_not = test::no_flash_here(path);
    if (why_not.empty()) start();
  }
  void start() {
    const std::string tag = "daemon" + std::to_string(starts++);
    const std::string config = test::with_flash(folder, path) + more;
    daemon.emplace(folder, tag, DaemonProcess::Spec{config, {}, false});
  }
  [[nodiscard]] std::string address() const { return test::unix_address(folder); }

  test::TempFolder folder;
  std::string path = folder.file("flash");
  std::string more;
  std::string why_not;
  std::optional<DaemonProcess> daemon;
  int starts = 0;
};

#define SKIP_WITHOUT_FLASH(node)      \
  if (!(node).why_not.empty()) {      \
    ::ho::test::skip((node).why_not); \
    return;                           \
  }

}  // namespace

TEST_CASE("stage: what is staged out comes back in, at any offset and length") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  const FlashExtent extent = client.allocate(3 * kMiB + 123, FlashPolicy::kScratch);
  struct Range {
    std::uint64_t extent_offset, segment_offset, bytes;
  };
  std::uint64_t seed = 1;
  for (const Range& range :
       {Range{0, 0, kMiB}, Range{kMiB - 4096, 4096, kMiB}, Range{77, 64, 100'001},
        Range{3 * kMiB, 192, 123}, Range{3 * kMiB + 122, 1, 1}}) {
    const auto there = client.memory().subspan(range.segment_offset, range.bytes);
    test::fill(there, seed);
    REQUIRE(client.stage(
        client.spec(kOut, extent, range.extent_offset, range.segment_offset, range.bytes)));
    std::memset(there.data(), 0, there.size());
    REQUIRE(client.stage(
        client.spec(kIn, extent, range.extent_offset, range.segment_offset, range.bytes)));
    CHECK(filled(there, seed));
    ++seed;
  }
}

TEST_CASE("stage: a scratch extent ends with its session, a durable one outlives a restart") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  FlashExtent durable;
  {
    StagingClient client(node.address());
    const std::uint64_t before = client.flash_free_bytes();
    const FlashExtent scratch = client.allocate(2 * kMiB, FlashPolicy::kScratch);
    durable = client.allocate(kMiB, FlashPolicy::kDurable);
    test::fill(client.memory().first(kMiB), 5);
    REQUIRE(client.stage(client.spec(kOut, scratch, 0, 0, kMiB)));
    REQUIRE(client.stage(client.spec(kOut, durable, 0, 0, kMiB)));
    REQUIRE(client.control().close_session(client.session(), test::soon()));
    CHECK(client.flash_free_bytes() == before - kMiB);
  }
  node.daemon->send(SIGTERM);
  CHECK(node.daemon->wait().code == 0);
  node.start();
  StagingClient client(node.address());
  FlashExtent wrong = durable;
  wrong.access ^= 1;
  const auto refused = client.control().flash_open(client.session(), wrong, test::soon());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kNotFound);
  CHECK(client.stage(client.spec(kIn, durable, 0, 0, kMiB)).error().code() == Errc::kNotFound);
  const auto opened = client.control().flash_open(client.session(), durable, test::soon());
  REQUIRE(opened.ok());
  CHECK(opened->length_bytes == kMiB);
  REQUIRE(client.stage(client.spec(kIn, durable, 0, 0, kMiB)));
  CHECK(filled(client.memory().first(kMiB), 5));
  const std::uint64_t before = client.flash_free_bytes();
  REQUIRE(client.control().flash_free(client.session(), durable.id, test::soon()));
  CHECK(client.flash_free_bytes() == before + kMiB);
  CHECK_FALSE(client.control().flash_open(client.session(), durable, test::soon()).ok());
}

TEST_CASE("stage: what leaves an extent, a segment, a session or a limit is refused") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  StagingClient other(node.address(), transport::Rights::kRead);
  const FlashExtent extent = client.allocate(kMiB, FlashPolicy::kScratch);
  const FlashExtent foreign = other.allocate(kMiB, FlashPolicy::kScratch);
  const auto code = [&](const StageSpec& spec) {
    const auto outcome = client.stage(spec);
    return outcome ? Errc::kOk : outcome.error().code();
  };
  CHECK(code(client.spec(kOut, extent, 0, 0, 0)) == Errc::kInvalidArgument);
  CHECK(code(client.spec(kOut, extent, 0, 0, kStageBytesMax + 1)) == Errc::kInvalidArgument);
  CHECK(code(client.spec(kOut, extent, 1, 0, kMiB)) == Errc::kOutOfRange);
  CHECK(code(client.spec(kOut, extent, UINT64_MAX, 0, 4096)) == Errc::kOutOfRange);
  CHECK(code(client.spec(kOut, extent, 0, 2 * kMiB - 1, 2)) == Errc::kOutOfRange);
  CHECK(code(client.spec(kOut, extent, 0, UINT64_MAX - 1, 4096)) == Errc::kOutOfRange);
  CHECK(code(client.spec(kOut, foreign, 0, 0, 4096)) == Errc::kNotFound);
  StageSpec spec = client.spec(kOut, extent, 0, 0, 4096);
  spec.segment = other.segment();
  CHECK(code(spec) == Errc::kNotFound);
  spec = client.spec(kOut, extent, 0, 0, 4096);
  spec.direction = static_cast<StageDirection>(7);
  CHECK(code(spec) == Errc::kInvalidArgument);
  // Never written: not zeros, an error.
  CHECK(code(client.spec(kIn, extent, 0, 0, 4096)) == Errc::kNotFound);
  REQUIRE(other.stage(other.spec(kOut, foreign, 0, 0, 4096)));
  CHECK(other.stage(other.spec(kIn, foreign, 0, 0, 4096)).error().code() ==
        Errc::kPermissionDenied);
  const auto full =
      client.control().flash_allocate(client.session(), kGiB, FlashPolicy::kScratch, test::soon());
  REQUIRE_FALSE(full.ok());
  CHECK(full.error().code() == Errc::kExhausted);
  CHECK(full.error().context().find("free") != std::string::npos);
  // After all that both still work.
  CHECK(code(client.spec(kOut, extent, 0, 0, kMiB)) == Errc::kOk);
  REQUIRE(client.control().flash_free(client.session(), extent.id, test::soon()));
  CHECK(code(client.spec(kOut, extent, 0, 0, kMiB)) == Errc::kNotFound);
}

TEST_CASE("stage: a used-up write budget refuses more, and what is there stays readable") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  test::make_file(path, 16 * kMiB);
  if (const std::string why = test::no_flash_here(path); !why.empty()) {
    test::skip(why);
    return;
  }
  const DaemonProcess daemon(
      folder, "budget",
      {test::with_flash(folder, path, "write_bytes_per_day_max: 3000000"), {}, false});
  StagingClient client(test::unix_address(folder));
  const FlashExtent extent = client.allocate(8 * kMiB, FlashPolicy::kScratch);
  test::fill(client.memory().first(kMiB), 3);
  REQUIRE(client.stage(client.spec(kOut, extent, 0, 0, kMiB)));
  Result<void> refused;
  for (std::uint64_t i = 1; i < 8 && refused.ok(); ++i) {
    refused = client.stage(client.spec(kOut, extent, i * kMiB, 0, kMiB));
  }
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context().find("today's write budget") != std::string::npos);
  std::memset(client.memory().data(), 0, kMiB);
  REQUIRE(client.stage(client.spec(kIn, extent, 0, 0, kMiB)));
  CHECK(filled(client.memory().first(kMiB), 3));
}

TEST_CASE("stage: a node without flash says so") {
  const test::TempFolder folder;
  const DaemonProcess daemon(folder, "plain", {test::small_config(folder), {}, false});
  StagingClient client(test::unix_address(folder));
  const auto made =
      client.control().flash_allocate(client.session(), kMiB, FlashPolicy::kScratch, test::soon());
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kUnsupported);
  CHECK(made.error().context().find("n3 has no flash") != std::string::npos);
}

TEST_CASE("stage: many at once are answered once each, above the limit as busy") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  const FlashExtent extent = client.allocate(8 * kMiB, FlashPolicy::kDurable);
  std::vector<StagingClient::Outcome> outcomes;
  node.daemon->send(SIGSTOP);  // so that all wait when the first is looked at
  for (std::uint64_t i = 0; i < 128; ++i) {
    outcomes.push_back(client.start(client.spec(kOut, extent, i % 64 * 128 * kKiB, 0, 128 * kKiB)));
  }
  node.daemon->send(SIGCONT);
  int done = 0;
  int busy = 0;
  for (auto& outcome : outcomes) {
    REQUIRE(outcome.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    const auto result = outcome.get();
    if (!result) CHECK(result.error().code() == Errc::kBusy);
    (result ? done : busy) += 1;
  }
  CHECK(done >= static_cast<int>(kStagesPerSessionMax));
  CHECK(busy > 0);
  CHECK(done + busy == 128);
}

TEST_CASE("stage: closing a session in the middle frees its memory and its flash") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient watcher(node.address());
  const std::uint64_t before = watcher.flash_free_bytes();
  for (int round = 0; round < 10; ++round) {
    StagingClient client(node.address());
    const FlashExtent extent = client.allocate(4 * kMiB, FlashPolicy::kScratch);
    std::vector<StagingClient::Outcome> outcomes;
    for (std::uint64_t i = 0; i < 32; ++i) {
      outcomes.push_back(client.start(client.spec(kOut, extent, i % 4 * kMiB, 0, kMiB)));
    }
    REQUIRE(client.control().close_session(client.session(), test::soon()));
    for (auto& outcome : outcomes) {
      REQUIRE(outcome.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    }
  }
  CHECK(test::eventually(std::chrono::seconds(60), [&] {
    const auto status = watcher.control().status(test::soon());
    REQUIRE(status.ok());
    return status->flash[0].free_bytes == before && status->ddr_granted_bytes == 2 * kMiB;
  }));
}

TEST_CASE("stage: SIGTERM drains, SIGKILL is seen at once, and what was acknowledged is there",
          "[time]") {
  for (const int signal : {SIGTERM, SIGKILL}) {
    FlashNode node;
    SKIP_WITHOUT_FLASH(node);
    StagingClient client(node.address());
    const FlashExtent extent = client.allocate(4 * kMiB, FlashPolicy::kDurable);
    test::fill(client.memory().first(kMiB), 21);
    std::vector<StagingClient::Outcome> outcomes;
    for (std::uint64_t i = 0; i < 40; ++i) {
      outcomes.push_back(client.start(client.spec(kOut, extent, i % 4 * kMiB, 0, kMiB)));
    }
    REQUIRE(outcomes.front().wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    const auto sent = std::chrono::steady_clock::now();
    node.daemon->send(signal);
    std::set<std::uint64_t> told;
    for (std::uint64_t i = 0; i < outcomes.size(); ++i) {
      REQUIRE(outcomes[i].wait_for(std::chrono::seconds(60)) == std::future_status::ready);
      const auto result = outcomes[i].get();
      if (result) {
        told.insert(i % 4 * kMiB);
      } else {
        CHECK((result.error().code() == Errc::kUnavailable ||
               result.error().code() == Errc::kCanceled));
      }
    }
    if (signal == SIGKILL) {
      CHECK(std::chrono::steady_clock::now() - sent < test::within(std::chrono::seconds(2)));
    }
    const test::Exit end = node.daemon->wait();
    if (signal == SIGTERM) CHECK(end.code == 0);
    CHECK(told.count(0) == 1);
    node.start();
    StagingClient later(node.address());
    REQUIRE(later.control().flash_open(later.session(), extent, test::soon()).ok());
    for (const std::uint64_t offset : told) {
      std::memset(later.memory().data(), 0, kMiB);
      REQUIRE(later.stage(later.spec(kIn, extent, offset, 0, kMiB)));
      CHECK(filled(later.memory().first(kMiB), 21));
    }
  }
}

TEST_CASE("stage: a flipped bit is corrupt, named, and harms nothing else") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  const FlashExtent extent = client.allocate(kMiB, FlashPolicy::kDurable);
  test::fill(client.memory().first(kMiB), 9);
  REQUIRE(client.stage(client.spec(kOut, extent, 0, 0, kMiB)));
  std::ifstream in(node.path, std::ios::binary);
  const std::string device{std::istreambuf_iterator<char>(in), {}};
  const std::string block(reinterpret_cast<const char*>(client.memory().data()) + 3 * 4096, 4096);
  const std::size_t at = device.find(block);
  REQUIRE(at != std::string::npos);
  const UniqueFd file(::open(node.path.c_str(), O_WRONLY | O_CLOEXEC));
  const char flipped = static_cast<char>(device[at + 100] ^ 4);
  REQUIRE(::pwrite(file.get(), &flipped, 1, static_cast<off_t>(at + 100)) == 1);
  REQUIRE(::fsync(file.get()) == 0);
  const auto broken = client.stage(client.spec(kIn, extent, 0, 0, kMiB));
  REQUIRE_FALSE(broken.ok());
  CHECK(broken.error().code() == Errc::kCorrupt);
  CHECK(broken.error().context().find(node.path) != std::string::npos);
  CHECK(broken.error().context().find("extent " + std::to_string(extent.id) + ", block 3") !=
        std::string::npos);
  REQUIRE(client.stage(client.spec(kIn, extent, 4 * 4096, 0, kMiB - 4 * 4096)));
  REQUIRE(client.stage(client.spec(kIn, extent, 0, 0, 3 * 4096)));
}

TEST_CASE("stage: a device that ends too early is an I/O error with its place, not a crash") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  const FlashExtent extent = client.allocate(8 * kMiB, FlashPolicy::kScratch);
  for (std::uint64_t i = 0; i < 8; ++i) {
    REQUIRE(client.stage(client.spec(kOut, extent, i * kMiB, 0, kMiB)));
  }
  REQUIRE(::truncate(node.path.c_str(), static_cast<off_t>(4 * kMiB)) == 0);
  const auto cut = client.stage(client.spec(kIn, extent, 7 * kMiB, 0, kMiB));
  REQUIRE_FALSE(cut.ok());
  CHECK(cut.error().code() == Errc::kIo);
  CHECK(cut.error().context().find(node.path) != std::string::npos);
  CHECK(client.stage(client.spec(kIn, extent, 0, 0, kMiB)).ok());
  CHECK(client.control().status(test::soon()).ok());
}

TEST_CASE("stage: who runs the node sees every extent, and frees what no session has open") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  FlashExtent durable;
  {
    StagingClient gone(node.address());
    durable = gone.allocate(kMiB, FlashPolicy::kDurable);
    REQUIRE(gone.control().close_session(gone.session(), test::soon()));
  }
  StagingClient client(node.address());
  const FlashExtent scratch = client.allocate(2 * kMiB, FlashPolicy::kScratch);
  const FlashExtent open = client.allocate(kMiB, FlashPolicy::kDurable);
  const auto listed = client.control().flash_extents(test::soon());
  REQUIRE(listed.ok());
  REQUIRE(listed->size() == 3);
  CHECK((*listed)[0].id == durable.id);
  CHECK((*listed)[0].policy == FlashPolicy::kDurable);
  CHECK((*listed)[0].length_bytes == kMiB);
  CHECK((*listed)[0].session == SessionId(0));
  CHECK((*listed)[1].id == scratch.id);
  CHECK((*listed)[1].policy == FlashPolicy::kScratch);
  CHECK((*listed)[1].session == client.session().id);
  CHECK((*listed)[2].session == client.session().id);
  for (const std::uint64_t used : {scratch.id, open.id}) {
    const auto refused = client.control().flash_erase(used, test::soon());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kConflict);
    CHECK(refused.error().context().find("in use by session") != std::string::npos);
  }
  const std::uint64_t before = client.flash_free_bytes();
  REQUIRE(client.control().flash_erase(durable.id, test::soon()).ok());
  CHECK(client.flash_free_bytes() == before + kMiB);
  CHECK(client.control().flash_erase(durable.id, test::soon()).error().code() == Errc::kNotFound);
  CHECK(client.control().flash_extents(test::soon())->size() == 2);
}

TEST_CASE("stage: extents are listed with their owner, label and age") {
  FlashNode node;
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  const FlashExtent extent = client.allocate(kMiB, FlashPolicy::kDurable);
  const auto in_use = client.control().flash_extents(test::soon());
  REQUIRE(in_use.ok());
  REQUIRE(in_use->size() == 1);
  CHECK(in_use->front().owner == "uid " + std::to_string(::getuid()));
  CHECK(in_use->front().label == "staging");
  CHECK(in_use->front().age < std::chrono::minutes(10));
  CHECK_FALSE(in_use->front().left.has_value());
  // After a restart too, when its job is gone.
  node.daemon->send(SIGKILL);
  static_cast<void>(node.daemon->wait());
  node.start();
  const auto left = test::connect(node.address())->flash_extents(test::soon());
  REQUIRE(left.ok());
  REQUIRE(left->size() == 1);
  CHECK(left->front().id == extent.id);
  CHECK(left->front().owner == in_use->front().owner);
  CHECK(left->front().label == "staging");
  CHECK(left->front().session == SessionId(0));
}

TEST_CASE("stage: a durable extent that no session had open for its time is freed") {
  FlashNode node(16 * kMiB, "flash_unused_s_max: 3\n");
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  const FlashExtent kept = client.allocate(kMiB, FlashPolicy::kDurable);
  FlashExtent left;
  {
    StagingClient gone(node.address());
    left = gone.allocate(kMiB, FlashPolicy::kDurable);
    REQUIRE(gone.control().close_session(gone.session(), test::soon()));
  }
  const auto before = client.control().flash_extents(test::soon());
  REQUIRE(before.ok());
  REQUIRE(before->size() == 2);
  CHECK(before->back().left <= std::chrono::seconds(3));
  CHECK(test::eventually(std::chrono::seconds(30), [&] {
    const auto listed = client.control().flash_extents(test::soon());
    REQUIRE(listed.ok());
    return listed->size() == 1;
  }));
  CHECK(client.control().flash_open(client.session(), left, test::soon()).error().code() ==
        Errc::kNotFound);
  test::fill(client.memory().first(kMiB), 5);
  CHECK(client.stage(client.spec(kOut, kept, 0, 0, kMiB)).ok());
  CHECK(node.daemon->err().find("label=staging") != std::string::npos);
}

TEST_CASE("stage: extents are listed in pages, in order, without a gap") {
  FlashNode node(32 * kMiB);
  SKIP_WITHOUT_FLASH(node);
  StagingClient client(node.address());
  constexpr std::size_t kMade = 4096 + 10;  // more than a page
  for (std::size_t i = 0; i < kMade; ++i) {
    REQUIRE(
        client.control().flash_allocate(client.session(), 1, FlashPolicy::kScratch, test::soon()));
  }
  const auto listed = client.control().flash_extents(test::soon());
  REQUIRE(listed.ok());
  CHECK(listed->size() == kMade);
}

TEST_CASE("stage: over TCP nobody frees another's extent") {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  test::make_file(path, 16 * kMiB);
  if (const std::string why = test::no_flash_here(path); !why.empty()) {
    test::skip(why);
    return;
  }
  const std::string config =
      test::with_flash(folder, path) + "insecure: true\ntcp_listen: \"127.0.0.1:0\"\n";
  const DaemonProcess daemon(folder, "tcp", {config, {}, false});
  StagingClient client(test::unix_address(folder));
  const FlashExtent extent = client.allocate(kMiB, FlashPolicy::kDurable);
  const auto nodes = client.control().nodes(test::soon());
  REQUIRE(nodes.ok());
  std::string remote;
  for (const std::string& address : nodes->front().control_addresses) {
    if (address.rfind("tcp:", 0) == 0) remote = address;
  }
  REQUIRE_FALSE(remote.empty());
  const auto other = test::connect(remote);
  const auto refused = other->flash_erase(extent.id, test::soon());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kPermissionDenied);
  CHECK(other->flash_extents(test::soon())->size() == 1);
  CHECK(other->evict(client.session().id, test::soon()).error().code() == Errc::kPermissionDenied);
  CHECK(other->sessions(test::soon())->size() == 1);
}
