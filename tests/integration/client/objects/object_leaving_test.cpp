// Versions of published objects leave nodes that are drained.
#include <hyperoffload/objects.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <hyperoffload/objects.hpp>

#include "tests/integration/client/objects/object_ranks.hpp"
#include "tests/integration/client/two_nodes.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using hyperoffload::Publisher;
using hyperoffload::Subscriber;
using test::connect_pool;
using test::PoolHandle;
using test::TwoNodes;
using Ranks = test::ObjectRanks;

constexpr test::PoolSpec kThree{.lease_ms = 1500, .nodes = 3};

void drain(const TwoNodes& nodes, int node) {
  REQUIRE(test::connect(nodes.address(node))->drain(test::soon()).ok());
}

void kill(TwoNodes& nodes, int node) {
  nodes.daemon(node).send(SIGKILL);
  nodes.daemon(node).wait();
}

bool has_memory(const TwoNodes& nodes, int node) { return nodes.granted_bytes(node) > 0; }

/// Versions are announced there.
bool has_versions(const TwoNodes& nodes, int node) {
  const auto sessions = nodes.sessions(node);
  return std::any_of(sessions.begin(), sessions.end(),
                     [](const SessionInfo& session) { return session.published_bytes > 0; });
}

bool is_left(const TwoNodes& nodes, int node) {
  return test::eventually(60s, [&] { return !has_memory(nodes, node); });
}

}  // namespace

TEST_CASE("objects: versions leave a drained node, and readers find them on another") {
  TwoNodes nodes(kThree);
  const PoolHandle trainer = connect_pool(nodes.address(0), "auto");
  const PoolHandle sampler = connect_pool(nodes.address(1), "auto");
  Ranks from("1:all", "-;-", {700, 700});
  Ranks to("1:all", "-;-", {700, 700});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  for (const std::uint32_t version : {1U, 2U}) {
    from.fill(version);
    publisher.publish(version);
  }
  REQUIRE(has_memory(nodes, 0));
  std::uint64_t published = 0;
  for (const SessionInfo& session : nodes.sessions(0)) published += session.published_bytes;
  CHECK(published == nodes.granted_bytes(0));
  drain(nodes, 0);
  REQUIRE(is_left(nodes, 0));
  kill(nodes, 0);
  for (const std::uint32_t version : {1U, 2U}) {
    REQUIRE(subscriber.acquire(version, 0, version) == version);
    to.clear();
    subscriber.read();
    CHECK(to.holds(0, version));
  }
  subscriber.release();
  from.fill(3);
  publisher.publish(3);
  REQUIRE(subscriber.acquire() == 3);
  subscriber.read();
  CHECK(to.holds(0, 3));
}

TEST_CASE("objects: a version that a reader has open leaves a drained node when it is closed") {
  TwoNodes nodes(kThree);
  const PoolHandle trainer = connect_pool(nodes.address(0), "auto");
  const PoolHandle sampler = connect_pool(nodes.address(0), "auto");
  Ranks from("1:all", "-;-", {700, 700});
  Ranks to("1:all", "-;-", {700, 700});
  Ranks too("1:all", "-;-", {700, 700});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  Subscriber other(sampler.get(), too.options(0), {too.tensor(0)});
  from.fill(1);
  publisher.publish(1);
  REQUIRE(subscriber.acquire() == 1);
  drain(nodes, 0);
  REQUIRE(test::eventually(60s, [&] { return has_versions(nodes, 1) || has_versions(nodes, 2); }));
  REQUIRE(test::eventually(60s, [&] {
    ho_pool_notice notice{};
    notice.struct_bytes = sizeof(notice);
    REQUIRE(ho_pool_get_notice(sampler.get(), &notice) == HO_OK);
    return notice.drained_nodes == 1;
  }));
  REQUIRE(other.acquire(1, 60'000) == 1);  // where it stays
  other.read();
  CHECK(too.holds(0, 1));
  CHECK(has_memory(nodes, 0));
  subscriber.read();
  CHECK(to.holds(0, 1));
  subscriber.release();
  CHECK(is_left(nodes, 0));
  other.read();
  CHECK(too.holds(0, 1));
}

TEST_CASE("objects: the old copy that a reader had open is dropped after undrain, too") {
  TwoNodes nodes(kThree);
  const PoolHandle trainer = connect_pool(nodes.address(0), "auto");
  const PoolHandle sampler = connect_pool(nodes.address(0), "auto");
  Ranks from("1:all", "-;-", {64, 64});
  Ranks to("1:all", "-;-", {64, 64});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  from.fill(1);
  publisher.publish(1);
  REQUIRE(subscriber.acquire() == 1);
  drain(nodes, 0);
  REQUIRE(test::eventually(60s, [&] { return has_versions(nodes, 1) || has_versions(nodes, 2); }));
  REQUIRE(test::connect(nodes.address(0))->undrain(test::soon()).ok());
  REQUIRE(test::eventually(60s, [&] {
    ho_pool_notice notice{};
    notice.struct_bytes = sizeof(notice);
    REQUIRE(ho_pool_get_notice(trainer.get(), &notice) == HO_OK);
    return notice.drained_nodes == 0;
  }));
  CHECK(has_memory(nodes, 0));
  subscriber.release();
  CHECK(is_left(nodes, 0));
}

TEST_CASE("objects: a version that is published while others leave a drained node is whole") {
  TwoNodes nodes(kThree);
  const PoolHandle trainer = connect_pool(nodes.address(0), "tcp", "slow", 4U << 20U, 60'000);
  const PoolHandle sampler = connect_pool(nodes.address(1), "auto");
  Ranks from("1:all", "-;-", {700, 700});
  Ranks to("1:all", "-;-", {700, 700});
  ho_object_options options = from.options(0, 7);
  options.link_bytes_per_s = 512U << 10U;  // it takes longer than the copy of the first version
  Publisher publisher(trainer.get(), options, {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  from.fill(1);
  publisher.publish(1);
  int victim = 0;
  while (!has_memory(nodes, victim)) victim += 1;
  drain(nodes, victim);
  REQUIRE(test::eventually(60s, [&] {
    bool taken = false;
    for (int node = 0; node < 3; ++node) taken |= node != victim && has_memory(nodes, node);
    return taken;
  }));
  from.fill(2);
  publisher.publish(2);
  for (const std::uint32_t version : {1U, 2U}) {
    REQUIRE(subscriber.acquire(version, 0, version) == version);
    subscriber.read();
    CHECK(to.holds(0, version));
  }
  subscriber.release();
  CHECK(is_left(nodes, victim));
}

TEST_CASE("objects: nodes are drained one after another while a job publishes and another reads") {
  TwoNodes nodes(kThree);
  const PoolHandle trainer = connect_pool(nodes.address(0), "auto");
  const PoolHandle sampler = connect_pool(nodes.address(1), "auto");
  Ranks from("1:all", "-;-", {700, 700});
  Ranks to("1:all", "-;-", {700, 700});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  std::uint32_t version = 0;
  const auto turn = [&] {
    version += 1;
    from.fill(version);
    publisher.publish(version);
    to.clear();
    REQUIRE(subscriber.acquire(version, 60'000) == version);
    subscriber.read();
    CHECK(to.holds(0, version));
    subscriber.release();
  };
  turn();
  for (int i = 0; i < 4; ++i) {
    int victim = 0;
    while (!has_memory(nodes, victim)) victim += 1;
    drain(nodes, victim);
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (has_memory(nodes, victim)) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      turn();
    }
    REQUIRE(test::connect(nodes.address(victim))->undrain(test::soon()).ok());
    turn();
  }
}

TEST_CASE("objects: a node that is lost while versions leave a drained one") {
  TwoNodes nodes(kThree);
  // So slow that the bytes are under way when a node is killed.
  const PoolHandle trainer = connect_pool(nodes.address(0), "tcp", "slow", 1U << 20U, 60'000);
  const PoolHandle sampler = connect_pool(nodes.address(1), "auto");
  Ranks from("1:all", "-;-", {700, 700});
  Ranks to("1:all", "-;-", {700, 700});
  Publisher publisher(trainer.get(), from.options(0, 7), {from.tensor(0)});
  Subscriber subscriber(sampler.get(), to.options(0), {to.tensor(0)});
  from.fill(1);
  publisher.publish(1);
  int victim = 0;
  while (!has_memory(nodes, victim)) victim += 1;
  drain(nodes, victim);
  int taker = -1;
  REQUIRE(test::eventually(60s, [&] {
    for (int node = 0; node < 3; ++node) {
      if (node != victim && has_memory(nodes, node)) taker = node;
    }
    return taker >= 0;
  }));
  SECTION("and was to take them changes nothing") {
    kill(nodes, taker);
    REQUIRE(subscriber.acquire() == 1);
    subscriber.read();
    CHECK(to.holds(0, 1));
    subscriber.release();
    CHECK(is_left(nodes, victim));
    REQUIRE(subscriber.acquire() == 1);
    subscriber.read();
    CHECK(to.holds(0, 1));
  }
  SECTION("and is the drained one takes them with it") {
    kill(nodes, victim);
    std::uint64_t found = 0;
    CHECK(ho_acquire(subscriber.get(), 0, UINT64_MAX, 0, &found) != HO_OK);
    CHECK(ho_publish(publisher.get(), 2) == HO_UNAVAILABLE);
  }
}
