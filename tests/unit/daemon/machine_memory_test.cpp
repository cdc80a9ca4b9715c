#include "daemon/tier/ddr/machine_memory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "common/base/units.hpp"
#include "tests/support/core_dump.hpp"

namespace ho::daemon {

namespace {

/// A temporary root folder with /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ho-root-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
    put("proc/meminfo", "MemTotal:       1048576 kB\nMemFree: 1 kB\n");
    put("proc/self/cgroup", "");
  }
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] MemoryLimit limit() const {
    auto limit = read_memory_limit(path_.string());
    REQUIRE(limit.ok());
    return *limit;
  }
  [[nodiscard]] PageSupply supply() const {
    auto supply = read_page_supply(path_.string());
    REQUIRE(supply.ok());
    return *supply;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("machine memory: without limits it is the memory outside huge pages") {
  const FakeRoot root;
  CHECK(root.limit().bytes == kGiB);
  root.put("proc/meminfo", "MemTotal: 1048576 kB\nHugePages_Total: 128\nHugepagesize: 2048 kB\n");
  CHECK(root.limit().bytes == kGiB - 256 * kMiB);
}

TEST_CASE("machine memory: the lowest limit of a unified cgroup and its ancestors counts") {
  const FakeRoot root;
  root.put("proc/self/cgroup", "0::/a.slice/b.service\n");
  root.put("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
  root.put("sys/fs/cgroup/a.slice/memory.max", "268435456\n");
  CHECK(root.limit().bytes == 256 * kMiB);
  CHECK(root.limit().reason == "cgroup /a.slice (memory.max)");
}

TEST_CASE("machine memory: a limit of the old memory cgroup counts") {
  const FakeRoot root;
  root.put("proc/self/cgroup", "5:cpu:/c\n4:memory:/c\n");
  root.put("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "134217728\n");
  root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK(root.limit().bytes == 128 * kMiB);
}

TEST_CASE("machine memory: a promise up to the margin is fine, one more byte is refused") {
  const MemoryLimit limit{kGiB, "the machine's memory"};
  const std::uint64_t most = kGiB - memory_margin_bytes(limit);
  CHECK(check_memory_promise(most, limit).ok());
  const auto refused = check_memory_promise(most + 1, limit);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context().find("at most " + std::to_string(most)) != std::string::npos);
}

TEST_CASE("machine memory: free is what is available, or what a cgroup has left") {
  const FakeRoot root;
  root.put("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
  CHECK(read_free_memory(root.path())->bytes == 512 * kMiB);
  root.put("proc/self/cgroup", "0::/a.slice/b.service\n");
  root.put("sys/fs/cgroup/a.slice/memory.max", "268435456\n");
  root.put("sys/fs/cgroup/a.slice/memory.current", "209715200\n");
  root.put("sys/fs/cgroup/a.slice/memory.stat",
           "anon 1\nfile 9\ninactive_file 10485760\nactive_file 10485760\n");
  const auto free = read_free_memory(root.path());
  REQUIRE(free.ok());
  CHECK(free->bytes == 76 * kMiB);
  CHECK(check_free_memory(12 * kMiB, *free).ok());
  const auto refused = check_free_memory(12 * kMiB + 1, *free);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context().find("cgroup /a.slice (memory.max) has 76.0 MiB free") !=
        std::string::npos);
  root.put("proc/self/cgroup", "4:memory:/old\n");
  root.put("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "134217728\n");
  root.put("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "134217728\n");
  CHECK(read_free_memory(root.path())->bytes == 0);
  CHECK_FALSE(check_free_memory(1, *read_free_memory(root.path())).ok());
}

TEST_CASE("memory: huge pages need no promise, but then no other pages may replace them") {
  PageSupply supply;
  supply.memory = {1024 * kMiB, "the machine's memory"};
  supply.huge_pages = {4096 * kMiB, "the free huge pages"};
  const auto both = plan_pages(512 * kMiB, supply);
  REQUIRE(both.ok());
  CHECK(both->kind == PageKind::kHugetlb2M);
  CHECK(both->fallback == Fallback::kSmallerPages);
  const auto only_huge = plan_pages(2048 * kMiB, supply);
  REQUIRE(only_huge.ok());
  CHECK(only_huge->kind == PageKind::kHugetlb2M);
  CHECK(only_huge->fallback == Fallback::kNone);
  supply.huge_pages.bytes = 511 * kMiB;
  supply.otherwise = PageKind::kThp;
  const auto neither = plan_pages(512 * kMiB, supply);
  REQUIRE(neither.ok());
  CHECK(neither->kind == PageKind::kThp);
  CHECK(neither->otherwise == PageKind::kThp);
  CHECK(plan_pages(2048 * kMiB, supply).error().code() == Errc::kExhausted);
}

TEST_CASE("memory: huge pages count if they are free and the cgroup allows them") {
  const FakeRoot root;
  const std::string folder = "sys/kernel/mm/hugepages/hugepages-2048kB/";
  root.put(folder + "free_hugepages", "1000\n");
  root.put(folder + "resv_hugepages", "100\n");
  CHECK(root.supply().huge_pages.bytes == 900 * 2 * kMiB);
  root.put("proc/self/cgroup", "7:hugetlb:/c\n0::/a.slice/b.service\n");
  root.put("sys/fs/cgroup/hugetlb/c/hugetlb.2MB.limit_in_bytes", "1073741824\n");
  CHECK(root.supply().huge_pages.bytes == kGiB);
  CHECK(root.supply().huge_pages.reason == "cgroup /c (hugetlb.2MB.limit_in_bytes)");
  root.put("sys/fs/cgroup/hugetlb/c/hugetlb.2MB.rsvd.limit_in_bytes", "1071644672\n");
  CHECK(root.supply().huge_pages.bytes == 1022 * kMiB);
  root.put("sys/fs/cgroup/a.slice/hugetlb.2MB.rsvd.max", "536870912\n");
  CHECK(root.supply().huge_pages.bytes == 512 * kMiB);
  root.put("sys/fs/cgroup/a.slice/b.service/hugetlb.2MB.max", "268435456\n");
  CHECK(root.supply().huge_pages.bytes == 256 * kMiB);
  // Ordinary memory suffices for a pool that these huge pages do not, up to its own limit.
  CHECK(plan_pages(512 * kMiB, root.supply())->kind == root.supply().otherwise);
  const auto refused = plan_pages(2 * kGiB, root.supply());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().context().find(
            "huge pages: 256 MiB (cgroup /a.slice/b.service (hugetlb.2MB.max))") !=
        std::string::npos);
}

TEST_CASE("memory: transparent huge pages are reported only if the system gave some") {
  std::ifstream in("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string allowed((std::istreambuf_iterator<char>(in)), {});
  const bool got = gets_thp();
  INFO("shmem_enabled: " << allowed);
  if (allowed.find("[never]") != std::string::npos || allowed.find("[deny]") != std::string::npos) {
    CHECK_FALSE(got);
  }
  CHECK(FakeRoot().supply().otherwise == (got ? PageKind::kThp : PageKind::k4K));
}

TEST_CASE("memory: a pool whose segments need more mappings than the kernel allows is refused") {
  const FakeRoot root;
  CHECK(check_mappings(1'000'000, 1, root.path()).ok());  // nobody knows the limit
  root.put("proc/sys/vm/max_map_count", "65530\n");
  CHECK(check_mappings(61'434, 1, root.path()).ok());
  CHECK_FALSE(check_mappings(61'435, 1, root.path()).ok());
  CHECK(check_mappings(30'717, 2, root.path()).ok());
  const auto refused = check_mappings(65'536, 1, root.path());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kExhausted);
  CHECK(refused.error().context() ==
        "65536 segments need 69632 memory mappings, but the kernel allows 65530 to a process "
        "(vm.max_map_count); make segment_bytes larger, or sysctl vm.max_map_count=69632");
}

TEST_CASE("memory: making a segment can be stopped") {
  const std::atomic<bool> stop{true};
  SegmentMemory::Spec spec;
  spec.bytes = 64 * kMiB;
  spec.stop = &stop;
  const auto made = SegmentMemory::create(spec);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().code() == Errc::kCanceled);
}

TEST_CASE("memory: a descriptor for reading cannot be opened again by others") {
  SegmentMemory::Spec spec;
  spec.bytes = 2 * kMiB;
  const auto made = SegmentMemory::create(spec);
  REQUIRE(made.ok());
  const auto descriptor = made->descriptor(transport::Rights::kRead);
  REQUIRE(descriptor.ok());
  struct stat info {};
  REQUIRE(::fstat(descriptor->get(), &info) == 0);
  CHECK((info.st_mode & 0777U) == 0600U);
}

TEST_CASE("memory: a core dump leaves out segments, made or adopted") {
  SegmentMemory::Spec spec;
  spec.bytes = 2 * kMiB;
  const auto made = SegmentMemory::create(spec);
  REQUIRE(made.ok());
  CHECK(test::left_out_of_core_dumps(made->bytes().data()));
  auto descriptor = made->descriptor(transport::Rights::kReadWrite);
  REQUIRE(descriptor.ok());
  SegmentMemory::AdoptSpec adopt;
  adopt.bytes = spec.bytes;
  const auto adopted = SegmentMemory::adopt(std::move(*descriptor), adopt);
  REQUIRE(adopted.ok());
  CHECK(test::left_out_of_core_dumps(adopted->bytes().data()));
}

TEST_CASE("memory: without a fallback, a segment has huge pages or is not made") {
  SegmentMemory::Spec spec;
  spec.bytes = std::uint64_t{1} << 50U;  // no machine has reserved that much
  spec.wanted = PageKind::kHugetlb2M;
  spec.fallback = Fallback::kNone;
  const auto made = SegmentMemory::create(spec);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().context().find("no huge pages left") == 0);
}

}  // namespace ho::daemon
