#include "tests/integration/flash/staging_client.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"

namespace ho::test {

std::string no_flash_here(const std::string& path) {
  const auto device = flash::make_uring_device({{path}});
  if (device || device.error().code() != Errc::kUnsupported) return "";
  return device.error().message();
}

void make_file(const std::string& path, std::uint64_t bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file.valid());
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
}

std::string with_flash(const TempFolder& folder, const std::string& path, const std::string& more) {
  return small_config(folder, "flash { path: \"" + path + "\" " + more + " }\n");
}

void fill(std::span<std::byte> into, std::uint64_t seed) {
  Prng stream(seed);
  for (std::size_t i = 0; i < into.size(); i += 8) {
    const std::uint64_t word = stream.next();
    std::memcpy(into.data() + i, &word, std::min<std::size_t>(8, into.size() - i));
  }
}

bool filled(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::vector<std::byte> wanted(bytes.size());
  fill(wanted, seed);
  return std::equal(bytes.begin(), bytes.end(), wanted.begin());
}

StagingClient::StagingClient(const std::string& address, transport::Rights rights)
    : control_(connect(address)) {
  auto session = control_->open_session("staging", soon());
  REQUIRE(session.ok());
  session_ = std::move(*session);
  GrantSpec wanted;
  wanted.bytes = 2 * kMiB;
  wanted.driver = "local";
  wanted.rights = rights;
  auto granted = control_->grant(session_, wanted, soon());
  REQUIRE(granted.ok());
  REQUIRE(granted->size() == 1);
  granted_ = std::move(granted->front());
  const int protection = rights == transport::Rights::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const mapped =
      ::mmap(nullptr, granted_.length_bytes, protection, MAP_SHARED, granted_.fd.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  memory_ = {static_cast<std::byte*>(mapped), granted_.length_bytes};
}

StagingClient::~StagingClient() { ::munmap(memory_.data(), memory_.size()); }

FlashExtent StagingClient::allocate(std::uint64_t bytes, FlashPolicy policy) {
  const auto made = control_->flash_allocate(session_, bytes, policy, soon());
  INFO((made ? std::string() : made.error().message()));
  REQUIRE(made.ok());
  return *made;
}

StageSpec StagingClient::spec(StageDirection direction, const FlashExtent& extent,
                              std::uint64_t extent_offset, std::uint64_t segment_offset,
                              std::uint64_t bytes) const {
  return {direction, extent.id, extent_offset, granted_.id, segment_offset, bytes};
}

StagingClient::Outcome StagingClient::start(const StageSpec& spec) {
  auto promise = std::make_shared<std::promise<Result<void>>>();
  auto outcome = promise->get_future();
  auto started = control_->stage(session_, spec,
                                 [promise](const Result<void>& done) { promise->set_value(done); });
  if (!started) promise->set_value(started.error());
  return outcome;
}

Result<void> StagingClient::stage(const StageSpec& spec) {
  auto outcome = start(spec);
  REQUIRE(outcome.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  return outcome.get();
}

std::uint64_t StagingClient::flash_free_bytes() {
  const auto status = control_->status(soon());
  REQUIRE(status.ok());
  REQUIRE(status->flash.size() == 1);
  return status->flash[0].free_bytes;
}

}  // namespace ho::test
