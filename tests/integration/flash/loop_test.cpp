#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "daemon/tier/flash/store/flash_loop.hpp"
#include "tests/integration/flash/flash_file.hpp"
#include "tests/support/patience.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
constexpr auto kIn = StageDirection::kIn;
constexpr auto kOut = StageDirection::kOut;

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

/// A loop over one file, and its answers in order of arrival.
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
  /// @return the number of the request.
  std::size_t push(FlashRequest request) {
    const std::size_t number = asked_++;
    const auto answered = [this, number](const FlashAnswer& answer) {
      REQUIRE(answers.emplace(number, answer).second);
      order.push_back(number);
    };
    REQUIRE(loop->push(std::move(request), answered).ok());
    return number;
  }
  std::size_t stage(StageDirection direction, std::uint64_t session, ExtentId extent,
                    std::span<std::byte> memory) {
    return push(StageBytes{session, {OpId(), direction, extent, 0, memory}, memory});
  }
  std::size_t end(std::uint64_t session) { return push(EndSession{session}); }
  FlashAnswer wait(std::size_t number) {
    const SteadyClock clock;
    const TimePoint end = clock.now() + std::chrono::seconds(60);
    while (clock.now() < end) {
      loop->deliver();
      if (const auto found = answers.find(number); found != answers.end()) return found->second;
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(10), [&] { return rung_; });
      rung_ = false;
    }
    FAIL("a request was never answered");
    return {};
  }
  Errc code(std::size_t number) {
    const FlashAnswer answer = wait(number);
    return answer.error ? answer.error->code() : Errc::kOk;
  }
  ExtentId create(std::uint64_t session, std::uint64_t bytes, Policy policy) {
    const FlashAnswer answer = wait(push(CreateExtent{{bytes, policy, session}}));
    REQUIRE_FALSE(answer.error.has_value());
    return answer.extent.id;
  }
  /// The number of answers that arrived before this one.
  std::size_t rank(std::size_t number) {
    static_cast<void>(wait(number));
    return static_cast<std::size_t>(std::find(order.begin(), order.end(), number) - order.begin());
  }

  test::TempFolder folder;
  std::string why_not;
  std::map<std::size_t, FlashAnswer> answers;
  std::vector<std::size_t> order;  ///< order of the answers
  std::unique_ptr<FlashLoop> loop;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
  std::size_t asked_ = 0;
};

#define SKIP_WITHOUT_FLASH(rig)      \
  if (!(rig).why_not.empty()) {      \
    ::ho::test::skip((rig).why_not); \
    return;                          \
  }

}  // namespace

TEST_CASE("flash loop: one transfer of a session does not wait for all of another session") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = 64 * kKiB;
  AlignedMemory memory(kBytes);
  const ExtentId busy = rig.create(1, kBytes, Policy::kScratch);
  const ExtentId quiet = rig.create(2, kBytes, Policy::kScratch);
  std::size_t last = 0;
  for (int i = 0; i < 2000; ++i) last = rig.stage(kOut, 1, busy, memory.span());
  const std::size_t other = rig.stage(kOut, 2, quiet, memory.span());
  CHECK(rig.code(last) == Errc::kOk);
  CHECK(rig.code(other) == Errc::kOk);
  // Transfers that the store had accepted come first; then the sessions take turns.
  CHECK(rig.rank(other) + 500 < rig.rank(last));
}

TEST_CASE("flash loop: writes that wait for the budget of their path delay no other session") {
  Rig rig(12 * kMiB);
  SKIP_WITHOUT_FLASH(rig);
  AlignedMemory memory(kMiB);
  const ExtentId written = rig.create(1, kMiB, Policy::kDurable);
  const ExtentId read = rig.create(2, 4096, Policy::kScratch);
  AlignedMemory small(4096);
  REQUIRE(rig.code(rig.stage(kOut, 2, read, small.span())) == Errc::kOk);
  // Each may need three times its bytes until it ends: first several run at a time, then one.
  std::vector<std::size_t> writes;
  std::size_t last_read = 0;
  for (int i = 0; i < 8; ++i) {
    writes.push_back(rig.stage(kOut, 1, written, memory.span()));
  }
  for (int i = 0; i < 32; ++i) last_read = rig.stage(kIn, 2, read, small.span());
  for (const std::size_t write : writes) CHECK(rig.code(write) == Errc::kOk);
  CHECK(rig.code(last_read) == Errc::kOk);
  // If they were blocked, they would begin with the last write, which begins when this one has
  // ended.
  CHECK(rig.rank(last_read) < rig.rank(writes[6]));
}

TEST_CASE("flash loop: the end of a session cancels its transfers that have not begun, at once") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = 256 * kKiB;
  AlignedMemory memory(kBytes);
  const ExtentId extent = rig.create(1, kBytes, Policy::kDurable);
  std::vector<std::size_t> writes;
  for (int i = 0; i < 500; ++i) {
    writes.push_back(rig.stage(kOut, 1, extent, memory.span()));
  }
  CHECK(rig.code(rig.end(1)) == Errc::kOk);
  std::map<Errc, int> ends;
  for (const std::size_t write : writes) ends[rig.code(write)] += 1;
  CHECK(ends[Errc::kCanceled] > 100);
  CHECK(ends[Errc::kOk] + ends[Errc::kCanceled] == 500);
}

TEST_CASE(
    "flash loop: memory that disappears before its first transfer is unavailable, not an I/O "
    "error") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = kMiB;
  AlignedMemory whole(kBytes);
  std::memset(whole.data(), 9, kBytes);
  const ExtentId extent = rig.create(1, kBytes, Policy::kScratch);
  REQUIRE(rig.code(rig.stage(kOut, 1, extent, whole.span())) == Errc::kOk);
  for (const auto direction : {kIn, kOut}) {
    for (const std::uint64_t left : {std::uint64_t{0}, kBytes / 2}) {
      const UniqueFd file(::memfd_create("segment", MFD_CLOEXEC));
      REQUIRE(::ftruncate(file.get(), static_cast<off_t>(left)) == 0);
      void* const mapped =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
      REQUIRE(mapped != MAP_FAILED);
      const std::span memory(static_cast<std::byte*>(mapped), kBytes);
      const FlashAnswer answer = rig.wait(rig.stage(direction, 1, extent, memory));
      REQUIRE(answer.error.has_value());
      CHECK(answer.error->code() == Errc::kUnavailable);
      CHECK(answer.error->context() == "the segment's memory no longer exists");
      ::munmap(mapped, kBytes);
    }
  }
}

TEST_CASE("flash loop: extents are listed page by page, each once, while others come and go") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::size_t kCount = FlashLoop::kListMax + 500;
  for (std::size_t i = 0; i < kCount; ++i) static_cast<void>(rig.create(1, 4096, Policy::kScratch));
  const FlashAnswer first = rig.wait(rig.push(ListExtents{}));
  REQUIRE(first.listed.size() == FlashLoop::kListMax);
  CHECK(first.next == first.listed.back().id);
  const ExtentId last = first.listed.back().id;
  REQUIRE(rig.code(rig.push(FreeExtent{last})) == Errc::kOk);
  const FlashAnswer second = rig.wait(rig.push(ListExtents{last}));
  CHECK(second.listed.size() == kCount - FlashLoop::kListMax);
  CHECK_FALSE(second.next.has_value());
  CHECK(second.listed.front().id > last);
}

TEST_CASE("flash loop: an idle loop serves a request at once", "[time]") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  AlignedMemory memory(4096);
  const ExtentId extent = rig.create(1, 4096, Policy::kScratch);
  const SteadyClock clock;
  std::vector<Duration> took;
  for (int i = 0; i < 400; ++i) {
    const TimePoint begin = clock.now();
    CHECK(rig.code(rig.stage(kOut, 1, extent, memory.span())) == Errc::kOk);
    took.push_back(clock.now() - begin);
  }
  // A lost wake-up costs a second. A busy machine delays at most one of them.
  std::sort(took.begin(), took.end());
  CHECK(took[took.size() - 3] < test::within(std::chrono::milliseconds(900)));
}

TEST_CASE("flash loop: a truncated segment fails its transfers, not the process") {
  Rig rig;
  SKIP_WITHOUT_FLASH(rig);
  constexpr std::uint64_t kBytes = kMiB;
  const UniqueFd file(::memfd_create("segment", MFD_CLOEXEC));
  REQUIRE(::ftruncate(file.get(), kBytes) == 0);
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  const std::span memory(static_cast<std::byte*>(mapped), kBytes);
  std::memset(mapped, 5, kBytes);
  const ExtentId extent = rig.create(1, kBytes, Policy::kScratch);
  REQUIRE(rig.code(rig.stage(kOut, 1, extent, memory)) == Errc::kOk);
  REQUIRE(::ftruncate(file.get(), 0) == 0);
  for (const auto part : {memory, memory.subspan(64, 8192)}) {  // directly, and through a buffer
    for (const auto direction : {kOut, kIn}) {
      const FlashAnswer answer = rig.wait(rig.stage(direction, 1, extent, part));
      REQUIRE(answer.error.has_value());
      const Errc code = answer.error->code();
      CHECK((code == Errc::kUnavailable || code == Errc::kIo));
      CHECK_FALSE(answer.error->context().empty());
    }
  }
  AlignedMemory whole(kBytes);
  CHECK(rig.code(rig.stage(kOut, 1, extent, whole.span())) == Errc::kOk);
  ::munmap(mapped, kBytes);
}

TEST_CASE("flash loop: a set of the largest size is opened and written") {
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
