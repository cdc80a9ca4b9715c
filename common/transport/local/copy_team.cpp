#include "common/transport/local/copy_team.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <string>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/system/memory_guard.hpp"
#include "common/system/signals.hpp"
#include "common/transport/local/copy.hpp"

namespace ho::transport {
namespace {

/// How long a helper looks for the next piece before it sleeps: pieces of one transfer follow each
/// other within microseconds, and waking up takes 15 to 50 us.
constexpr auto kSpin = std::chrono::microseconds(50);
/// Looks between two at the clock.
constexpr unsigned kLooks = 64;

constexpr std::uint32_t next_of(std::uint32_t turn) { return turn & 0xffU; }
constexpr std::uint32_t slices_of(std::uint32_t turn) { return (turn >> 8U) & 0xffU; }
constexpr bool over(std::uint32_t turn) { return next_of(turn) == slices_of(turn); }

/// Leaves the core to its other thread while there is nothing to do.
void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

CopyTeam::CopyTeam(std::uint32_t helpers) {
  HO_CHECK(helpers > 0 && helpers <= kHelpersMax);
  // guarded() turns these two into an outcome.
  const SignalsBlocked blocked({SIGBUS, SIGSEGV});
  try {
    helpers_.reserve(helpers);
    for (std::uint32_t i = 0; i < helpers; ++i) {
      helpers_.emplace_back([this] { help(); });
      pthread_setname_np(helpers_.back().native_handle(), "ho-copy");
    }
  } catch (const std::exception& error) {
    // There is no memory, or the job may have no more threads: its copies are as right with fewer.
    log(LogLevel::kWarning, "fewer threads share copies than were asked for",
        {{"helpers", std::to_string(helpers_.size())}, {"reason", error.what()}});
  }
}

CopyTeam::~CopyTeam() {
  stopping_.store(true);
  turn_.store((turn_.load() + 0x10000U) & 0xffff0000U);  // nobody sleeps through a change of it
  turn_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

bool CopyTeam::copy(const Piece& piece) {
  HO_CHECK(over(turn_.load(std::memory_order_relaxed)));
  const std::size_t slices = (piece.length_bytes + kSliceBytes - 1) / kSliceBytes;
  HO_CHECK(slices > 0 && slices <= 0xff);
  piece_ = piece;
  done_.store(0, std::memory_order_relaxed);
  gone_.store(false, std::memory_order_relaxed);
  const std::uint32_t last = turn_.load(std::memory_order_relaxed);
  const auto count = static_cast<std::uint32_t>(slices);
  // seq_cst, as is what a helper does before it sleeps: it sees the turn, or is seen asleep.
  turn_.store(((last + 0x10000U) & 0xffff0000U) | (count << 8U));
  if (asleep_.load() > 0) turn_.notify_all();
  while (take_slice()) {
  }
  for (unsigned looks = 0; done_.load(std::memory_order_acquire) != count; ++looks) {
    rest();
    if (looks > kLooks) ::sched_yield();  // somebody has the core of one that has begun
  }
  return !gone_.load(std::memory_order_relaxed);
}

/// Copies the next slice of the piece. @return false: none is left.
bool CopyTeam::take_slice() {
  std::uint32_t turn = turn_.load(std::memory_order_acquire);
  do {
    if (over(turn)) return false;
  } while (!turn_.compare_exchange_weak(turn, turn + 1, std::memory_order_acq_rel));
  const std::size_t at = next_of(turn) * kSliceBytes;
  const std::size_t length_bytes = std::min(kSliceBytes, piece_.length_bytes - at);
  const bool there = guarded(piece_.segment, [this, at, length_bytes] {
    copy_piece(piece_.to + at, piece_.from + at, length_bytes, piece_.total_bytes);
  });
  if (!there) gone_.store(true, std::memory_order_relaxed);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void CopyTeam::help() {
  using Clock = std::chrono::steady_clock;
  auto sleep_at = Clock::now() + kSpin;
  for (unsigned looks = 0; !stopping_.load(std::memory_order_relaxed); ++looks) {
    if (take_slice()) {
      sleep_at = Clock::now() + kSpin;
      continue;
    }
    rest();
    if (looks % kLooks != 0 || Clock::now() < sleep_at) continue;
    const std::uint32_t turn = turn_.load();
    asleep_.fetch_add(1);
    if (over(turn_.load()) && !stopping_.load()) turn_.wait(turn);
    asleep_.fetch_sub(1);
    sleep_at = Clock::now() + kSpin;
  }
}

}  // namespace ho::transport
