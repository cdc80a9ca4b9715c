// Readers of published objects that share the work, through the C ABI, over two real daemons.
#include <hyperoffload/objects.h>

#include <catch2/catch.hpp>
#include <deque>
#include <hyperoffload/objects.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/units.hpp"
#include "tests/integration/client/objects/object_ranks.hpp"
#include "tests/integration/client/two_nodes.hpp"

namespace {

using namespace ho;
using hyperoffload::Publisher;
using hyperoffload::Subscriber;
using test::connect_pool;
using test::ObjectRanks;
using test::PoolHandle;
using test::publish_all;
using test::TwoNodes;

/// The number behind a field of ho_object_text, behind `after`.
std::uint64_t number(const Subscriber& reader, const std::string& field,
                     const std::string& after = "") {
  const std::string text = reader.text();
  const std::size_t from = after.empty() ? 0 : text.find("\"" + after + "\"");
  REQUIRE(from != std::string::npos);
  const std::size_t at = text.find("\"" + field + "\":", from);
  REQUIRE(at != std::string::npos);
  return std::stoull(text.substr(at + field.size() + 3));
}

/// Readers of one mesh, the first half of them at the first node.
struct Readers {
  Readers(TwoNodes& nodes, ObjectRanks& ranks, const std::string& relay, const char* transport) {
    for (std::size_t rank = 0; rank < ranks.count(); ++rank) {
      const int node = rank < (ranks.count() + 1) / 2 ? 0 : 1;
      const PoolHandle& pool = pools.emplace_back(connect_pool(nodes.address(node), transport));
      ho_object_options options = ranks.options(rank, 77);
      options.relay = relay.c_str();
      readers.emplace_back(pool.get(), options, std::vector{ranks.tensor(rank)});
    }
  }
  /// All read a version at once, each on a thread. @return the status of each
  std::vector<ho_status> read(std::uint64_t version, std::size_t count) {
    std::vector<ho_status> out(count, HO_NOT_FOUND);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        std::uint64_t found = 0;
        out[rank] = ho_acquire(readers[rank].get(), version, version, 5000, &found);
        if (out[rank] == HO_OK) out[rank] = ho_object_read(readers[rank].get());
        ho_object_release(readers[rank].get());
      });
    }
    for (std::thread& one : threads) one.join();
    return out;
  }

  std::deque<PoolHandle> pools;
  std::vector<Subscriber> readers;
};

}  // namespace

TEST_CASE("relays: readers give one another what each has read once", "[integration]") {
  struct Case {
    const char* from_mesh;
    const char* from;
    const char* to_mesh;
    const char* to;
    const char* relay;
    std::uint64_t copies;  ///< that the publisher sends
  };
  const auto each = GENERATE(Case{"1:all", "-;-", "2x2:node,gpu", "-;-", "gpu", 2},
                             Case{"1:all", "-;-", "2x2:node,gpu", "-;-", "node;gpu", 1},
                             Case{"1:all", "-;-", "2x2:node,gpu", "-;-", "node,gpu", 1},
                             Case{"2:r", "r;-", "3:dp", "-;-", "dp", 1},
                             Case{"2:r", "r;-", "2x2:dp,tp", "tp;-", "dp", 1},
                             Case{"2:r", "-;r", "2x2:dp,tp", "-;tp", "dp", 1});
  const auto* const transport = GENERATE("local", "tcp");
  INFO(each.to_mesh << " " << each.to << ", relay " << each.relay << ", " << transport);
  test::PoolSpec spec;
  spec.ddr_bytes = 128 * kMiB;
  TwoNodes nodes(spec);
  const layout::Shape shape{4124, 700};
  const std::uint64_t bytes = 4124 * 700 * 4;
  ObjectRanks from(each.from_mesh, each.from, shape);
  ObjectRanks to(each.to_mesh, each.to, shape);
  const PoolHandle trainer = connect_pool(nodes.address(0), transport);
  std::vector<Publisher> publishers = publish_all(trainer.get(), from, 9);
  Readers readers(nodes, to, each.relay, transport);
  for (std::uint32_t version = 1; version <= 3; ++version) {
    from.fill(version);
    for (Publisher& one : publishers) one.publish(version);
    to.clear();
    for (const ho_status status : readers.read(version, to.count())) CHECK(status == HO_OK);
    for (std::size_t rank = 0; rank < to.count(); ++rank) CHECK(to.holds(rank, version));
  }
  std::uint64_t fetched = 0;
  for (const Subscriber& one : readers.readers) {
    CHECK(number(one, "relayed_reads") == 3);
    CHECK(number(one, "direct_reads") == 0);
    fetched += number(one, "fetched_bytes", "relays");
  }
  // Chunks at the edges of parts, of less than 0.75 MiB, are fetched by two.
  CHECK(fetched >= each.copies * bytes);
  CHECK(fetched <= each.copies * bytes + to.count() * 2 * 3 * kMiB / 4);
}

TEST_CASE("relays: who waits in vain for another rank reads all from the publisher",
          "[integration]") {
  TwoNodes nodes;
  ObjectRanks from("1:all", "-", {300'000});
  ObjectRanks to("3:dp", "-", {300'000});
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  std::vector<Publisher> publishers = publish_all(trainer.get(), from, 9);
  Readers readers(nodes, to, "dp", "tcp");
  for (std::uint32_t version = 1; version <= 3; ++version) {
    const std::size_t count = version == 2 ? 2 : 3;  // the third rank leaves one out
    from.fill(version);
    publishers[0].publish(version);
    to.clear();
    const auto told = readers.read(version, count);
    for (std::size_t rank = 0; rank < count; ++rank) {
      CHECK(told[rank] == HO_OK);
      CHECK(to.holds(rank, version));
    }
  }
  CHECK(number(readers.readers[0], "relayed_reads") == 2);
  CHECK(number(readers.readers[0], "direct_reads") == 1);
  CHECK(number(readers.readers[2], "relayed_reads") == 2);
}

TEST_CASE("relays: a version that is published again has its new bytes", "[integration]") {
  TwoNodes nodes;
  ObjectRanks from("1:all", "-", {300'000});
  ObjectRanks to("2:dp", "-", {300'000});
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  Readers readers(nodes, to, "dp", "local");
  // The second time by the same run, which has gone back, then by another one.
  for (std::uint32_t time = 1; time <= 3; ++time) {
    std::vector<Publisher> publishers = publish_all(trainer.get(), from, time < 3 ? 1 : 2);
    from.fill(time * 1000);
    publishers[0].publish(5);
    to.clear();
    for (const ho_status status : readers.read(5, 2)) CHECK(status == HO_OK);
    for (std::size_t rank = 0; rank < 2; ++rank) CHECK(to.holds(rank, time * 1000));
  }
  CHECK(number(readers.readers[0], "relayed_reads") == 3);
}

TEST_CASE("relays: two readers of one program that want different tensors both share",
          "[integration]") {
  TwoNodes nodes;
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  std::vector<std::uint32_t> data[2] = {std::vector<std::uint32_t>(50'000, 1),
                                        std::vector<std::uint32_t>(70'000, 2)};
  const char* const names[] = {"attention", "experts"};
  const auto tensor = [&](std::uint32_t which, std::vector<std::uint32_t>& memory,
                          std::uint64_t& shape) {
    shape = memory.size();
    ho_tensor out{};
    out.name = names[which];
    out.shape = &shape;
    out.dimensions = 1;
    out.element_bytes = 4;
    out.data = memory.data();
    out.bytes = memory.size() * 4;
    return out;
  };
  std::uint64_t shapes[2] = {};
  ho_object_options options{};
  options.name = "model";
  Publisher publisher(trainer.get(), options,
                      {tensor(0, data[0], shapes[0]), tensor(1, data[1], shapes[1])});
  publisher.publish(1);
  std::vector<std::vector<std::uint32_t>> got;
  std::deque<PoolHandle> pools;
  std::vector<std::vector<Subscriber>> readers(2);  // by rank
  std::uint64_t sizes[4] = {};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (const auto& one : data) got.emplace_back(one.size());
  }
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    pools.push_back(connect_pool(nodes.address(0), "local"));
    ho_object_options mine{};
    mine.name = "model";
    mine.mesh = "2:dp";
    mine.rank = rank;
    mine.run = 5;
    mine.relay = "dp";
    for (std::uint32_t which = 0; which < 2; ++which) {
      const std::uint32_t at = 2 * rank + which;
      readers[rank].emplace_back(pools.back().get(), mine,
                                 std::vector{tensor(which, got[at], sizes[at])});
    }
  }
  std::vector<std::thread> threads;
  for (std::vector<Subscriber>& mine : readers) {
    threads.emplace_back([&mine] {
      for (Subscriber& one : mine) {
        std::uint64_t version = 0;
        if (ho_acquire(one.get(), 1, 1, 0, &version) == HO_OK) ho_object_read(one.get());
      }
    });
  }
  for (std::thread& one : threads) one.join();
  for (const std::vector<Subscriber>& mine : readers) {
    for (const Subscriber& one : mine) CHECK(number(one, "relayed_reads") == 1);
  }
  CHECK(got[0] == data[0]);
  CHECK(got[1] == data[1]);
  CHECK(got[2] == data[0]);
  CHECK(got[3] == data[1]);
}

TEST_CASE("relays: tensors of several groups arrive whole, version after version",
          "[integration]") {
  TwoNodes nodes({.ddr_bytes = 256U << 20U});
  constexpr std::size_t kReaders = 3;
  // Four groups: two tensors make one, and small ones go with what follows or comes before.
  const std::vector<std::uint64_t> shapes = {1'300'000, 10, 1'200'000, 700'000,
                                             700'000,   3,  1'100'000, 5};
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g", "h"};
  using Values = std::vector<std::vector<std::uint32_t>>;
  const auto tensors_of = [&](Values& values) {
    std::vector<ho_tensor> out(shapes.size());
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      values.emplace_back(shapes[i]);
      out[i].name = names[i].c_str();
      out[i].shape = &shapes[i];
      out[i].dimensions = 1;
      out[i].element_bytes = 4;
      out[i].data = values[i].data();
      out[i].bytes = values[i].size() * 4;
    }
    return out;
  };
  const PoolHandle trainer = connect_pool(nodes.address(0), "local");
  ho_object_options options{};
  options.name = "model";
  Values data;
  Publisher publisher(trainer.get(), options, tensors_of(data));
  std::deque<PoolHandle> pools;
  std::vector<Subscriber> readers;
  std::vector<Values> got(kReaders);
  for (std::uint32_t rank = 0; rank < kReaders; ++rank) {
    pools.push_back(connect_pool(nodes.address(static_cast<int>(rank % 2)), "auto"));
    options.mesh = "3:dp";
    options.rank = rank;
    options.run = 5;
    options.relay = "dp";
    readers.emplace_back(pools.back().get(), options, tensors_of(got[rank]));
  }
  for (std::uint32_t version = 1; version <= 4; ++version) {
    INFO("version " << version);
    std::uint32_t next = version;
    for (auto& tensor : data) {
      for (std::uint32_t& element : tensor) element = next += 7;
    }
    publisher.publish(version);
    std::vector<ho_status> status(kReaders, HO_NOT_FOUND);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < kReaders; ++rank) {
      threads.emplace_back([&, rank] {
        std::uint64_t found = 0;
        status[rank] = ho_acquire(readers[rank].get(), version, version, 5000, &found);
        if (status[rank] == HO_OK) status[rank] = ho_object_read(readers[rank].get());
        ho_object_release(readers[rank].get());
      });
    }
    for (std::thread& one : threads) one.join();
    for (std::size_t rank = 0; rank < kReaders; ++rank) {
      CHECK(status[rank] == HO_OK);
      CHECK((got[rank] == data));
      CHECK(number(readers[rank], "relayed_reads") == version);
    }
  }
  std::uint64_t fetched = 0;
  for (const Subscriber& one : readers) fetched += number(one, "fetched_bytes", "relays");
  std::uint64_t bytes = 0;
  for (const std::uint64_t shape : shapes) bytes += shape * 4;
  CHECK(fetched < bytes * 3 / 2);  // whole chunks, at the ends of parts; without relays 3 times
}

TEST_CASE("relays: readers that cannot share are refused", "[integration]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  ObjectRanks ranks("2x2:dp,tp", "-", {100});
  const auto open = [&](const char* relay, std::uint64_t run, std::uint32_t versions = 0) {
    ho_object_options options = ranks.options(0, run);
    options.struct_bytes = sizeof(options);
    options.relay = relay;
    options.versions = versions;
    const ho_tensor tensor = ranks.tensor(0);
    ho_subscriber* out = nullptr;
    const ho_status status = ho_subscriber_open(pool.get(), &options, &tensor, 1, &out);
    ho_subscriber_close(out);
    return status;
  };
  CHECK(open("dp", 1) == HO_OK);
  CHECK(open("dp;tp", 1) == HO_OK);
  CHECK(open("dp", 0) == HO_INVALID_ARGUMENT);
  CHECK(open("dp", 1, 1025) == HO_INVALID_ARGUMENT);
  CHECK(open("pp", 1) == HO_INVALID_ARGUMENT);
  CHECK(open("dp,dp", 1) == HO_INVALID_ARGUMENT);
  CHECK(open("dp;", 1) == HO_INVALID_ARGUMENT);
  CHECK(open(";", 1) == HO_INVALID_ARGUMENT);
}
