#include <catch2/catch.hpp>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.hpp"
#include "common/schedule/check_structure.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tests/support/schedule_examples.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho::test {
namespace {

using schedule::Schedule;

/// A schedule in which every field differs from its default.
Schedule full_schedule() {
  Schedule schedule = training_step();
  schedule.graph_fingerprint = 0x0123456789abcdefU;
  schedule.hardware.flash = TierSpec{1 << 30, {5, 6}, {7, 8}};
  schedule.hardware.device_port_read = Link{9, 10};
  schedule.hardware.device_port_write = Link{11, 12};
  schedule.hardware.device_bytes = 1 << 20;
  schedule.homes[1]->tier = schedule::HomeTier::kRemoteDdr;
  schedule.remote_ddr_bytes = 1024;
  schedule.flash_bytes = 77;
  schedule.ops[0].phase = "forward";
  schedule.ops[1].fixed = true;
  schedule.ops[2].recomputable = true;
  schedule.cache_ops[0].start_ns = 5;
  schedule.cache_ops[0].end_ns = 15;
  schedule.cache_ops[1].ddr_offset_bytes = 16;
  schedule.cache_ops[8].before_next_step = true;
  schedule.prediction.peak_unmanaged_bytes = 1;
  schedule.prediction.peak_planned_bytes = 2;
  schedule.prediction.live_bound_bytes = 3;
  schedule.prediction.compute_ns = 4;
  schedule.prediction.step_ns = 5;
  schedule.prediction.stall_ns = 6;
  schedule.prediction.lower_bound_ns = 7;
  schedule.prediction.prefetch_bytes = 8;
  schedule.prediction.store_bytes = 9;
  schedule.prediction.stage_in_bytes = 10;
  schedule.prediction.stage_out_bytes = 11;
  schedule.prediction.recomputed_ops = 12;
  schedule.prediction.moved_ops = 13;
  schedule.prediction.program_order_step_ns = 14;
  schedule.prediction.first_step_ns = 15;
  schedule.prediction.prologue_ns = 16;
  schedule.prediction.epilogue_ns = 17;
  schedule.prediction.margin_bandwidth = 0.5;
  schedule.prediction.margin_op_time = 0.25;
  schedule.prediction.tiers = {{"device", 13}};
  schedule.prediction.channels = {{"local_ddr.read", 14}};
  schedule.prediction.op_start_ns = {0, 1, 2, 3};
  schedule.explanations = {{StorageIndex(1), "offload", "because", {"keep", "recompute"}}};
  return schedule;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_CASE("schedule file: what is written is read back, field by field") {
  const Schedule schedule = full_schedule();
  const auto decoded = decode_schedule(bytes_of(encode_schedule(schedule)));
  REQUIRE(decoded.ok());
  CHECK(*decoded == schedule);
}

TEST_CASE("schedule file: equal schedules give equal bytes") {
  CHECK(encode_schedule(full_schedule()) == encode_schedule(full_schedule()));
}

TEST_CASE("schedule file: cut at any byte it is refused as corrupt") {
  const std::string file = encode_schedule(full_schedule());
  for (std::size_t cut = 0; cut < file.size(); ++cut) {
    const auto decoded = decode_schedule(bytes_of(file).first(cut));
    REQUIRE(!decoded.ok());
    REQUIRE(decoded.error().code() == Errc::kCorrupt);
  }
  const std::string longer = file + '\0';
  CHECK(decode_schedule(bytes_of(longer)).error().code() == Errc::kCorrupt);
}

TEST_CASE("schedule file: with any bit flipped it is refused as corrupt") {
  std::string file = encode_schedule(full_schedule());
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    const auto mask = static_cast<char>(1U << (bit % 8));
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ mask);
    const auto decoded = decode_schedule(bytes_of(file));
    REQUIRE(!decoded.ok());
    REQUIRE(decoded.error().code() == Errc::kCorrupt);
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ mask);
  }
}

TEST_CASE("schedule file: an intact file of another version is named as such") {
  Schedule schedule = full_schedule();
  schedule.format_version = 2;
  const auto decoded = decode_schedule(bytes_of(encode_schedule(schedule)));
  REQUIRE(!decoded.ok());
  CHECK(decoded.error().code() == Errc::kUnsupported);
  CHECK(decoded.error().context().find('2') != std::string::npos);
}

TEST_CASE("schedule file: a structure that cannot be indexed is refused, checksum or not") {
  const std::vector<std::pair<std::string, std::function<void(Schedule&)>>> breaks{
      {"positions[1].op", [](Schedule& s) { s.positions[1].op = OpIndex(99); }},
      {"storage", [](Schedule& s) { s.positions[0].operands[0].storage = StorageIndex(99); }},
      {"offset", [](Schedule& s) { s.positions[0].operands[0].device_offset_bytes = ~0ULL; }},
      {"cache_ops[3]", [](Schedule& s) { s.cache_ops[3].storage = StorageIndex(8); }},
      {"range", [](Schedule& s) { s.cache_ops[3].range_end_bytes = 257; }},
      {"range", [](Schedule& s) { s.cache_ops[3].range_begin_bytes = 300; }},
      {"after_position",
       [](Schedule& s) { s.cache_ops[3].after_position = schedule::Position(4); }},
      {"before_position",
       [](Schedule& s) { s.cache_ops[3].before_position = schedule::Position(~0U); }},
      {"after_cache_ops",
       [](Schedule& s) { s.cache_ops[2].after_cache_ops[0].op = schedule::CacheOpIndex(10); }},
      {"prologue[0]",
       [](Schedule& s) {
         s.prologue[0].after_cache_ops = {{schedule::CacheOpIndex(2), false}};
       }},
      {"align_bytes", [](Schedule& s) { s.align_bytes = 0; }},
      {"align_bytes", [](Schedule& s) { s.align_bytes = 96; }},
      {"arena_bytes", [](Schedule& s) { s.arena_bytes = ~0ULL; }},
      {"bytes", [](Schedule& s) { s.storages[0].bytes = 0; }},
      {"bytes", [](Schedule& s) { s.storages[0].bytes = ~0ULL; }},
      {"op_start_ns", [](Schedule& s) { s.prediction.op_start_ns.pop_back(); }},
      {"explanations", [](Schedule& s) { s.explanations[0].storage = StorageIndex(99); }},
      {"hardware", [](Schedule& s) { s.hardware.local_ddr->read.bytes_per_s = 0; }},
      {"durations",
       [](Schedule& s) {
         for (auto& op : s.ops) op.duration_ns = std::uint64_t{1} << 61U;
       }},
  };
  for (const auto& [part, change] : breaks) {
    Schedule schedule = full_schedule();
    change(schedule);
    const auto decoded = decode_schedule(bytes_of(encode_schedule(schedule)));
    INFO(part);
    REQUIRE(!decoded.ok());
    CHECK(decoded.error().code() == Errc::kCorrupt);
    INFO(decoded.error().context());
    CHECK(decoded.error().context().find(part) != std::string::npos);
  }
}

TEST_CASE("schedule file: writing replaces the file as a whole and leaves nothing else") {
  const TempFolder folder;
  const std::string path = folder.path("step.hos");
  REQUIRE(write_whole_file(path, "old").ok());
  REQUIRE(write_schedule_file(full_schedule(), path).ok());
  const auto read = read_schedule_file(path);
  REQUIRE(read.ok());
  CHECK(*read == full_schedule());
  CHECK(folder.file_count() == 1);
  CHECK(write_schedule_file(full_schedule(), folder.path("no/such/step.hos")).error().code() ==
        Errc::kNotFound);
}

TEST_CASE("schedule file: writing through a link replaces what it leads to, and the link stays") {
  const TempFolder folder;
  const std::string path = folder.path("step.hos");
  const std::string link = folder.path("link.hos");
  REQUIRE(write_whole_file(path, "old").ok());
  std::filesystem::create_symlink(path, link);
  REQUIRE(write_whole_file(link, "new").ok());
  CHECK(std::filesystem::is_symlink(link));
  CHECK(*read_whole_file(path, 100) == "new");
  CHECK(folder.file_count() == 2);
}

TEST_CASE("schedule file: errors name the file") {
  const TempFolder folder;
  const std::string path = folder.path("bad.hos");
  REQUIRE(write_whole_file(path, "not a schedule").ok());
  CHECK(read_schedule_file(path).error().context().find(path) == 0);
  CHECK(read_schedule_file(folder.path("")).error().code() == Errc::kInvalidArgument);
}

}  // namespace
}  // namespace ho::test
