// What the C++ header adds to the C one.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <hyperoffload/hyperoffload.hpp>
#include <mutex>
#include <string>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/host_memory.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/stderr_capture.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::HostMemory;
using test::StderrCapture;
using test::TwoNodes;

hyperoffload::Pool connected(const TwoNodes& nodes) {
  hyperoffload::Pool::Options options;
  options.pool = nodes.address(0);
  return hyperoffload::Pool(options);
}

hyperoffload::Runtime opened(hyperoffload::Pool& pool, HostMemory& host) {
  return {pool,
          [](void* context, ho_storage, std::uint64_t bytes) -> void* {
            return static_cast<HostMemory*>(context)->allocate(bytes);
          },
          [](void* context, ho_storage, void* memory) {
            static_cast<HostMemory*>(context)->free(static_cast<std::byte*>(memory));
          },
          &host};
}

/// The log's lines while it lives.
class LogLines {
 public:
  explicit LogLines(ho_log_level least) { hyperoffload::set_log(least, &LogLines::take, this); }
  ~LogLines() { ho_set_log(HO_LOG_INFO, nullptr, nullptr); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  [[nodiscard]] std::string text() {
    const std::lock_guard guard(mutex_);
    return text_;
  }

 private:
  static void take(void* context, ho_log_level level, const char* text) {
    auto& lines = *static_cast<LogLines*>(context);
    const std::lock_guard guard(lines.mutex_);
    lines.text_ += std::to_string(level) + " " + text + "\n";
  }
  std::mutex mutex_;
  std::string text_;
};

TEST_CASE("client: the library has its header's version") {
  const std::string header = std::to_string(HO_VERSION_MAJOR) + '.' +
                             std::to_string(HO_VERSION_MINOR) + '.' +
                             std::to_string(HO_VERSION_PATCH);
  CHECK(ho_version() == header);
}

TEST_CASE("client: the C++ pool tells its room, and allocates among some nodes") {
  TwoNodes nodes;
  hyperoffload::Pool::Options options;
  options.pool = nodes.address(0);
  hyperoffload::Pool pool(options);
  const ho_pool_room room = pool.room();
  CHECK(room.nodes == 2);
  CHECK(room.ddr_bytes > 0);
  CHECK(pool.room(HO_FAR_NODES).nodes == 0);
  CHECK(pool.allocate(4096, HO_NEAR_NODES).get() != nullptr);
  CHECK_THROWS_AS(pool.allocate(4096, HO_FAR_NODES), hyperoffload::Error);
}

TEST_CASE("client: the job takes log lines in place of stderr, from a level on") {
  TwoNodes nodes;
  nodes.daemon(1).send(SIGKILL);
  nodes.daemon(1).wait();
  const StderrCapture captured;
  const std::string line = "left a node of the pool out";
  {
    LogLines lines(HO_LOG_WARNING);
    (void)connected(nodes);
    CHECK_THAT(lines.text(), Catch::StartsWith("2 " + line + " node=n1 reason="));
  }
  {
    LogLines lines(HO_LOG_ERROR);
    (void)connected(nodes);
    CHECK(lines.text() == "");
  }
  CHECK(captured.text() == "");
  (void)connected(nodes);
  CHECK_THAT(captured.text(), Catch::Contains(" warning " + line));
  int beyond = HO_LOG_ERROR;
  beyond += 1;
  CHECK(ho_set_log(static_cast<ho_log_level>(beyond), nullptr, nullptr) == HO_INVALID_ARGUMENT);
}

TEST_CASE("client: HYPEROFFLOAD_LOG has precedence over the job's log level") {
  struct LogVariable {
    explicit LogVariable(const char* value) { ::setenv("HYPEROFFLOAD_LOG", value, 1); }
    ~LogVariable() { ::unsetenv("HYPEROFFLOAD_LOG"); }
  };
  TwoNodes nodes;
  nodes.daemon(1).send(SIGKILL);
  nodes.daemon(1).wait();
  {
    const LogVariable variable("warning");
    LogLines lines(HO_LOG_ERROR);
    (void)connected(nodes);
    CHECK_THAT(lines.text(), Catch::Contains("left a node of the pool out"));
  }
  LogLines lines(HO_LOG_INFO);
  {
    const LogVariable variable("error");
    (void)connected(nodes);
    CHECK(lines.text() == "");
  }
  hyperoffload::Pool::Options options;
  options.pool = nodes.address(0);
  options.wait_ms = 1500;  // more than a call takes, so that a wait begins
  hyperoffload::Pool pool(options);
  const auto wait = [&] { CHECK_THROWS_AS(pool.allocate(1ULL << 40U), hyperoffload::Error); };
  {
    const LogVariable variable("error");
    LogLines less(HO_LOG_INFO);
    wait();
    CHECK(less.text() == "");
  }
  {
    LogLines more(HO_LOG_INFO);
    wait();
    CHECK_THAT(more.text(), Catch::Contains("1 waiting for memory "));
  }
  const LogVariable variable("loud");
  const char* const words = "HYPEROFFLOAD_LOG is \"loud\", not one of debug, info, warning, error";
  CHECK_THROWS_WITH(connected(nodes), Catch::EndsWith(words));
  CHECK(ho_set_log(HO_LOG_INFO, nullptr, nullptr) == HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Equals(words));
}

TEST_CASE("client: a ticket of another pool is refused, and stays") {
  TwoNodes nodes;
  hyperoffload::Pool one = connected(nodes);
  hyperoffload::Pool other = connected(nodes);
  std::vector<std::byte> memory(4096);
  one.register_memory(memory.data(), memory.size());
  std::vector<std::byte> its_memory(memory.size());
  other.register_memory(its_memory.data(), its_memory.size());
  const auto allocation = one.allocate(memory.size());
  const auto others = other.allocate(memory.size());
  const std::uint64_t ticket = one.get(allocation, 0, memory.data(), memory.size());
  const std::uint64_t its = other.get(others, 0, its_memory.data(), its_memory.size());
  int done = 0;
  CHECK(ho_wait(other.get(), ticket) == HO_INVALID_ARGUMENT);
  CHECK_THAT(ho_last_error(), Catch::Equals("the ticket is not one of this pool"));
  CHECK(ho_test(other.get(), ticket, &done) == HO_INVALID_ARGUMENT);
  CHECK(ho_wait(one.get(), ticket) == HO_OK);
  CHECK(ho_wait(one.get(), ticket) == HO_NOT_FOUND);
  CHECK(ho_test(one.get(), ticket, &done) == HO_NOT_FOUND);
  other.wait(its);
}

TEST_CASE("client: a plan lists its storages and the ops at its positions") {
  TwoNodes nodes;
  hyperoffload::Pool pool = connected(nodes);
  HostMemory host;
  hyperoffload::Runtime runtime = opened(pool, host);
  B b;
  const auto w = b.storage("w", 4096, B::kWeight, 0);
  const auto x = b.storage("x", 64, B::kInput, 4096);
  const auto unnamed = b.storage("", 128, B::kActivation);
  b.op({B::read(w, 0), B::read(x, 4096), B::write(unnamed, 8192)});
  b.op({B::read(unnamed, 8192)});
  const auto detach = b.detach(w, 0, {.after = 0});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(detach)}});
  b.prefetch(x, 4096, {.before = 0});
  schedule::Schedule schedule = b.finish();
  schedule.storages[0].id = 7;  // listed by id, not by place
  schedule.storages[1].id = 3;
  const std::string encoded = encode_schedule(schedule);
  const hyperoffload::Plan plan(runtime, encoded.data(), encoded.size());
  const auto storages = plan.storages();
  REQUIRE(storages.size() == 3);
  const auto listed = [](const ho_storage_info& one) {
    return std::to_string(one.id) + " " + one.name + " " + one.kind + " " +
           std::to_string(one.bytes) + " " + std::to_string(one.persistent);
  };
  CHECK(listed(storages[0]) == "3 x INPUT 64 0");
  CHECK(listed(storages[1]) == "7 w WEIGHT 4096 1");
  CHECK(listed(storages[2]) == "102 #102 ACTIVATION 128 0");
  CHECK(plan.position_name(0) == "op0");
  CHECK(plan.position_name(1) == "op1");
  CHECK(plan.position_name(2) == "");
  ho_storage_info info{};
  info.struct_bytes = sizeof(info);
  CHECK(ho_get_storage_info(plan.get(), 3, &info) == HO_OUT_OF_RANGE);
  CHECK_THAT(ho_last_error(), Catch::Equals("the plan has 3 storages, none at 3"));
  CHECK(ho_storage_count(nullptr) == 0);
}

}  // namespace
