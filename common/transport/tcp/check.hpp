#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/transport/tcp/wire.hpp"

// All that stands between a peer and memory. Pure; tests/fuzz/tcp owns it.
namespace ho::transport::tcp {

/// Whether our initiator may send such a hello. Says nothing of its session.
[[nodiscard]] bool well_formed(const Hello& hello);
/// Compares secrets in a time that depends on their lengths only.
[[nodiscard]] bool equal_secrets(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b);

/// What a request may do.
struct Admission {
  enum class Verdict : std::uint8_t {
    kGranted,
    kDenied,  ///< answered so; the connection goes on. A put's bytes are read and dropped
    kBroken,  ///< our initiators do not send it: it costs the connection
  };
  Verdict verdict = Verdict::kBroken;
  std::span<std::byte> memory;    ///< if kGranted: exactly the bytes that may be touched
  const char* refusal = nullptr;  ///< else: why, one of few texts
};

/// The segments of one session: what its requests may reach. Numbers are used again, with the next
/// generation; one that has used up its generations is not.
class Segments {
 public:
  /// Live and retired ones together.
  static constexpr std::size_t kCountMax = 1U << 20U;

  /// @return its key without the length's and rights' text; nothing: no number is left.
  [[nodiscard]] std::optional<SegmentKey> add(std::span<std::byte> memory, Rights rights);
  /// Nothing reaches it any more. @return the memory that it was; empty: there was none.
  std::span<std::byte> remove(std::uint32_t segment, std::uint32_t generation);
  /// Every offset, length, right and generation is checked here and nowhere else.
  [[nodiscard]] Admission admit(const Request& request) const;

  [[nodiscard]] std::size_t live() const { return live_; }

 private:
  struct Entry {
    std::span<std::byte> memory;  ///< empty: free
    std::uint32_t generation = 0;
    Rights rights = Rights::kRead;
  };
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> free_;
  std::size_t live_ = 0;
};

}  // namespace ho::transport::tcp
