#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>

#include "common/base/units.hpp"
#include "proto/control/control_client.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {

/// Why flash cannot be had on this file; empty: it can.
[[nodiscard]] std::string no_flash_here(const std::string& path);
/// A file of zeros.
void make_file(const std::string& path, std::uint64_t bytes);
/// small_config() with one flash path.
[[nodiscard]] std::string with_flash(const TempFolder& folder, const std::string& path,
                                     const std::string& more = "");
/// Bytes that depend on every bit of the seed.
void fill(std::span<std::byte> into, std::uint64_t seed);
[[nodiscard]] bool filled(std::span<const std::byte> bytes, std::uint64_t seed);

/// One session with one segment, mapped here, and stage requests that can be waited for.
class StagingClient {
 public:
  using Outcome = std::future<Result<void>>;

  explicit StagingClient(const std::string& address,
                         transport::Rights rights = transport::Rights::kReadWrite);
  ~StagingClient();
  StagingClient(const StagingClient&) = delete;
  StagingClient& operator=(const StagingClient&) = delete;

  [[nodiscard]] ControlClient& control() { return *control_; }
  [[nodiscard]] const Session& session() const { return session_; }
  [[nodiscard]] SegmentId segment() const { return granted_.id; }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  [[nodiscard]] int descriptor() const { return granted_.fd.get(); }  ///< the segment's

  /// The test fails where there is none.
  [[nodiscard]] FlashExtent allocate(std::uint64_t bytes, FlashPolicy policy);
  [[nodiscard]] StageSpec spec(StageDirection direction, const FlashExtent& extent,
                               std::uint64_t extent_offset, std::uint64_t segment_offset,
                               std::uint64_t bytes) const;
  [[nodiscard]] Outcome start(const StageSpec& spec);
  [[nodiscard]] Result<void> stage(const StageSpec& spec);
  [[nodiscard]] std::uint64_t flash_free_bytes();

 private:
  std::unique_ptr<ControlClient> control_;
  Session session_;
  GrantedSegment granted_;
  std::span<std::byte> memory_;
};

}  // namespace ho::test
