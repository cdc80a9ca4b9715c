#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/transport/ofi/wire.hpp"

namespace ho::transport {

/// Requests of all connections to one address that passed and are not answered yet. libfabric keeps
/// each until its answer has gone out (0.5 KB in 1.17, 17 KB in 2.6), which is up to whoever asked.
class Unanswered {
 public:
  /// An initiator has a quarter of it in flight: connections that lost their link keep what they
  /// asked for until they end, and it may come back meanwhile.
  static constexpr std::size_t kMax = 4 * kPiecesMax;
  [[nodiscard]] std::size_t count() const { return count_; }
  /// @return false: there are too many already.
  [[nodiscard]] bool one_more() {
    if (count_ == kMax) return false;
    ++count_;
    return true;
  }
  void fewer(std::size_t by) { count_ -= by; }

 private:
  std::size_t count_ = 0;
};

/// Reads along what an initiator sends over one connection of libfabric's own TCP, and stops it
/// before libfabric has seen the whole of what it should not. Pure.
///
/// Why: libfabric's target believes its peers. It compares `address + length` with a region's end
/// in arithmetic that wraps, so that a length of 2^64 - A writes at A beyond the region; it takes
/// up to 255 ranges into an array of four; and one acknowledgement that nobody waits for ends the
/// process. So only what our initiators send passes: a hello in this machine's byte order, then
/// reads and writes of one range each, whose offset and length cannot overflow and agree with the
/// frame's. Key, rights and the region's end are libfabric's to check: with sums that cannot wrap
/// it does. Nor does it pass more requests than the address may have unanswered. Source: prov/net
/// of libfabric 1.17, prov/tcp up to 2.6 (the same protocol): xnet_cm.c, xnet_progress.c,
/// util_mr_map.c; read and tried 2026-11.
///
/// One connection's bytes in their order; wrong to use for both directions. No thread of its own.
class FrameGuard {
 public:
  /// `all`: of the address's; outlives it, and is given back what is unanswered then.
  explicit FrameGuard(Unanswered& all) : all_(all) {}
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;
  ~FrameGuard() { answered(unanswered_); }

  /// @return how many of the bytes may be passed on, from the first. Fewer than given: the
  /// connection is refused for good, and nothing of it passes any more.
  [[nodiscard]] std::size_t admit(std::span<const std::byte> bytes);
  /// So many answers have gone out.
  void answered(std::size_t count);
  /// Whether a whole hello has passed.
  [[nodiscard]] bool greeted() const { return greeted_ && (asked_ || pass_bytes_ == 0); }
  /// Whether it has asked for a read or a write that passed.
  [[nodiscard]] bool asked() const { return asked_; }
  /// Why it was refused, one of few texts; nullptr: it was not.
  [[nodiscard]] const char* refusal() const { return refusal_; }

  /// More than a process has addresses, and far from where a sum of two wraps.
  static constexpr std::uint64_t kReachMax = std::uint64_t{1} << 48U;

 private:
  static constexpr std::size_t kHelloBytes = 32;
  static constexpr std::size_t kStartBytes = 16;   ///< a frame's header without its range
  static constexpr std::size_t kHeaderBytes = 40;  ///< with it

  [[nodiscard]] std::size_t wanted() const;
  void judge();
  void judge_hello();
  void judge_start();
  void judge_range();

  std::array<std::byte, kHeaderBytes> head_{};
  std::size_t have_ = 0;  ///< of head_
  bool greeted_ = false;
  bool asked_ = false;
  std::uint64_t pass_bytes_ = 0;  ///< that follow a header and need no look
  Unanswered& all_;
  std::size_t unanswered_ = 0;  ///< of all_
  const char* refusal_ = nullptr;
};

}  // namespace ho::transport
