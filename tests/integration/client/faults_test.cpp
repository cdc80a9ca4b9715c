#include <hyperoffload/hyperoffload.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/patience.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using test::connect_pool;
using test::PlannedJob;
using test::PoolHandle;
using test::PoolSpec;
using test::TwoNodes;
using test::within;

using Time = std::chrono::steady_clock::time_point;

schedule::Schedule some_schedule(std::uint64_t seed) {
  Prng random(seed);
  return test::random_schedule(random);
}

/// Starts a process whose job steps until it is killed. @return its id, once the job is running.
pid_t start_job_process(const std::string& address, const schedule::Schedule& schedule,
                        const char* transport = "auto") {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ho_connect_options options{};
    options.struct_bytes = sizeof(options);
    options.pool = address.c_str();
    options.transport = transport;
    ho_pool* pool = nullptr;
    if (ho_connect(&options, &pool) != HO_OK) ::_exit(2);
    PlannedJob job(pool, schedule, 1);
    if (job.run(1) != HO_OK || ::write(ready[1], "r", 1) != 1) ::_exit(3);
    while (job.run(1) == HO_OK) {
    }
    ::_exit(4);
  }
  ::close(ready[1]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  return child;
}

/// Puts 16 MiB over tcp again and again. Once it has written a byte to `ready`, a transfer is in
/// flight at any moment. @return 0, or an exit code that says what failed.
int copy_for(const std::string& address, std::chrono::milliseconds time, int ready) {
  ho_connect_options options{};
  options.struct_bytes = sizeof(options);
  options.pool = address.c_str();
  options.transport = "tcp";
  ho_pool* pool = nullptr;
  ho_allocation* memory = nullptr;
  std::vector<char> bytes(16U << 20U);
  if (ho_connect(&options, &pool) != HO_OK) return 2;
  if (ho_allocate(pool, bytes.size(), &memory) != HO_OK) return 3;
  if (ho_register(pool, bytes.data(), bytes.size()) != HO_OK) return 4;
  if (::write(ready, "r", 1) != 1) return 7;
  const Time end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    std::uint64_t ticket = 0;
    if (ho_put(pool, memory, 0, bytes.data(), bytes.size(), &ticket) != HO_OK) return 5;
    if (ho_wait(pool, ticket) != HO_OK) {
      std::fprintf(stderr, "a transfer failed: %s\n", ho_last_error());
      return 6;
    }
  }
  ho_free(pool, memory);
  ho_disconnect(pool);
  return 0;
}

struct Failure {
  ho_status status = HO_OK;
  std::string error;
  std::chrono::nanoseconds after{};    ///< from the fault to the error
  std::chrono::nanoseconds cleanup{};  ///< to unload and disconnect
};

/// Runs a job and signals a daemon under it. @return the error that the job got.
Failure fault_under_job(TwoNodes& nodes, const char* transport, int node, int signal) {
  Failure seen;
  Time cleaning;
  {
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    const schedule::Schedule schedule = some_schedule(7);
    PlannedJob job(pool.get(), schedule, 7);
    REQUIRE(job.run(1) == HO_OK);
    Time faulted;
    std::thread killer([&] {
      std::this_thread::sleep_for(200ms);
      faulted = std::chrono::steady_clock::now();
      nodes.daemon(node).send(signal);
    });
    const Time began = std::chrono::steady_clock::now();
    while (seen.status == HO_OK && std::chrono::steady_clock::now() - began < 60s) {
      seen.status = job.run(1);
    }
    const Time told = std::chrono::steady_clock::now();
    killer.join();
    seen.after = told - faulted;
    seen.error = job.error();
    CHECK(job.wrong() == "");
    CHECK(ho_step_begin(job.plan()) == HO_UNAVAILABLE);
    CHECK(ho_sync(job.runtime()) == HO_UNAVAILABLE);
    for (int i = 0; i < 2; ++i) CHECK(ho_leave(job.plan()) == HO_UNAVAILABLE);
    CHECK(ho_step_end(job.plan()) == HO_UNAVAILABLE);
    cleaning = std::chrono::steady_clock::now();
  }
  seen.cleanup = std::chrono::steady_clock::now() - cleaning;
  return seen;
}

bool names_a_tensor(const std::string& text) {
  const schedule::Schedule schedule = some_schedule(7);
  for (const Storage& storage : schedule.storages) {
    if (text.find(" " + storage.name) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("client faults: a killed client's memory is free again within one lease", "[time]") {
  constexpr auto kLease = 2000ms;
  TwoNodes nodes({.lease_ms = kLease.count()});
  const pid_t job = start_job_process(nodes.address(0), some_schedule(7));
  CHECK(nodes.granted_bytes(0) > 0);
  CHECK(nodes.granted_bytes(1) > 0);
  std::this_thread::sleep_for(50ms);
  REQUIRE(::kill(job, SIGKILL) == 0);
  const Time killed = std::chrono::steady_clock::now();
  int status = 0;
  REQUIRE(::waitpid(job, &status, 0) == job);
  REQUIRE(WIFSIGNALED(status));
  while (nodes.granted_bytes(0) + nodes.granted_bytes(1) > 0) {
    REQUIRE(std::chrono::steady_clock::now() - killed < within(kLease + 500ms));
    std::this_thread::sleep_for(5ms);
  }
}

TEST_CASE("client faults: a killed daemon ends the job within 2 s, naming node and tensors",
          "[time]") {
  for (const char* transport : {"auto", "tcp"}) {
    TwoNodes nodes;
    const Failure seen = fault_under_job(nodes, transport, 1, SIGKILL);
    INFO(transport << ": " << seen.error);
    CHECK(seen.status == HO_UNAVAILABLE);
    CHECK(seen.after < within(2s));
    CHECK(seen.cleanup < within(4s));
    CHECK(seen.error.find("node 1 (n1, unix:") != std::string::npos);
    CHECK(names_a_tensor(seen.error));
  }
}

TEST_CASE(
    "client faults: a job learns that it was evicted, also where its memory is refused first") {
  TwoNodes nodes({.nodes = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  PlannedJob job(pool.get(), some_schedule(7), 7);
  REQUIRE(job.run(1) == HO_OK);
  const auto session = nodes.sessions(0).at(0).id;
  REQUIRE(test::connect(nodes.address(0))->evict(session, test::soon()).ok());
  const Time end = std::chrono::steady_clock::now() + 60s;
  while (job.run(1) == HO_OK) REQUIRE(std::chrono::steady_clock::now() < end);
  INFO(job.error());
  CHECK(job.wrong() == "");
  CHECK(job.error().find("administrator") != std::string::npos);
}

TEST_CASE("client faults: between steps, too, an evicted job's runtime has failed for good") {
  TwoNodes nodes({.nodes = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const schedule::Schedule schedule = some_schedule(7);
  PlannedJob job(pool.get(), schedule, 7);
  REQUIRE(job.run(1) == HO_OK);
  const auto kept = std::find_if(schedule.storages.begin(), schedule.storages.end(),
                                 [](const Storage& storage) { return storage.persistent; });
  REQUIRE(kept != schedule.storages.end());
  std::vector<std::byte> value(kept->bytes);
  const bool writes = GENERATE(false, true);
  const auto move = [&] {
    return writes ? ho_write(job.plan(), kept->id, value.data(), value.size())
                  : ho_read(job.plan(), kept->id, value.data(), value.size());
  };
  REQUIRE(move() == HO_OK);
  REQUIRE(test::connect(nodes.address(0))->evict(nodes.sessions(0).at(0).id, test::soon()).ok());
  ho_status status = HO_OK;
  CHECK(test::eventually(60s, [&] {
    status = move();
    return status != HO_OK;
  }));
  CAPTURE(ho_last_error());
  CHECK(status == HO_UNAVAILABLE);
  CHECK(move() == HO_UNAVAILABLE);
  CHECK(ho_step_begin(job.plan()) == HO_UNAVAILABLE);
}

TEST_CASE("client faults: a stopped daemon does not stop a job on the local driver") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const schedule::Schedule schedule = some_schedule(7);
  PlannedJob job(pool.get(), schedule, 7);
  REQUIRE(job.run(1) == HO_OK);
  nodes.daemon(1).send(SIGSTOP);
  const Time stopped = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - stopped < 1200ms) {
    REQUIRE(job.run(1) == HO_OK);
  }
  nodes.daemon(1).send(SIGCONT);
  INFO(job.error());
  REQUIRE(job.run(5) == HO_OK);
  CHECK(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
}

TEST_CASE("client faults: a stopped daemon ends a job over tcp by the deadline, and unload too",
          "[time]") {
  TwoNodes nodes;
  const Failure seen = fault_under_job(nodes, "tcp", 1, SIGSTOP);
  INFO(seen.error);
  CHECK(seen.status == HO_UNAVAILABLE);
  CHECK(seen.after < within(2s));
  CHECK(seen.cleanup < within(5s));
  CHECK(seen.error.find("node 1 (n1, unix:") != std::string::npos);
  CHECK(names_a_tensor(seen.error));
}

TEST_CASE("client faults: plain transfers fail cleanly when their daemon is killed", "[time]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp");
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), 8 << 20, &memory) == HO_OK);
  std::vector<char> bytes(8 << 20);
  REQUIRE(ho_register(pool.get(), bytes.data(), bytes.size()) == HO_OK);
  nodes.daemon(1).send(SIGKILL);
  const Time killed = std::chrono::steady_clock::now();
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  const ho_status status = ho_wait(pool.get(), ticket);
  INFO(ho_last_error());
  CHECK((status == HO_UNAVAILABLE || status == HO_DEADLINE));
  CHECK(std::string(ho_last_error()).find("n1") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - killed < within(2s));
  ho_free(pool.get(), memory);
}

TEST_CASE("client faults: a stopped job goes on when it is continued, over tcp too") {
  TwoNodes nodes;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(copy_for(nodes.address(0), 5500ms, ready[1]));
  ::close(ready[1]);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  for (int i = 0; i < 2; ++i) {
    std::this_thread::sleep_for(500ms);
    REQUIRE(::kill(child, SIGSTOP) == 0);
    std::this_thread::sleep_for(2000ms);  // beyond the deadline of the transfers in flight
    REQUIRE(::kill(child, SIGCONT) == 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("client faults: after() says that the schedule has failed") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const schedule::Schedule schedule = some_schedule(7);
  PlannedJob job(pool.get(), schedule, 7);
  REQUIRE(job.run(1) == HO_OK);
  REQUIRE(job.begin_step() == HO_OK);
  REQUIRE(ho_before(job.plan(), 0) == HO_OK);
  nodes.daemon(1).send(SIGKILL);
  std::this_thread::sleep_for(500ms);  // far longer than noticing a lost connection takes
  CHECK(ho_after(job.plan(), 0) == HO_UNAVAILABLE);
  CHECK(std::string(ho_last_error()).find("n1") != std::string::npos);
}

TEST_CASE("client faults: ending a registration waits for the transfers that use it", "[time]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp");
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), 8 << 20, &memory) == HO_OK);
  std::vector<char> bytes(8 << 20);
  REQUIRE(ho_register(pool.get(), bytes.data(), bytes.size()) == HO_OK);
  nodes.daemon(1).send(SIGSTOP);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  const Time began = std::chrono::steady_clock::now();
  CHECK(ho_unregister(pool.get(), bytes.data()) == HO_OK);
  CHECK(std::chrono::steady_clock::now() - began < within(2s));
  int done = 0;
  CHECK(ho_test(pool.get(), ticket, &done) == HO_OK);
  CHECK(done == 1);
  ho_free(pool.get(), memory);
}

TEST_CASE("client faults: a node that let a transfer over tcp time out gives no more memory") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp");
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), 4 << 20, &memory) == HO_OK);
  std::vector<char> bytes(4 << 20);
  REQUIRE(ho_register(pool.get(), bytes.data(), bytes.size()) == HO_OK);
  nodes.daemon(1).send(SIGSTOP);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  CHECK(ho_wait(pool.get(), ticket) != HO_OK);
  nodes.daemon(1).send(SIGCONT);
  ho_free(pool.get(), memory);
  REQUIRE(ho_allocate(pool.get(), 4 << 20, &memory) == HO_OK);
  REQUIRE(ho_put(pool.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  const ho_status status = ho_wait(pool.get(), ticket);
  INFO(ho_last_error());
  CHECK(status == HO_OK);
  ho_free(pool.get(), memory);
}

TEST_CASE("client faults: a link on which pieces take longer than the deadline loses no node") {
  PoolSpec spec;
  spec.link_bytes_per_s = 8U << 20U;
  TwoNodes nodes(spec);
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "test", 0, 500);
  ho_allocation* memory = nullptr;
  std::vector<char> bytes(16U << 20U, 'a');
  std::vector<char> back(bytes.size());
  REQUIRE(ho_allocate(pool.get(), bytes.size(), &memory) == HO_OK);
  REQUIRE(ho_register(pool.get(), bytes.data(), bytes.size()) == HO_OK);
  REQUIRE(ho_register(pool.get(), back.data(), back.size()) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), memory, 0, bytes.data(), bytes.size(), &ticket) == HO_OK);
  ho_status status = ho_wait(pool.get(), ticket);
  INFO(ho_last_error());
  REQUIRE(status == HO_OK);
  REQUIRE(ho_get(pool.get(), memory, 0, back.data(), back.size(), &ticket) == HO_OK);
  status = ho_wait(pool.get(), ticket);
  INFO(ho_last_error());
  CHECK(status == HO_OK);
  CHECK(back == bytes);
  ho_free(pool.get(), memory);
}

TEST_CASE("client faults: a job whose only node is gone uses it again when it is back") {
  TwoNodes nodes({.nodes = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  nodes.daemon(0).send(SIGKILL);
  nodes.daemon(0).wait();
  ho_pool_room room{};
  room.struct_bytes = sizeof(room);
  REQUIRE(test::eventually(std::chrono::seconds(20), [&] {
    return ho_pool_get_room(pool.get(), HO_ALL_NODES, &room) == HO_OK && room.nodes == 0;
  }));
  nodes.restart(0);
  std::vector<std::byte> arena(4096);
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  memory.arena = arena.data();
  memory.arena_bytes = arena.size();
  ho_runtime* runtime = nullptr;
  CHECK(test::eventually(60s, [&] { return ho_open(pool.get(), &memory, &runtime) == HO_OK; }));
  ho_close(runtime);
}

TEST_CASE("client faults: connecting leaves stopped nodes out within 2 s and a little", "[time]") {
  PoolSpec spec;
  spec.nodes = 4;
  TwoNodes nodes(spec);
  for (int node = 1; node < spec.nodes; ++node) nodes.daemon(node).send(SIGSTOP);
  const Time began = std::chrono::steady_clock::now();
  {
    const PoolHandle pool = connect_pool(nodes.address(0), "auto");
    CHECK(std::chrono::steady_clock::now() - began < within(3s));
    ho_allocation* memory = nullptr;
    CHECK(ho_allocate(pool.get(), 4 << 20, &memory) == HO_OK);
    CHECK(nodes.granted_bytes(0) == 4 << 20);
    ho_free(pool.get(), memory);
  }
  for (int node = 1; node < spec.nodes; ++node) nodes.daemon(node).send(SIGCONT);
}

TEST_CASE("client faults: a stopped node keeps the question for room for 2 s, once", "[time]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  nodes.daemon(1).send(SIGSTOP);
  const Time began = std::chrono::steady_clock::now();
  ho_pool_room room{};
  room.struct_bytes = sizeof(room);
  REQUIRE(ho_pool_get_room(pool.get(), HO_ALL_NODES, &room) == HO_OK);
  CHECK(std::chrono::steady_clock::now() - began < within(3s));
  CHECK(room.ddr_bytes == 32U << 20U);
  nodes.daemon(1).send(SIGCONT);
}

TEST_CASE(
    "client faults: however many nodes are stopped, an allocation fails only once, within 2 s",
    "[time]") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  for (const int node : {0, 1}) nodes.daemon(node).send(SIGSTOP);
  const Time began = std::chrono::steady_clock::now();
  ho_allocation* memory = nullptr;
  CHECK(ho_allocate(pool.get(), 4 << 20, &memory) == HO_DEADLINE);
  CHECK(std::string(ho_last_error()).find("[deadline]") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - began < within(3s));
  nodes.daemon(1).send(SIGCONT);
  CHECK(ho_allocate(pool.get(), 4 << 20, &memory) == HO_OK);  // from the one that answers
  CHECK(nodes.granted_bytes(1) == 4 << 20);
  ho_free(pool.get(), memory);
  CHECK(nodes.granted_bytes(1) == 0);
  // A stopped node frees what was returned to it once it goes on.
  CHECK(ho_allocate(pool.get(), 4 << 20, &memory) == HO_OK);
  nodes.daemon(1).send(SIGSTOP);
  ho_free(pool.get(), memory);
  nodes.daemon(1).send(SIGCONT);
  CHECK(test::eventually(60s, [&] { return nodes.granted_bytes(1) == 0; }));
  nodes.daemon(0).send(SIGCONT);
}

TEST_CASE("client faults: one job's failure leaves the other and its leases alone", "[time]") {
  TwoNodes nodes({.lease_ms = 3'000});
  const schedule::Schedule schedule = some_schedule(7);
  const pid_t other = start_job_process(nodes.address(0), schedule, "tcp");
  const std::uint64_t alone = nodes.granted_bytes(0) + nodes.granted_bytes(1);
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "survivor");
  PlannedJob survivor(pool.get(), schedule, 7);
  CHECK(nodes.granted_bytes(0) + nodes.granted_bytes(1) == 2 * alone);
  REQUIRE(survivor.run(3) == HO_OK);
  REQUIRE(::kill(other, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(other, &status, 0) == other);
  // Waits until the other's leases have expired, which frees its memory.
  const Time killed = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::steady_clock::now() - killed; };
  const auto granted = [&] { return nodes.granted_bytes(0) + nodes.granted_bytes(1); };
  while (granted() > alone || passed() < 4s) {
    REQUIRE(survivor.run(1) == HO_OK);
    if (granted() > alone) REQUIRE(passed() < within(4s));
  }
  CHECK(granted() == alone);
  for (int node : {0, 1}) {
    const auto sessions = nodes.sessions(node);
    REQUIRE(sessions.size() == 1);
    CHECK(sessions[0].name == "survivor");
  }
  INFO(survivor.error());
  CHECK(survivor.sync_and_compare() == HO_OK);
  CHECK(survivor.wrong() == "");
}
