// Parts of persistent values, written and read between steps.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <hyperoffload/hyperoffload.hpp>
#include <string>

#include "common/schedule/schedule.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/host_memory.hpp"
#include "tests/support/schedule_builder.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::HostMemory;
using test::TwoNodes;

void* take_part(void* context, ho_storage, std::uint64_t bytes) {
  return static_cast<HostMemory*>(context)->allocate(bytes);
}
void drop_part(void* context, ho_storage, void* memory) {
  static_cast<HostMemory*>(context)->free(static_cast<std::byte*>(memory));
}

TEST_CASE("ranges: a range of a value is written and read, and the rest stays") {
  TwoNodes nodes;
  hyperoffload::Pool pool({nodes.address(0), "ranges"});
  HostMemory host;
  hyperoffload::Runtime runtime(pool, take_part, drop_part, &host);
  B b;
  const auto w = b.storage("w", 1000, B::kWeight, 0);
  const auto x = b.storage("x", 64, B::kInput, 1024);
  b.op({B::read(w, 0), B::read(x, 1024)});
  const auto detach = b.detach(w, 0, {.after = 0});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(detach)}});
  b.prefetch(x, 1024, {.before = 0});
  const std::string encoded = encode_schedule(b.finish());
  hyperoffload::Plan plan(runtime, encoded.data(), encoded.size());
  const std::string part = "a shard";
  plan.write_range(100, 993, part.data(), part.size());
  std::string all(1000, '?');
  plan.read(100, all.data(), all.size());
  CHECK(all == std::string(993, '\0') + part);
  std::string read(3, '?');
  plan.read_range(100, 995, read.data(), read.size());
  CHECK(read == "sha");
  const auto refused = [&](ho_status expected, const std::string& words, std::uint32_t id,
                           std::uint64_t offset, std::size_t bytes) {
    CHECK(ho_write_range(plan.get(), id, offset, all.data(), bytes) == expected);
    CHECK(ho_last_error() == words);
  };
  refused(HO_OUT_OF_RANGE, "w has 1000 bytes, the range is 8 from 993 on", 100, 993, 8);
  refused(HO_OUT_OF_RANGE, "w has 1000 bytes, the range is 1 from 18446744073709551615 on", 100,
          UINT64_MAX, 1);
  refused(HO_INVALID_ARGUMENT, "a range of 0 bytes", 100, 0, 0);
  refused(HO_INVALID_ARGUMENT, "x is an INPUT: write all of it", 101, 8, 8);
  refused(HO_NOT_FOUND, "no storage with id 99", 99, 0, 1);
  CHECK(ho_read_range(plan.get(), 100, 1000, all.data(), 1) == HO_OUT_OF_RANGE);
  CHECK(ho_read_range(plan.get(), 101, 0, all.data(), 1) == HO_INVALID_ARGUMENT);
  // Declared, and so without a value: the rest of it would be of nobody.
  const ho_storage number = plan.storage(100);
  void* const memory = host.allocate(1000);
  runtime.adopt(number, memory);
  runtime.forget(number);
  refused(HO_CONFLICT,
          "w has no value: the job freed its last copy, or left a step that would have overwritten "
          "it",
          100, 0, 1);
  host.free(static_cast<std::byte*>(memory));
  CHECK(ho_write(plan.get(), 100, all.data(), all.size()) == HO_OK);
}

TEST_CASE("ranges: a part goes to both homes of a value, and where it is on the device") {
  constexpr std::uint64_t kBytes = 64 << 10;
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.prologue(w, 0, {.before = 0});
  schedule::Schedule made = b.finish();
  made.second_homes = {schedule::HomeSlot{schedule::HomeTier::kLocalDdr, kBytes}};
  made.local_ddr_bytes = 2 * kBytes;
  const std::string encoded = encode_schedule(made);
  for (const int lost : {0, 1}) {
    INFO("node " << lost << " is lost");
    TwoNodes nodes;
    hyperoffload::Pool pool({nodes.address(0), "ranges"});
    HostMemory host;
    hyperoffload::Runtime runtime(pool, take_part, drop_part, &host);
    hyperoffload::Plan plan(runtime, encoded.data(), encoded.size());
    std::string value(kBytes, 'a');
    plan.write(100, value.data(), value.size());
    plan.step_begin();
    plan.before(0);
    plan.after(0);
    plan.step_end();
    const std::string part(5000, 'b');
    value.replace(12345, part.size(), part);
    plan.write_range(100, 12345, part.data(), part.size());
    CHECK(runtime.state(plan.storage(100)).on_device == 1);
    plan.step_begin();
    plan.before(0);
    const auto* const there = static_cast<const char*>(plan.operand(0, 100));
    CHECK(std::string(there, kBytes) == value);
    plan.after(0);
    plan.step_end();
    nodes.daemon(lost).send(SIGKILL);
    nodes.daemon(lost).wait();
    std::string found(kBytes, '?');
    plan.read(100, found.data(), found.size());
    CHECK(found == value);
  }
}

}  // namespace
