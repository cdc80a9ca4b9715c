// The block store of a real daemon, by its requests.
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/units.hpp"
#include "tests/integration/daemon/blocks_job.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {

namespace {

/// Maps the file behind a descriptor; null: nothing was given.
std::byte* map(const Result<std::vector<GrantedSegment>>& segments) {
  if (!segments || segments->empty()) return nullptr;
  void* const at = ::mmap(nullptr, segments->front().length_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED, segments->front().fd.get(), 0);
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

}  // namespace

TEST_CASE("blocks: what one job of a tenant stores another finds, with the bytes") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job one(unix_address(folder), "chat");
  Job two(unix_address(folder), "chat");
  const BlockSlot slot = one.reserve(1, 1).front();
  REQUIRE(slot.answer == BlockAnswer::kReserved);
  CHECK(two.stored(1, 1) == 0);
  std::byte* const written = map(one.attach(slot.segment));
  REQUIRE(written != nullptr);
  std::memset(written + slot.offset_bytes, 7, kBlock);
  BlocksSettlement commit;
  commit.commits.push_back({slot.id, {3, 4}});
  CHECK_FALSE(two.settle(commit).front());  // another session's
  CHECK(one.settle(commit).front());
  const BlockLocation found = two.locate(1, 1).front();
  CHECK(found.id == slot.id);
  CHECK(found.checksum == BlockChecksum{3, 4});
  std::byte* const read = map(two.attach(found.segment));
  REQUIRE(read != nullptr);
  CHECK(std::memcmp(read + found.offset_bytes, written + slot.offset_bytes, kBlock) == 0);
  CHECK(two.reserve(1, 1).front().answer == BlockAnswer::kExists);
}

TEST_CASE("blocks: a tenant reaches neither keys nor segments of another") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job one(unix_address(folder), "chat");
  REQUIRE(one.put(1, 3) == 3);
  const SegmentId segment = one.locate(1, 1).front().segment;
  Job other(unix_address(folder), "search");
  Job secret(unix_address(folder), "chat", "0123456789abcdef");
  for (Job* job : {&other, &secret}) {
    CHECK(job->stored(1, 3) == 0);
    const auto attached = job->attach(segment);
    REQUIRE(attached.ok());
    CHECK(attached->empty());
    REQUIRE(job->put(1, 1) == 1);
    CHECK(job->locate(1, 1).front().segment != segment);
  }
  Job same(unix_address(folder), "chat", "0123456789abcdef");
  CHECK(same.stored(1, 1) == 1);
  Job wrong(unix_address(folder), "chat", "0123456789abcdeX");
  CHECK(wrong.stored(1, 1) == 0);
}

TEST_CASE("blocks: a session that opens a store again has the same, and 16 different ones") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  const Job job(unix_address(folder), "chat");
  const auto open = [&](const std::string& tenant, const std::string& model) {
    const BlocksTenantSpec spec{tenant, "", model};
    return job.client->blocks_open(job.session, spec, soon());
  };
  for (int i = 0; i < 40; ++i) CHECK(open("chat", "llama").value() == job.store);
  for (int i = 1; i < 8; ++i) REQUIRE(open("chat", std::to_string(i)).ok());
  for (int i = 0; i < 8; ++i) REQUIRE(open(std::to_string(i), "llama").ok());
  CHECK(open("search", "llama").error().code() == Errc::kExhausted);
  CHECK(open("chat", "llama").value() == job.store);
  CHECK(open("7", "llama").value() == 15);
}

TEST_CASE("blocks: a full store evicts, and shares its segments equally between tenants") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job one(unix_address(folder), "chat");
  CHECK(one.put_all(0, 40) == 40);  // there are 32 slots
  CHECK(one.stored(0, 40) == 32);
  CHECK(one.stored(8, 32) == 32);
  Job two(unix_address(folder), "search");
  CHECK(two.put_all(0, 40) == 40);
  CHECK(two.stored(0, 40) == 16);
  CHECK(one.stored(0, 40) == 16);
  // Blocks of another size take a segment of the tenant's own.
  CHECK(two.put(100, 1, kMiB) == 1);
  CHECK(two.stored(0, 40) == 8);
  CHECK(one.stored(0, 40) == 16);
  const auto report = connect(unix_address(folder))->blocks_list(soon());
  REQUIRE(report.ok());
  REQUIRE(report->tenants.size() == 2);
  CHECK(report->capacity_bytes == 8 * kMiB);
  for (const auto& tenant : report->tenants) CHECK(tenant.held_bytes == 4 * kMiB);
}

TEST_CASE("blocks: a tenant that goes over to another size evicts those that it does not use") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job job(unix_address(folder), "chat");
  REQUIRE(job.put_all(0, 32) == 32);
  for (std::uint64_t i = 0; i < 48; ++i) {
    REQUIRE(job.stored(0, 4) == 4);  // these are in use
    REQUIRE(job.put(100 + i, 1, kBlock / 2) == 1);
  }
  CHECK(job.stored(100, 48) == 48);
  CHECK(job.stored(0, 32) == 8);  // a segment
  std::uint64_t next = 200;
  CHECK(eventually(std::chrono::seconds(20), [&] {  // it looks for such a segment once a second
    REQUIRE(job.put(next++, 1, kBlock / 2) == 1);
    const auto report = job.client->blocks_list(soon());
    return report.ok() && report->tenants.front().models.front().blocks == 64;
  }));
  CHECK(job.stored(0, 32) == 0);
}

TEST_CASE("blocks: another size has room as soon as what filled the store is written") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job job(unix_address(folder), "chat");
  REQUIRE(job.put(0, 40) == 32);  // at a time; while they are written no segment is to have
  CHECK(job.put(100, 1, 4 * kKiB) == 1);
  CHECK(job.put(101, 1, kBlock / 2) == 1);
}

TEST_CASE("blocks: a store that finds the pool full answers at once, and evicts its own") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job one(unix_address(folder), "chat");
  CHECK(one.put_all(0, 8) == 8);
  const auto other = connect(unix_address(folder));
  const auto session = other->open_session("fills", soon(), "local");
  REQUIRE(session.ok());
  GrantSpec rest;
  rest.bytes = 30 * kMiB;
  rest.driver = "local";
  REQUIRE(other->grant(*session, rest, soon()).ok());
  CHECK(one.put_all(8, 8) == 8);
  CHECK(one.stored(0, 16) == 8);
}

TEST_CASE("blocks: a segment that is taken away under a request for it ends nothing") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job one(unix_address(folder), "chat");
  REQUIRE(one.put_all(0, 32) == 32);
  std::vector<SegmentId> segments;
  for (std::uint64_t i = 0; i < 32; i += 8) segments.push_back(one.locate(i, 1).front().segment);
  REQUIRE(one.attach(segments[0]).ok());
  for (std::uint64_t i = 8; i < 32; ++i) (void)one.locate(i, 1);  // the first is the coldest
  const auto second = one.client->blocks_open(one.session, {"search", "", "llama"}, soon());
  REQUIRE(second.ok());
  // One after the other, in one go: the first segment is shared already, the others are not.
  auto attached = std::make_shared<std::promise<bool>>();
  REQUIRE(one.client
              ->blocks_attach(one.session, one.store, "local", segments,
                              [attached](auto granted) { attached->set_value(granted.ok()); })
              .ok());
  const std::vector<BlockWish> wishes{{key(100), kBlock, 1}};
  const auto reserved = answer_of<std::vector<BlockSlot>>([&](auto done) {
    return one.client->blocks_reserve(one.session, *second, wishes, std::move(done));
  });
  CHECK(reserved.ok());
  CHECK(attached->get_future().get());
  CHECK(one.stored(0, 32) == 24);
}

TEST_CASE("blocks: a session's end frees its reservations, and its blocks stay") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, kStore), {}});
  Job stays(unix_address(folder), "chat");
  {
    Job goes(unix_address(folder), "chat");
    REQUIRE(goes.put(0, 1) == 1);
    REQUIRE(goes.reserve(1, 31).back().answer == BlockAnswer::kReserved);
    REQUIRE(stays.reserve(50, 2).back().answer == BlockAnswer::kNoRoom);
    REQUIRE(goes.client->close_session(goes.session, soon()).ok());
  }
  CHECK(eventually(std::chrono::seconds(20),
                   [&] { return stays.reserve(60, 1).front().answer == BlockAnswer::kReserved; }));
  REQUIRE(stays.put(1, 8) == 8);
  CHECK(stays.stored(0, 9) >= 8);
}

TEST_CASE("blocks: an administrator clears a tenant, whose memory is free then") {
  const TempFolder folder;
  std::string config = small_config(folder, kStore);
  config.replace(config.find("drain_ms: 1000"), 14, "drain_ms: 60000");
  DaemonProcess daemon(folder, "d", {config, {}});
  Job one(unix_address(folder), "chat");
  REQUIRE(one.put(0, 4) == 4);
  const auto client = connect(unix_address(folder));
  const auto report = client->blocks_list(soon());
  REQUIRE(report.ok());
  REQUIRE(report->tenants.size() == 1);
  CHECK(report->tenants.front().models.front().name == "llama");
  CHECK(report->tenants.front().models.front().bytes == 4 * kBlock);
  CHECK(client->blocks_clear("nobody", soon()).error().code() == Errc::kNotFound);
  const auto cleared = client->blocks_clear(report->tenants.front().name, soon());
  REQUIRE(cleared.ok());
  CHECK(cleared->blocks == 4);
  CHECK(one.stored(0, 4) == 0);
  CHECK(eventually(std::chrono::seconds(20), [&] {
    const auto status = client->status(soon());
    return status.ok() && status->ddr_granted_bytes == 0;
  }));
  CHECK(one.put(0, 4) == 4);
  // A daemon that ends says so to puts, and not that its store is full.
  daemon.send(SIGTERM);
  CHECK(eventually(std::chrono::seconds(20), [&] {
    const auto slots = one.try_reserve(9, 1);
    return !slots && slots.error().code() == Errc::kUnavailable;
  }));
  // Its end does not wait for sessions of its own.
  REQUIRE(one.client->close_session(one.session, soon()).ok());
  CHECK(daemon.wait().code == 0);
}

TEST_CASE("blocks: sizes that the store does not take cost a request none of its other blocks") {
  const TempFolder folder;
  std::string config = small_config(folder, "blocks { ddr_bytes: \"48MiB\" }\n");
  config.replace(config.find("33554432"), 8, "67108864");
  const DaemonProcess daemon(folder, "d", {config, {}});
  Job job(unix_address(folder), "chat");
  std::vector<BlockWish> wishes;
  for (std::uint64_t i = 0; i < 20; ++i) wishes.push_back({key(i), 4 * kKiB * (i + 1), 1});
  wishes.front().length_bytes = 4 * kMiB;  // a segment has 2 MiB; of the rest 16 sizes are taken
  const auto slots = answer_of<std::vector<BlockSlot>>([&](auto done) {
    return job.client->blocks_reserve(job.session, job.store, wishes, std::move(done));
  });
  REQUIRE(slots.ok());
  const auto reserved = std::count_if(slots->begin(), slots->end(), [](const BlockSlot& slot) {
    return slot.answer == BlockAnswer::kReserved;
  });
  CHECK(reserved == 16);
  CHECK(slots->front().answer == BlockAnswer::kNoRoom);
  CHECK(job.put(100, 1, 8 * kKiB) == 1);
}

namespace {

constexpr std::uint64_t kFlashStoreDdr = 8 * kMiB;

/// A daemon whose store has four segments of DDR and eight extents of flash.
struct FlashStore {
  FlashStore() {
    make_file(path, 64 * kMiB);
    why_not = no_flash_here(path);
    if (!why_not.empty()) return;
    const std::string store =
        "blocks { ddr_bytes: " + std::to_string(kFlashStoreDdr) + " flash_bytes: \"16MiB\" }\n";
    daemon.emplace(folder, "d", DaemonProcess::Spec{with_flash(folder, path) + store, {}});
  }
  [[nodiscard]] std::string address() const { return unix_address(folder); }

  TempFolder folder;
  std::string path = folder.file("flash");
  std::string why_not;
  std::optional<DaemonProcess> daemon;
};

#define SKIP_WITHOUT_FLASH(node) \
  if (!(node).why_not.empty()) return skip((node).why_not);

/// Bytes of blocks that are not on flash.
std::uint64_t unsaved(Job& job) {
  const auto report = job.client->blocks_list(soon());
  REQUIRE(report.ok());
  std::uint64_t out = 0;
  for (const BlocksTenantReport& tenant : report->tenants) {
    for (const BlocksModelReport& model : tenant.models) out += model.bytes - model.flash_bytes;
  }
  return out;
}

/// Puts so slowly that flash keeps up: until some of what is in DDR is saved, or saves make no
/// progress, as where flash is full.
void put_slowly(Job& job, std::uint64_t first, std::uint64_t count, std::uint64_t bytes = kBlock) {
  for (std::uint64_t i = 0; i < count; ++i) {
    REQUIRE(job.put(first + i, 1, bytes) == 1);
    std::uint64_t left = unsaved(job);
    for (int same = 0; same < 4 && left + 2 * bytes > kFlashStoreDdr;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const std::uint64_t now = unsaved(job);
      same = now == left ? same + 1 : 0;
      left = now;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// The bytes on flash of each tenant.
std::map<std::string, std::uint64_t> on_flash(const std::string& address) {
  const auto report = connect(address)->blocks_list(soon());
  REQUIRE(report.ok());
  std::map<std::string, std::uint64_t> out;
  for (const BlocksTenantReport& tenant : report->tenants) {
    out[tenant.name] = tenant.held_flash_bytes;
  }
  return out;
}

}  // namespace

TEST_CASE("blocks: tenants share flash equally, and a stranger's put never waits for it") {
  const FlashStore node;
  SKIP_WITHOUT_FLASH(node);
  Job one(node.address(), "chat");
  put_slowly(one, 0, 100);
  CHECK(on_flash(node.address()).begin()->second == 16 * kMiB);
  Job two(node.address(), "search");
  put_slowly(two, 1000, 60);
  CHECK(two.stored_in_turn(1000, 60) > 24);
  for (const auto& [tenant, bytes] : on_flash(node.address())) CHECK(bytes == 8 * kMiB);
  CHECK(one.stored_in_turn(0, 100) > 24);
  const auto cleared = one.client->blocks_clear(on_flash(node.address()).begin()->first, soon());
  REQUIRE(cleared.ok());
  CHECK(eventually(std::chrono::seconds(20), [&] {
    const auto extents = one.client->flash_extents(soon());
    return extents.ok() && extents->size() == 4;
  }));
}

TEST_CASE("blocks: blocks of several sizes find their room on flash and in DDR again") {
  const FlashStore node;
  SKIP_WITHOUT_FLASH(node);
  Job job(node.address(), "chat");
  std::uint64_t first = 0;
  // Each size takes the segments of the one before, which is then on flash only.
  for (const std::uint64_t bytes : {kBlock, 2 * kBlock, kBlock / 2, 4 * kBlock}) {
    put_slowly(job, first, 8 * kMiB / bytes, bytes);
    first += 1000;
  }
  std::uint64_t found = 0;
  for (std::uint64_t size = 0; size < 4; ++size) found += job.stored(size * 1000, 8);
  CHECK(found > 12);
  for (std::uint64_t round = 0; round < 40; ++round) {  // more sizes than one tenant may have
    static_cast<void>(job.put(10'000 + round, 1, 4 * kKiB * (round + 1)));
  }
  CHECK(job.put(20'000, 1, kBlock) <= 1);
  CHECK(connect(node.address())->status(soon()).ok());
}

TEST_CASE("blocks: a request for more than DDR holds gets what fits, and others wait for it") {
  const FlashStore node;
  SKIP_WITHOUT_FLASH(node);
  Job job(node.address(), "chat");
  put_slowly(job, 0, 90);
  CHECK(job.stored(0, 90) >= 32);  // a full DDR
  CHECK(job.stored(0, 90) >= 32);
  // How fast saves went decides which are kept.
  std::vector<BlockDigest> kept;
  for (std::uint64_t i = 0; i < 90; ++i) {
    if (job.stored(i, 1) == 1) kept.push_back(key(i));
  }
  REQUIRE(kept.size() >= 40);
  std::vector<std::future<Result<std::vector<BlockLocation>>>> answers;
  for (int i = 0; i < 8; ++i) {  // all at once
    const auto first = kept.begin() + (i % 2 == 0 ? 0 : 20);
    auto promise = std::make_shared<std::promise<Result<std::vector<BlockLocation>>>>();
    answers.push_back(promise->get_future());
    REQUIRE(job.client
                ->blocks_locate(job.session, job.store, {first, first + 20},
                                [promise](auto places) { promise->set_value(std::move(places)); })
                .ok());
  }
  for (auto& answer : answers) {
    const auto places = answer.get();
    REQUIRE(places.ok());
    CHECK(std::count_if(places->begin(), places->end(),
                        [](const BlockLocation& place) { return place.id != 0; }) >= 18);
  }
}

TEST_CASE("blocks: a drained node and a cleared tenant answer requests that wait for flash") {
  const FlashStore node;
  SKIP_WITHOUT_FLASH(node);
  Job job(node.address(), "chat");
  put_slowly(job, 0, 90);
  std::vector<BlockDigest> keys;
  for (std::uint64_t i = 0; i < 90; ++i) keys.push_back(key(i));
  auto promise = std::make_shared<std::promise<Result<std::vector<BlockLocation>>>>();
  auto answer = promise->get_future();
  REQUIRE(job.client
              ->blocks_locate(job.session, job.store, keys,
                              [promise](auto places) { promise->set_value(std::move(places)); })
              .ok());
  const auto admin = connect(node.address());
  SECTION("drained") {
    REQUIRE(admin->drain(soon()).ok());
    for (int i = 0; i < 20; ++i)
      static_cast<void>(job.put(5000 + 4 * static_cast<std::uint64_t>(i), 4));
  }
  SECTION("cleared") {
    const auto report = admin->blocks_list(soon());
    REQUIRE(report.ok());
    REQUIRE(admin->blocks_clear(report->tenants.front().name, soon()).ok());
  }
  REQUIRE(answer.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  CHECK(answer.get().ok());
  CHECK(admin->status(soon()).ok());
}

TEST_CASE("blocks: a node without a store says so, and bad requests change nothing") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("test", soon(), "local");
  REQUIRE(session.ok());
  const BlocksTenantSpec spec{"chat", "", "m"};
  CHECK(client->blocks_open(*session, spec, soon()).error().code() == Errc::kUnsupported);
  const auto report = client->blocks_list(soon());
  REQUIRE(report.ok());
  CHECK(report->capacity_bytes == 0);
}

}  // namespace ho::test
