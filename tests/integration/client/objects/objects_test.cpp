// Published objects through the C ABI, over two real daemons.
#include <fcntl.h>
#include <hyperoffload/objects.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <hyperoffload/objects.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "common/layout/layout.hpp"
#include "tests/integration/client/objects/object_ranks.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/seeds.hpp"

namespace {

using namespace ho;
using hyperoffload::Publisher;
using hyperoffload::Subscriber;
using test::connect_pool;
using test::PoolHandle;
using test::publish_all;
using test::TwoNodes;

using Shape = layout::Shape;
using Ranks = test::ObjectRanks;

ho_status acquire(const Subscriber& subscriber, std::uint64_t least = 0,
                  std::uint64_t most = UINT64_MAX) {
  std::uint64_t version = 0;
  return ho_acquire(subscriber.get(), least, most, 0, &version);
}

}  // namespace

TEST_CASE("objects: a job reads what another one publishes, over local and tcp", "[integration]") {
  TwoNodes nodes;
  const auto* const transport = GENERATE("local", "tcp");
  INFO(transport);
  const PoolHandle trainer = connect_pool(nodes.address(0), transport);
  const PoolHandle sampler = connect_pool(nodes.address(1), transport);
  Ranks from("1:all", "-;-", {700, 700});
  Ranks to("1:all", "-;-", {700, 700});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  CHECK(acquire(subscriber) == HO_NOT_FOUND);
  CHECK(ho_object_read(subscriber.get()) == HO_CONFLICT);
  for (std::uint32_t version = 1; version <= 5; ++version) {
    from.fill(version);
    publisher.publish(version);
    to.clear();
    REQUIRE(subscriber.acquire() == version);
    subscriber.read();
    CHECK(to.holds(0, version));
  }
  CHECK(ho_publish(publisher.get(), 5) == HO_INVALID_ARGUMENT);
  CHECK(acquire(subscriber, 6) == HO_NOT_FOUND);
  CHECK(subscriber.acquire(4, 0, 4) == 4);
  subscriber.read();
  CHECK(to.holds(0, 4));
  CHECK(ho_disconnect(sampler.get()) == HO_CONFLICT);
}

TEST_CASE("objects: the oldest version is dropped, unless a reader has it open", "[integration]") {
  TwoNodes nodes;
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  const PoolHandle sampler = connect_pool(nodes.address(0), "local");
  Ranks from("1:all", "-", {1000});
  Ranks to("1:all", "-", {1000});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber first(sampler.get(), to.options(0), {to.tensor(0)});
  Subscriber second(sampler.get(), to.options(0), {to.tensor(0)});
  const auto publish = [&](std::uint32_t version) {
    from.fill(version);
    return ho_publish(publisher.get(), version);
  };
  REQUIRE(publish(1) == HO_OK);
  REQUIRE(first.acquire() == 1);
  REQUIRE(publish(2) == HO_OK);
  REQUIRE(publish(3) == HO_OK);  // over 2
  CHECK(acquire(second, 2, 2) == HO_NOT_FOUND);
  REQUIRE(second.acquire() == 3);
  CHECK(publish(4) == HO_BUSY);
  first.read();
  CHECK(to.holds(0, 1));
  first.release();
  REQUIRE(publish(4) == HO_OK);  // over 1
  CHECK(first.acquire() == 4);
  first.read();
  CHECK(to.holds(0, 4));
  second.read();
  CHECK(to.holds(0, 3));
}

TEST_CASE("objects: readers get their tiles under layouts of their own", "[integration]") {
  struct Layouts {
    const char* from_mesh;
    const char* from;
    const char* to_mesh;
    const char* to;
    Shape shape;
  };
  // More than a chunk in a tile, sizes that do not divide, replicas, empty tiles.
  const auto each = GENERATE(Layouts{"4x2:dp,tp", "dp;tp", "2x4:dp,tp", "dp;tp", {1031, 1600}},
                             Layouts{"4x2:dp,tp", "-;tp", "2x4:dp,tp", "tp;-", {1024, 1600}},
                             Layouts{"2:tp", "-;-", "3:tp", "-;tp", {37, 51}},
                             Layouts{"2x2:dp,tp", "tp,dp;-;-", "5:tp", "-;tp;-", {3, 4, 20'000}},
                             Layouts{"4x2:dp,tp@8-15", "dp,tp;-", "1:all", "-;-", {1031, 600}});
  const auto* const transport = GENERATE("local", "tcp");
  const auto chunks = GENERATE(HO_CHUNKS_ROWS, HO_CHUNKS_GRID);
  test::PoolSpec spec;
  spec.ddr_bytes = 64 * kMiB;
  TwoNodes nodes(spec);
  INFO(each.from_mesh << " " << each.from << " -> " << each.to_mesh << " " << each.to);
  const PoolHandle trainer = connect_pool(nodes.address(0), transport);
  const PoolHandle sampler = connect_pool(nodes.address(1), transport);
  Ranks from(each.from_mesh, each.from, each.shape);
  Ranks to(each.to_mesh, each.to, each.shape);
  std::vector<Publisher> publishers;
  const auto mesh = layout::parse_mesh(each.from_mesh);
  REQUIRE(mesh.ok());
  for (std::size_t at = 0; at < from.count(); ++at) {
    ho_object_options options = from.options(mesh->ranks[at], 9);
    options.versions = 1;
    options.chunks = chunks;
    publishers.emplace_back(trainer.get(), options, std::vector{from.tensor(at)});
  }
  for (std::uint32_t version = 1; version <= 2; ++version) {
    from.fill(version);
    for (Publisher& one : publishers) one.publish(version);
    to.clear();
    for (std::size_t rank = 0; rank < to.count(); ++rank) {
      Subscriber subscriber(sampler.get(), to.options(rank), {to.tensor(rank)});
      REQUIRE(subscriber.acquire() == version);
      subscriber.read();
      CHECK(to.holds(rank, version));
      CHECK(std::string(subscriber.text()).find("\"weight\"") != std::string::npos);
    }
  }
}

TEST_CASE("objects: a version is found when all ranks of one run have published it",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  const PoolHandle other = connect_pool(nodes.address(1), "tcp");
  Ranks from("2:dp", "dp", {1000});
  Ranks to("1:all", "-", {1000});
  auto ranks = publish_all(trainer.get(), from, 1);
  Subscriber subscriber(other.get(), to.options(0), {to.tensor(0)});
  from.fill(1);
  ranks[0].publish(1);
  CHECK(acquire(subscriber) == HO_NOT_FOUND);
  {
    Publisher same_node(trainer.get(), from.options(1, 2), {from.tensor(1)});
    CHECK(ho_publish(same_node.get(), 1) == HO_ALREADY_EXISTS);
    // A part of another run does not complete the version, and makes the name ambiguous.
    Publisher other_node(other.get(), from.options(0, 2), {from.tensor(0)});
    other_node.publish(1);
    CHECK(acquire(subscriber) == HO_NOT_FOUND);
    ranks[1].publish(1);
    CHECK(acquire(subscriber) == HO_NOT_FOUND);
  }
  REQUIRE(subscriber.acquire() == 1);
  subscriber.read();
  CHECK(to.holds(0, 1));
  subscriber.release();
  ranks.pop_back();  // its part is withdrawn with it
  CHECK(acquire(subscriber) == HO_NOT_FOUND);
}

TEST_CASE("objects: reading a tensor that the object does not have fails at once",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle job = connect_pool(nodes.address(0), "local");
  Ranks from("1:all", "-", {1000});
  Ranks to("1:all", "-", {1000});
  Publisher publisher(job.get(), from.options(0, 3), {from.tensor(0)});
  publisher.publish(1);
  ho_tensor wanted = to.tensor(0);
  wanted.name = "bias";
  const Subscriber subscriber(job.get(), to.options(0), {wanted});
  std::uint64_t version = 0;
  CHECK(ho_acquire(subscriber.get(), 0, UINT64_MAX, 5000, &version) == HO_NOT_FOUND);
  // The error is not that of a timeout.
  CHECK(std::string(ho_last_error()).find("no tensor \"bias\"") != std::string::npos);
  CHECK(std::string(ho_last_error()).find("is complete") == std::string::npos);
}

TEST_CASE(
    "objects: a publisher's tensors have different names, and the refusal says which two do not",
    "[integration]") {
  TwoNodes nodes;
  const PoolHandle job = connect_pool(nodes.address(0), "local");
  Ranks first("1:all", "-", {1000});
  Ranks second("1:all", "-", {1000});
  ho_object_options options = first.options(0, 3);
  options.struct_bytes = sizeof(options);
  ho_tensor tensors[] = {first.tensor(0), second.tensor(0)};
  ho_publisher* none = nullptr;
  CHECK(ho_publisher_open(job.get(), &options, tensors, 2, &none) == HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Matchers::Contains("two tensors have the name \"weight\""));
  tensors[1].name = "bias";
  REQUIRE(ho_publisher_open(job.get(), &options, tensors, 2, &none) == HO_OK);
  ho_publisher_close(none);
}

TEST_CASE("objects: a text that is not UTF-8 is refused at open, and costs no node",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle job = connect_pool(nodes.address(0), "local");
  Ranks ranks("1:all", "-", {1000});
  const auto opens = [&](ho_object_options options, const ho_tensor& tensor) {
    options.struct_bytes = sizeof(options);
    ho_publisher* publisher = nullptr;
    ho_subscriber* subscriber = nullptr;
    const ho_status as_publisher = ho_publisher_open(job.get(), &options, &tensor, 1, &publisher);
    CHECK(ho_subscriber_open(job.get(), &options, &tensor, 1, &subscriber) == as_publisher);
    ho_publisher_close(publisher);
    ho_subscriber_close(subscriber);
    return as_publisher;
  };
  CHECK(opens(ranks.options(0, 3), ranks.tensor(0)) == HO_OK);
  const char* const bytes = "\xff\xfe";
  ho_object_options options = ranks.options(0, 3);
  options.name = bytes;
  CHECK(opens(options, ranks.tensor(0)) == HO_INVALID_ARGUMENT);
  CHECK(std::string(ho_last_error()) == "name is not up to 255 bytes of UTF-8");
  options = ranks.options(0, 3);
  options.mesh = "1:\xff";
  CHECK(opens(options, ranks.tensor(0)) == HO_INVALID_ARGUMENT);
  options = ranks.options(0, 3);
  options.mesh = nullptr;
  options.rank = 1;
  CHECK(opens(options, ranks.tensor(0)) == HO_INVALID_ARGUMENT);
  CHECK(std::string(ho_last_error()) == "rank: 1 without a mesh, in which there is one rank, 0");
  for (const char* ho_tensor::*const field : {&ho_tensor::name, &ho_tensor::dtype}) {
    ho_tensor tensor = ranks.tensor(0);
    tensor.*field = bytes;
    CHECK(opens(ranks.options(0, 3), tensor) == HO_INVALID_ARGUMENT);
  }
  // A secret may have any bytes.
  options = ranks.options(0, 3);
  options.secret = "\xff\xfe sixteen bytes and more";
  Publisher publisher(job.get(), options, {ranks.tensor(0)});
  publisher.publish(1);
  CHECK(acquire(Subscriber(job.get(), options, {ranks.tensor(0)})) == HO_OK);
}

TEST_CASE("objects: memory stays registered while objects use it", "[integration]") {
  TwoNodes nodes;
  const PoolHandle job = connect_pool(nodes.address(0), "local");
  Ranks from("1:all", "-", {1000});
  Ranks to("1:all", "-", {1000});
  const ho_tensor sent = from.tensor(0);
  const ho_tensor got = to.tensor(0);
  REQUIRE(ho_register(job.get(), sent.data, sent.bytes) == HO_OK);
  REQUIRE(ho_register(job.get(), got.data, got.bytes) == HO_OK);
  {
    ho_tensor partial = sent;
    partial.element_bytes = 0;  // refused, and registers nothing
    ho_publisher* none = nullptr;
    const ho_object_options options = from.options(0, 3);
    CHECK(ho_publisher_open(job.get(), &options, &partial, 1, &none) == HO_INVALID_ARGUMENT);
  }
  {
    Publisher publisher(job.get(), from.options(0, 3), {sent});
    Subscriber subscriber(job.get(), to.options(0), {got});
    CHECK(ho_unregister(job.get(), sent.data) == HO_CONFLICT);
    CHECK(ho_unregister(job.get(), got.data) == HO_CONFLICT);
    from.fill(1);
    publisher.publish(1);
    REQUIRE(subscriber.acquire() == 1);
    subscriber.read();
    CHECK(to.holds(0, 1));
  }
  CHECK(ho_unregister(job.get(), sent.data) == HO_OK);
  CHECK(ho_unregister(job.get(), got.data) == HO_OK);
}

TEST_CASE("objects: a name is another object with another secret", "[integration]") {
  TwoNodes nodes;
  const PoolHandle job = connect_pool(nodes.address(0), "local");
  Ranks from("1:all", "-", {1000});
  Ranks to("1:all", "-", {1000});
  ho_object_options options = from.options(0, 3);
  options.secret = "sixteen bytes or more";
  Publisher publisher(job.get(), options, {from.tensor(0)});
  publisher.publish(1);
  CHECK(acquire(Subscriber(job.get(), to.options(0), {to.tensor(0)})) == HO_NOT_FOUND);
  options.secret = "another secret of 16";
  CHECK(acquire(Subscriber(job.get(), options, {to.tensor(0)})) == HO_NOT_FOUND);
  options.secret = "sixteen bytes or more";
  CHECK(acquire(Subscriber(job.get(), options, {to.tensor(0)})) == HO_OK);
}

TEST_CASE("objects: changed bytes are never returned", "[integration]") {
  TwoNodes nodes;
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  const PoolHandle sampler = connect_pool(nodes.address(0), "tcp");
  Ranks from("1:all", "-", {100'000});
  Ranks to("2:tp", "tp", {100'000});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  from.fill(1);
  publisher.publish(1);
  Subscriber subscriber(sampler.get(), to.options(1), {to.tensor(1)});
  REQUIRE(subscriber.acquire() == 1);
  subscriber.read();
  // Flips one bit of the second half, in the daemon's memory.
  std::size_t changed = 0;
  const std::string files = "/proc/" + std::to_string(nodes.daemon(0).pid()) + "/fd";
  for (const auto& file : std::filesystem::directory_iterator(files)) {
    std::error_code none;
    const std::string target = std::filesystem::read_symlink(file, none).string();
    if (target.rfind("/memfd:", 0) != 0) continue;
    const int fd = ::open(file.path().c_str(), O_RDWR | O_CLOEXEC);
    std::uint32_t word = 0;
    const off_t place = 90'000 * 4;
    if (::pread(fd, &word, 4, place) == 4 && word == 90'000 * 31 + 1) {
      word ^= 4U;
      REQUIRE(::pwrite(fd, &word, 4, place) == 4);
      changed += 1;
    }
    ::close(fd);
  }
  REQUIRE(changed == 1);
  CHECK(ho_object_read(subscriber.get()) == HO_CORRUPT);
  CHECK(std::string(ho_last_error()).find("weights@1") != std::string::npos);
}

TEST_CASE("objects: a read after the publisher's end is an error", "[integration]") {
  TwoNodes nodes;
  const auto* const transport = GENERATE("local", "tcp");
  const PoolHandle sampler = connect_pool(nodes.address(0), transport);
  PoolHandle trainer = connect_pool(nodes.address(0), transport);
  Ranks from("1:all", "-", {100'000});
  Ranks to("1:all", "-", {100'000});
  std::optional<Publisher> publisher;
  publisher.emplace(trainer.get(), from.options(0, 7), std::vector{from.tensor(0)});
  from.fill(1);
  publisher->publish(1);
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  REQUIRE(subscriber.acquire() == 1);
  publisher.reset();
  CHECK(ho_object_read(subscriber.get()) == HO_NOT_FOUND);
  CHECK(acquire(subscriber) == HO_NOT_FOUND);
}

namespace {

/// The last version that each of two ranks has published, in shared memory. The ranks keep in step,
/// as ranks that sum gradients do.
using Published = std::array<std::atomic<std::uint64_t>, 2>;

/// Publishes as one of two ranks until killed. Never returns.
[[noreturn]] void publish_on(const std::string& address, std::uint32_t rank, std::uint64_t first,
                             Published& published) {
  std::vector<std::uint64_t> half(40'000);
  const std::uint64_t shape = 80'000;
  ho_connect_options connect{};
  connect.struct_bytes = sizeof(connect);
  connect.pool = address.c_str();
  connect.transport = rank == 0 ? "local" : "tcp";
  ho_pool* pool = nullptr;
  if (ho_connect(&connect, &pool) != HO_OK) ::_exit(1);
  ho_tensor tensor{};
  tensor.name = "stamp";
  tensor.layout = "dp";
  tensor.shape = &shape;
  tensor.dimensions = 1;
  tensor.element_bytes = 8;
  tensor.data = half.data();
  tensor.bytes = half.size() * 8;
  ho_object_options options{};
  options.struct_bytes = sizeof(options);
  options.name = "stamps";
  options.mesh = "2:dp";
  options.rank = rank;
  options.run = first;
  ho_publisher* publisher = nullptr;
  if (ho_publisher_open(pool, &options, &tensor, 1, &publisher) != HO_OK) ::_exit(2);
  for (std::uint64_t version = first;; ++version) {
    std::fill(half.begin(), half.end(), version);
    while (published[1 - rank].load() + 1 < version && version > first) ::usleep(50);
    ho_status status = HO_BUSY;
    while ((status = ho_publish(publisher, version)) == HO_BUSY) {
    }
    if (status != HO_OK) ::_exit(3);
    published[rank].store(version);
  }
}

}  // namespace

TEST_CASE("objects: publishers killed at any point leave no mixed version", "[integration]") {
  const std::uint64_t seed = test::only_seed().value_or(1);
  Prng random(seed);
  INFO("HO_SEED=" << seed);
  test::PoolSpec spec;
  spec.ddr_bytes = 96 * kMiB;  // sessions of killed jobs last as long as their leases
  TwoNodes nodes(spec);
  void* const shared =
      ::mmap(nullptr, sizeof(Published), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  auto& published = *static_cast<Published*>(shared);
  const int rounds = 8;
  std::size_t read = 0;
  for (int round = 1; round <= rounds; ++round) {
    std::array<pid_t, 2> ranks{};
    const std::uint64_t first = static_cast<std::uint64_t>(round) * 1'000'000;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks[rank] = ::fork();
      REQUIRE(ranks[rank] >= 0);
      if (ranks[rank] == 0) {
        publish_on(nodes.address(static_cast<int>(rank)), rank, first, published);
      }
    }
    {
      const PoolHandle pool = connect_pool(nodes.address(round % 2), "auto");
      std::vector<std::uint64_t> all(80'000);
      ho_tensor tensor{};
      tensor.name = "stamp";
      tensor.data = all.data();
      tensor.bytes = all.size() * 8;
      ho_object_options options{};
      options.name = "stamps";
      Subscriber subscriber(pool.get(), options, {tensor});
      std::uint64_t version = first;
      const auto look = [&](std::uint32_t timeout_ms) {
        const ho_status found =
            ho_acquire(subscriber.get(), version, UINT64_MAX, timeout_ms, &version);
        if (found == HO_NOT_FOUND) return;
        REQUIRE(found == HO_OK);
        // A publisher may be killed at any time; its bytes then stay until the lease ends.
        REQUIRE(ho_object_read(subscriber.get()) == HO_OK);
        CHECK(std::all_of(all.begin(), all.end(),
                          [&](std::uint64_t word) { return word == version; }));
        read += 1;
      };
      const std::uint64_t looks = 2 + random.below(6);
      for (std::uint64_t i = 0; i < looks; ++i) look(500);
      const std::uint32_t one = static_cast<std::uint32_t>(random.below(2));
      ::kill(ranks[one], SIGKILL);
      look(0);
      ::kill(ranks[1 - one], SIGKILL);
      look(0);
    }
    for (const pid_t rank : ranks) {
      int status = 0;
      REQUIRE(::waitpid(rank, &status, 0) == rank);
      CHECK(WIFSIGNALED(status));  // it was still publishing when it was killed
    }
  }
  ::munmap(shared, sizeof(Published));
  CHECK(read >= static_cast<std::size_t>(rounds));
}
