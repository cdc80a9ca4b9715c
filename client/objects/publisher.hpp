#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/objects/chunks.hpp"
#include "client/objects/object_memory.hpp"
#include "client/objects/tiles.hpp"
#include "client/pool/leavers.hpp"
#include "client/pool/pool.hpp"
#include "common/base/result.hpp"
#include "common/layout/layout.hpp"
#include "common/layout/reshard.hpp"
#include "proto/control/object_manifest.hpp"

namespace ho::client {

/// One rank's part of an object: a ring of slots in the memory of one node, each for a version.
///
///   publish: free a slot (drop the oldest version that no reader has open) -> put tiles and
///            manifest -> all visible at the node -> announce
///
/// A publisher that dies before the last step leaves nothing that a reader finds; its bytes end
/// with its session. Versions live as long as the publisher.
///
/// After a restart of the node's daemon, the versions are announced again on the thread that
/// resumes sessions.
///
/// Off a drained node its versions move to another one between two calls of publish(), unless they
/// are reserved in the pool. The old copy of one that a reader has open stays until it is closed.
///
/// Threads: one at a time, beside that one and the pool's Leavers. Its pool outlives it.
class Publisher : public Leaver {
 public:
  struct Options {
    std::string name;
    std::string secret;
    std::string mesh;
    std::uint32_t rank = 0;
    std::uint64_t run = 0;       ///< the same for all ranks of a program, and no other's
    std::uint32_t versions = 2;  ///< kept
    Chunking chunking = Chunking::kRows;
    std::uint64_t link_bytes_per_s = 0;  ///< limit of publish(); 0: none
    bool exclusive = false;              ///< a version is reserved in the whole pool first
    bool in_turns = false;  ///< ranks take all nodes in turns, by bytes, not this machine's first
    std::vector<ObjectTensor> tensors;
    std::vector<ObjectMemory> memory;  ///< this rank's tiles, parallel to tensors; not copied
    /// Writes a tensor's tile to its memory, by its index: called before each tile that this rank
    /// stores is copied, when no transfer uses memory of tiles, so that they may share it. By
    /// publish(), again where a restart of the daemon makes it begin anew. Its error ends
    /// publish(). Empty: it is there.
    std::function<Result<void>(std::size_t)> fill;
    const StopFlag* stop = nullptr;  ///< nullptr: none
  };
  static constexpr std::uint32_t kVersionsMax = 1024;

  /// @return kInvalidArgument: a mesh or layout that cannot be read, memory of another size than
  /// the rank's tile; kExhausted: no node has room for the ring.
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> create(Pool& pool,
                                                                 const Options& options);
  /// What create() takes of the pool at least.
  [[nodiscard]] static Pool::Need need_of(Pool& pool, const Options& options);
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  /// Ends all its versions, also those that readers have open, whose reads fail then.
  ~Publisher() override;

  /// Copies the tensors as they are, and makes them visible as `version`. Waits.
  /// @return kInvalidArgument: not above the last one; kBusy: readers have all kept versions open;
  /// kAlreadyExists: another run has this version (without Options::exclusive: on this node);
  /// kUnsupported: the pool cannot reserve versions; kUnavailable, kDeadline: the node is lost, or
  /// silent: then the version may be visible all the same, and its number is used up; kCanceled: it
  /// was stopped, and the version is not visible; an error of Options::fill: it is not visible.
  [[nodiscard]] Result<void> publish(std::uint64_t version) {
    return publish(version, options_.run);
  }
  /// The same, as a part of another run's version.
  [[nodiscard]] Result<void> publish(std::uint64_t version, std::uint64_t run);

  [[nodiscard]] Result<Left> leave_drained() override;

 private:
  /// This rank's part of a tensor.
  struct Tile {
    layout::Box box;
    ChunkGrid chunks;
  };
  struct Slot {
    std::uint64_t offset_bytes = 0;  ///< in the arena
    bool announced = false;          ///< perhaps: its answer may have been lost
    bool heard = false;              ///< told_ has answered that it has it
    ObjectPart part;
  };

  struct Ring {
    std::unique_ptr<Arena> arena;
    NodeIndex node;
  };
  /// Versions on a node that they have left, or did not come to as a whole: readers may have them
  /// open, or have just found them there.
  struct OldRing {
    Ring ring;
    std::vector<ObjectPartId> versions;
    TimePoint found_until;
  };

  Publisher(Pool& pool, const Options& options);
  [[nodiscard]] Result<void> lay_out();
  void count_stored(const layout::Placement& placement, const std::vector<layout::Box>& boxes,
                    std::uint64_t element_bytes);
  [[nodiscard]] std::size_t first_node(std::size_t nodes) const;
  [[nodiscard]] Result<void> allocate();
  [[nodiscard]] Result<Ring> take_ring(const std::vector<NodeIndex>& nodes);
  void listen();
  [[nodiscard]] Result<void> move_to(Ring& ring, std::vector<ObjectPartId>& announced);
  void drop_old();
  [[nodiscard]] Result<void> try_publish(std::uint64_t version, std::uint64_t run);
  [[nodiscard]] Result<Slot*> free_slot();
  [[nodiscard]] Result<void> put(const Slot& slot, const ObjectPartId& id);
  [[nodiscard]] Result<void> put_tile(TransferWindow& window, const Slot& slot,
                                      const ObjectPartId& id, std::size_t tensor);
  [[nodiscard]] std::byte* gather(std::size_t tensor, std::size_t begin, std::size_t end);
  void announce_again();
  [[nodiscard]] Result<void> make_visible(Slot& slot, const ObjectPartId& id);
  [[nodiscard]] Result<void> announce(const ObjectPart& part);
  [[nodiscard]] Result<void> reserve(const ObjectPartId& id);

  Pool& pool_;
  const Options options_;
  SteadyClock clock_;
  RegisteredTensors memory_;
  ObjectManifest manifest_;
  std::vector<Tile> tiles_;                  ///< parallel to tensors
  std::vector<std::uint64_t> stored_bytes_;  ///< with in_turns: by position, up to this rank's
  ObjectChecksum description_{};
  std::uint32_t parts_ = 1;
  std::uint64_t tiles_bytes_ = 0;     ///< where the manifest begins in a slot
  std::uint64_t manifest_bytes_ = 0;  ///< the same for all versions
  std::uint64_t slot_bytes_ = 0;
  std::vector<std::byte> manifest_buffer_;
  std::optional<LocalHandles> manifest_handles_;
  BounceBuffer bounce_;       ///< for chunks that are several runs of their tile
  std::mutex busy_;           ///< held by publish(), and while the versions move
  bool fill_failed_ = false;  ///< it ended publish()'s last try
  Ring ring_;
  std::vector<OldRing> old_;
  bool leaves_ = false;  ///< the pool's Leavers know it
  std::uint64_t last_version_ = 0;
  std::uint64_t listener_ = 0;  ///< 0: none
  std::mutex mutex_;  ///< for what follows: the resumer's thread announces, too; held for requests
  std::vector<Slot> slots_;
  /// That knows the versions; nullptr: none does for sure. Another one after a restart.
  std::shared_ptr<ControlClient> told_;
};

}  // namespace ho::client
