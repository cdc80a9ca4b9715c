#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"
#include "daemon/keep/fd_store.hpp"
#include "daemon/keep/manifest.hpp"

namespace ho::daemon {

/// What the last daemon left, as far as it fits together: every segment of every session is there,
/// with its size, its seals and its own file.
struct Inherited {
  Kept kept;  ///< incarnation 0: nothing was left, or nothing of use
  std::map<SegmentId, UniqueFd> memory;
  UniqueFd listener;  ///< the control socket; not valid: none
  /// Memory that was taken for grants to come. No session ever had it.
  struct Reserved {
    UniqueFd memory;
    std::uint64_t number = 0;  ///< as Keeper::put_reserved() got it
    std::optional<NumaNode> place;
    bool huge = false;  ///< pages of hugetlbfs
  };
  std::vector<Reserved> reserved;
  std::string blocks;           ///< as Keeper::leave_blocks() got them
  std::string extents;          ///< as Keeper::leave_extents() got them
  std::vector<SessionId> lost;  ///< sessions of the manifest that did not fit
};

/// Huge pages that the last process left: they are not free, but this pool's.
struct HeldPages {
  std::uint64_t bytes = 0;
  std::map<NumaNode, std::uint64_t> by_node;
};
[[nodiscard]] HeldPages held_pages(const Inherited& inherited);

/// What an inheritance must fit.
struct InheritSpec {
  NodeId node;
  std::uint64_t segment_bytes = 0;
  std::string unix_socket;
};

/// Reads what was left, by the names that Keeper gives. Descriptors that do not fit are logged and
/// leave the store; memory that is ours is truncated. Nothing else of the process
/// may use `stored`.
[[nodiscard]] Inherited inherit(std::vector<StoredFd> stored, FdStore& store,
                                const InheritSpec& spec);

/// Leaves to the next daemon what this one holds: memory and the control socket in systemd's
/// descriptor store, and a manifest of them, from the moment they are granted. Without a store it
/// does nothing.
///
/// A session is left as a whole or not at all: one of whose segments the store has no room for is
/// taken out of the manifest, and ends with this process.
///
/// Owner: the control thread, except put() and forget().
class Keeper {
 public:
  /// @param off  why there is no store, for people; empty: there is one. `store` outlives it.
  Keeper(FdStore& store, std::string off) : store_(store), off_(std::move(off)) {}
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Begins a manifest of what was taken over, in the store beside the last one, and ends that.
  /// On a failure the daemon goes on without. @param state  with the node, its incarnation set.
  void start(Kept state);
  void keep_listener(int fd);

  [[nodiscard]] bool on() const { return off_.empty(); }
  /// Why sessions end with this process; empty: they do not.
  [[nodiscard]] const std::string& off() const { return off_; }
  [[nodiscard]] const FdStore& store() const { return store_; }
  /// Sessions that would be lost with this process although there is a store.
  [[nodiscard]] std::size_t unkept() const { return unkept_.size(); }
  [[nodiscard]] bool keeps(SessionId session) const;
  /// What the next daemon would find now. nullptr: nothing.
  [[nodiscard]] const Kept* kept() const { return log_ ? &log_->state() : nullptr; }

  void opened(KeptSession session);
  void renewed(SessionId session, TimePoint lease_end);
  void ended(SessionId session);
  /// All that segments need but their records is in the store: put() was called.
  void granted(std::span<const KeptSegment> segments);
  void ended(SegmentId segment);
  /// The session cannot be left to the next daemon.
  void give_up(SessionId session, const Error& why);
  void tick(TimePoint now);

  /// Puts memory into the store; any thread. @return as FdStore::put().
  [[nodiscard]] Result<void> put(SegmentId segment, int fd);
  /// Takes it out; any thread.
  void forget(SegmentId segment);
  /// The same for memory that is not granted yet. @return also kUnsupported: there is no store.
  [[nodiscard]] Result<void> put_reserved(std::uint64_t number, std::optional<NumaNode> place,
                                          int fd);
  void forget_reserved(std::uint64_t number, std::optional<NumaNode> place);

  /// Leaves the block store's index: systemd has it, and all before it, when this returns. Only
  /// once nothing changes it any more.
  [[nodiscard]] Result<void> leave_blocks(const std::string& index);
  /// Leaves the store's extents of flash. After the index, which is of use without them; they are
  /// of none without it.
  [[nodiscard]] Result<void> leave_extents(const std::string& extents);
  /// Descriptors that the store still takes.
  [[nodiscard]] std::size_t room() const;

  /// Nothing is left to anybody: a real stop.
  void clear();

 private:
  struct Mapped;
  [[nodiscard]] Result<void> rewrite(Kept state);
  void append(ManifestEntry entry);
  [[nodiscard]] Result<void> put_named(const std::string& name, int fd);
  [[nodiscard]] Result<void> put_bytes(const std::string& name, const std::string& bytes);

  FdStore& store_;
  std::string off_;
  std::shared_ptr<Mapped> mapped_;
  std::optional<ManifestLog> log_;
  std::string manifest_name_;
  std::set<SessionId> unkept_;
};

/// The file of a segment's memory, for its record. @return kIo.
[[nodiscard]] Result<void> describe_file(int fd, KeptSegment& segment);

}  // namespace ho::daemon
