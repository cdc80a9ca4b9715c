#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "common/system/numa.hpp"
#include "common/transport/transport.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"

namespace ho::daemon {

/// The node that a manifest is of.
struct KeptNode {
  NodeId node;
  std::uint64_t incarnation = 0;  ///< HelloReply::incarnation
  std::uint64_t generation = 0;   ///< of the manifest: the larger one is the later
  std::uint64_t segment_bytes = 0;
  SessionId next_session{1};  ///< smaller ones have been given
  SegmentId next_segment{1};
  std::string unix_socket;  ///< its path
  std::uint64_t socket_device = 0;
  std::uint64_t socket_inode = 0;
};

struct KeptSession : SessionFacts {  // its lease_end is in the cell, not in the record
  std::string driver = {};
  std::uint32_t lease_cell = 0;  ///< chosen by ManifestLog
};

struct KeptSegment {
  SegmentId id;
  SessionId session;
  std::uint64_t offset_bytes = 0;  ///< in the node's DDR
  std::string driver;
  transport::Rights rights = transport::Rights::kReadWrite;
  std::uint64_t device = 0;  ///< where the memfd is
  std::uint64_t inode = 0;
  PageKind pages = PageKind::k4K;
  std::optional<NumaNode> share;  ///< the pool's share that it belongs to
  std::optional<NumaNode> numa;   ///< where most of its pages are
};

struct SessionEnded {
  SessionId id;
};
struct SegmentEnded {
  SegmentId id;
};

using ManifestEntry = std::variant<KeptNode, KeptSession, SessionEnded, KeptSegment, SegmentEnded>;

/// What a daemon leaves to the next. A value.
struct Kept {
  KeptNode node;
  TimePoint alive;  ///< when the daemon last said so
  std::map<SessionId, KeptSession> sessions;
  std::map<SegmentId, KeptSegment> segments;
  std::set<std::uint64_t> offsets;  ///< places that segments have

  /// Makes one change. @return kCorrupt: it does not fit what is there; nothing changed.
  [[nodiscard]] Result<void> apply(const ManifestEntry& entry);
};

/// Most sessions of a manifest: each has a cell for its lease.
inline constexpr std::uint32_t kLeaseCells = 4096;

/// The log of a manifest, in memory that outlives the process.
///
///   header | a cell for each lease | records ... | unused
///
/// A record counts once the header says that the log is that long. That is one store of one word,
/// so a process that is killed at any instruction leaves the old or the new state, and never a part
/// of a record: bytes behind the end say nothing. Each record has a checksum, and each word that
/// changes in place (the length, the leases, the sign of life) carries one in its upper 16 bits.
///
/// Owner: one thread. The memory outlives it.
class ManifestLog {
 public:
  /// Writes the whole state as a new log. `memory` is zeroed and aligned to 8 bytes; it does not
  /// read as a manifest until this succeeds. Sessions get cells for their leases.
  /// @return kExhausted: the memory is too small.
  [[nodiscard]] static Result<ManifestLog> create(std::span<std::byte> memory, Kept state);

  /// Reads a log. @return kCorrupt: not a manifest, cut short, or damaged, anywhere in what counts;
  /// kUnsupported: records that only a newer daemon knows.
  [[nodiscard]] static Result<Kept> read(std::span<const std::byte> memory);

  /// Bytes that create() needs, with as much again for what comes.
  [[nodiscard]] static std::uint64_t bytes_for(const Kept& state);

  /// Adds an entry, and makes it so in state(). A session gets its cell, with its lease's end.
  /// @return kExhausted: no room for it; kCorrupt: as Kept::apply().
  [[nodiscard]] Result<void> append(ManifestEntry entry);

  /// The lease of a session in state() ends then.
  void set_lease(SessionId session, TimePoint end);
  void set_alive(TimePoint now);

  [[nodiscard]] const Kept& state() const { return state_; }

 private:
  explicit ManifestLog(std::span<std::byte> memory) : memory_(memory) {}
  [[nodiscard]] Result<void> write(const ManifestEntry& entry);
  void store_word(std::size_t at, std::uint64_t value);

  std::span<std::byte> memory_;
  std::size_t end_ = 0;  ///< where the log ends
  Kept state_;
  std::set<std::uint32_t> free_cells_;
};

}  // namespace ho::daemon
