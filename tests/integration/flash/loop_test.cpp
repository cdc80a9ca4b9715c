#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "daemon/tier/flash/store/flash_loop.hpp"
#include "tests/integration/flash/flash_file.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using Kind = FlashRequest::Kind;

FlashLoop::Options options_for(const std::vector<std::string>& paths) {
  UringOptions device;
  device.paths = paths;
  device.depth_ops = ExtentStore::depth_ops(paths.size());
  FlashLoop::Options options;
  options.make_device = [device] { return make_uring_device(device); };
  options.salt = 7;
  options.new_set[0] = std::byte{1};
  return options;
}

/// A loop over one file, and its answers in the order in which they came.
class Rig {
 public:
  explicit Rig(std::uint64_t write_bytes_per_day_max = 0) {
    why_not = test::no_flash_here(folder);
    if (!why_not.empty()) return;
    test::make_file(folder.path("flash"), 32 * kMiB);
    auto options = options_for({folder.path("flash")});
    options.write_bytes_per_day_max = {write_bytes_per_day_max};
    auto made = FlashLoop::start(std::move(options));
    REQUIRE(made.ok());
    loop = std::move(*made);
    loop->listen([this] {
      const std::lock_guard guard(mutex_);
      rung_ = true;
      changed_.notify_one();
    });
  }
  std::uint64_t push(FlashRequest request) {
    request.cookie = ++cookie_;
    const auto pushed = loop->push(std::move(request));
    REQUIRE(pushed.ok());
    return cookie_;
  }
  std::uint64_t transfer(Kind kind, std::uint64_t session, ExtentId extent,
                         std::span<std::byte> memory) {
    FlashRequest request;
    request.kind = kind;
    request.owner = {1, session, 0};
    request.extent = extent;
    request.memory = memory;
    request.region = memory;
    return push(std::move(request));
  }
  std::uint64_t end(std::uint64_t session) {
    FlashRequest request;
    request.kind = Kind::kEndSession;
    request.owner = {1, session, 0};
    return push(std::move(request));
  }
  FlashAnswer wait(std::uint64_t cookie) {
    const SteadyClock clock;
    const TimePoint end = clock.now() + std::chrono::seconds(60);
    while (clock.now() < end) {
      for (FlashAnswer& one : loop->take()) answers.push_back(std::move(one));
      for (const FlashAnswer& one : answers) {
        if (one.cookie == cookie) return one;
      }
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(10), [&] { return rung_; });
      rung_ = false;
    }
    FAIL("a request was never answered");
    return {};
  }
  FlashAnswer create(std::uint64_t session, std::uint64_t bytes, Policy policy) {
    FlashRequest request;
    request.kind = Kind::kCreate;
    request.owner = {1, session, 1};
    request.length_bytes = bytes;
    request.policy = policy;
    return wait(push(std::move(request)));
  }
  /// Answers that came before this one's.
  std::size_t rank(std::uint64_t cookie) {
    static_cast<void>(wait(cookie));
    std::size_t at = 0;
    while (answers[at].cookie != cookie) ++at;
    return at;
  }

  test::TempFolder folder;
  std::string why_not;
  std::vector<FlashAnswer> answers;
  std::unique_ptr<FlashLoop> loop;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
  std::uint64_t cookie_ = 0;
};

#define SKIP_WITHOUT_FLASH(rig)      \
  if (!(rig).why_not.empty()) {      \
    ::ho::test::skip((rig).why_not); \
    return;                          \
  }

}  // namespace

TEST_CASE("flash loop: a session's one transfer does not wait for all of another's") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = 64 * kKiB;
  AlignedMemory memory(kBytes);
  const ExtentId busy = rig.create(1, kBytes, Policy::kScratch).extent;
  const ExtentId quiet = rig.create(2, kBytes, Policy::kScratch).extent;
  std::uint64_t last = 0;
  for (int i = 0; i < 2000; ++i) last = rig.transfer(Kind::kWrite, 1, busy, memory.span());
  const std::uint64_t other = rig.transfer(Kind::kWrite, 2, quiet, memory.span());
  CHECK(rig.wait(last).code == Errc::kOk);
  CHECK(rig.wait(other).code == Errc::kOk);
  // What the store had taken before comes first; then they take turns.
  CHECK(rig.rank(other) + 500 < rig.rank(last));
}

TEST_CASE("flash loop: writes that wait for their path's budget hold up no other session") {
  Rig rig(12 * kMiB);
  SKIP_WITHOUT_FLASH(rig);
  AlignedMemory memory(kMiB);
  const ExtentId written = rig.create(1, kMiB, Policy::kDurable).extent;
  const ExtentId read = rig.create(2, 4096, Policy::kScratch).extent;
  AlignedMemory small(4096);
  REQUIRE(rig.wait(rig.transfer(Kind::kWrite, 2, read, small.span())).code == Errc::kOk);
  // Each may need three times its bytes until it has ended: first several run at a time, then one.
  std::vector<std::uint64_t> writes;
  std::uint64_t last_read = 0;
  for (int i = 0; i < 8; ++i) {
    writes.push_back(rig.transfer(Kind::kWrite, 1, written, memory.span()));
  }
  for (int i = 0; i < 32; ++i) last_read = rig.transfer(Kind::kRead, 2, read, small.span());
  for (const std::uint64_t write : writes) CHECK(rig.wait(write).code == Errc::kOk);
  CHECK(rig.wait(last_read).code == Errc::kOk);
  // Held up, they would begin with the last write, which begins when this one has ended.
  CHECK(rig.rank(last_read) < rig.rank(writes[6]));
}

TEST_CASE("flash loop: the end of a session cancels its transfers that have not begun, at once") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = 256 * kKiB;
  AlignedMemory memory(kBytes);
  const ExtentId extent = rig.create(1, kBytes, Policy::kDurable).extent;
  std::vector<std::uint64_t> writes;
  for (int i = 0; i < 500; ++i) {
    writes.push_back(rig.transfer(Kind::kWrite, 1, extent, memory.span()));
  }
  CHECK(rig.wait(rig.end(1)).code == Errc::kOk);
  std::map<Errc, int> ends;
  for (const std::uint64_t write : writes) ends[rig.wait(write).code] += 1;
  CHECK(ends[Errc::kCanceled] > 100);
  CHECK(ends[Errc::kOk] + ends[Errc::kCanceled] == 500);
}

TEST_CASE("flash loop: memory that is gone before its first transfer is unavailable, not I/O") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = kMiB;
  AlignedMemory whole(kBytes);
  std::memset(whole.data(), 9, kBytes);
  const ExtentId extent = rig.create(1, kBytes, Policy::kScratch).extent;
  REQUIRE(rig.wait(rig.transfer(Kind::kWrite, 1, extent, whole.span())).code == Errc::kOk);
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    for (const std::uint64_t left : {std::uint64_t{0}, kBytes / 2}) {
      const UniqueFd file(::memfd_create("segment", MFD_CLOEXEC));
      REQUIRE(::ftruncate(file.get(), static_cast<off_t>(left)) == 0);
      void* const mapped =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      REQUIRE(mapped != MAP_FAILED);
      const std::span memory(static_cast<std::byte*>(mapped), kBytes);
      const FlashAnswer answer = rig.wait(rig.transfer(kind, 1, extent, memory));
      CHECK(answer.code == Errc::kUnavailable);
      CHECK(answer.text == "the segment's memory is not there any more");
      ::munmap(mapped, kBytes);
    }
  }
}

TEST_CASE("flash loop: extents are listed page by page, each once, whatever comes and goes") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::size_t kCount = FlashLoop::kListMax + 500;
  for (std::size_t i = 0; i < kCount; ++i) {
    REQUIRE(rig.create(1, 4096, Policy::kScratch).code == Errc::kOk);
    rig.answers.clear();
  }
  FlashRequest request;
  request.kind = Kind::kList;
  const FlashAnswer first = rig.wait(rig.push(request));
  REQUIRE(first.listed.size() == FlashLoop::kListMax);
  CHECK(first.more);
  FlashRequest freed;
  freed.kind = Kind::kFree;
  freed.extent = first.listed.back().id;
  REQUIRE(rig.wait(rig.push(freed)).code == Errc::kOk);
  request.extent = first.listed.back().id;
  const FlashAnswer second = rig.wait(rig.push(request));
  CHECK(second.listed.size() == kCount - FlashLoop::kListMax);
  CHECK_FALSE(second.more);
  CHECK(second.listed.front().id > first.listed.back().id);
}

TEST_CASE("flash loop: an idle loop takes what is pushed at once") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  AlignedMemory memory(4096);
  const ExtentId extent = rig.create(1, 4096, Policy::kScratch).extent;
  const SteadyClock clock;
  std::vector<Duration> took;
  for (int i = 0; i < 400; ++i) {
    const TimePoint begin = clock.now();
    CHECK(rig.wait(rig.transfer(Kind::kWrite, 1, extent, memory.span())).code == Errc::kOk);
    took.push_back(clock.now() - begin);
  }
  // A wake-up that is lost costs a second; a busy machine costs one of them at worst.
  std::sort(took.begin(), took.end());
  CHECK(took[took.size() - 3] < std::chrono::milliseconds(900));
}

TEST_CASE("flash loop: memory whose file was cut short fails its transfers, not the process") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = kMiB;
  const UniqueFd file(::memfd_create("segment", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), kBytes) == 0);
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  const std::span memory(static_cast<std::byte*>(mapped), kBytes);
  std::memset(mapped, 5, kBytes);
  const ExtentId extent = rig.create(1, kBytes, Policy::kScratch).extent;
  REQUIRE(rig.wait(rig.transfer(Kind::kWrite, 1, extent, memory)).code == Errc::kOk);
  REQUIRE(::ftruncate(file.get(), 0) == 0);
  for (const auto part : {memory, memory.subspan(64, 8192)}) {  // straight, and by a buffer
    for (const Kind kind : {Kind::kWrite, Kind::kRead}) {
      const FlashAnswer answer = rig.wait(rig.transfer(kind, 1, extent, part));
      CHECK((answer.code == Errc::kUnavailable || answer.code == Errc::kIo));
      CHECK_FALSE(answer.text.empty());
    }
  }
  AlignedMemory whole(kBytes);
  CHECK(rig.wait(rig.transfer(Kind::kWrite, 1, extent, whole.span())).code == Errc::kOk);
  ::munmap(mapped, kBytes);
}

TEST_CASE("flash loop: as many paths as a set can have are opened and written") {
  const test::TempFolder folder;
  if (const std::string why = test::no_flash_here(folder); !why.empty()) return test::skip(why);
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < kPathsMax; ++i) {
    paths.push_back(folder.path("flash" + std::to_string(i)));
    test::make_file(paths.back(), kMiB);
  }
  const auto made = FlashLoop::start(options_for(paths));
  if (!made) FAIL(made.error().message());
  CHECK((*made)->status().paths.size() == kPathsMax);
}
