#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/objects/object_memory.hpp"
#include "client/objects/read_plan.hpp"
#include "client/pool/pool.hpp"
#include "common/base/result.hpp"
#include "proto/control/object_manifest.hpp"

namespace ho::client {

/// One rank that reads an object, under a layout of its own.
///
///   acquire: ask all nodes for parts -> the newest version that is complete -> open the parts
///            that this rank reads -> their manifests
///   read:    one-sided gets by the plan -> compare checksums
///
/// The plan is made at the first acquire and again where the object's tensors or layouts change.
/// While a version is held its publisher does not use its bytes again; if the publisher ends, or
/// this job's lease, reads fail and never bring wrong bytes.
///
/// Threads: one at a time. Its pool outlives it.
class Subscriber {
 public:
  struct Options {
    std::string name;
    std::string secret;
    std::string mesh;
    std::uint32_t rank = 0;
    std::vector<WantedTensor> tensors;
    std::vector<ObjectMemory> memory;    ///< this rank's tiles, parallel to tensors
    std::uint64_t link_bytes_per_s = 0;  ///< limit of read(); 0: none
    /// The publishing position whose tiles the memory has already.
    std::optional<std::size_t> own_part;
    const StopFlag* stop = nullptr;  ///< nullptr: none
  };
  /// @return kInvalidArgument: the mesh cannot be read.
  [[nodiscard]] static Result<std::unique_ptr<Subscriber>> create(Pool& pool,
                                                                  const Options& options);
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;
  ~Subscriber();

  struct Versions {
    std::uint64_t min = 0;
    std::uint64_t max = UINT64_MAX;
  };
  /// Opens the newest complete version of those, in place of the one that is open. Looks again and
  /// again until there is one or the time is over; what does not fit the object fails at once.
  /// @return its number; kNotFound: there is none; kCanceled: it was stopped, and none is open;
  /// kUnavailable: no node is left; kConflict, kInvalidArgument, kNotFound: as plan_read() says of
  /// it.
  [[nodiscard]] Result<std::uint64_t> acquire(const Versions& versions, Duration timeout);
  /// Fetches this rank's tiles of the open version. Waits. After a failure the memory's contents
  /// are not defined.
  /// @return kConflict: no version is open; kCanceled: it was stopped, and no byte is written from
  /// now on; kCorrupt: bytes that are not what was published;
  /// kNotFound: its publisher has ended, or its daemon was restarted; kUnavailable, kDeadline: a
  /// node is lost.
  [[nodiscard]] Result<void> read() { return read_tiles(plan_.tiles); }
  /// The same for one tensor, by its index in Options::tensors. kOutOfRange: there is none.
  [[nodiscard]] Result<void> read_tensor(std::size_t wanted);
  /// Lets go of the open version, if there is one. Waits until the nodes have heard it.
  void release();
  /// The same without waiting.
  void release_soon();

  /// What the object has; empty before the first acquire.
  [[nodiscard]] const std::vector<ObjectTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::string& mesh() const { return mesh_; }
  [[nodiscard]] const ReadPlan& plan() const { return plan_; }
  /// Another number for each plan that was made; 0: none was.
  [[nodiscard]] std::uint64_t plan_number() const { return plan_number_; }
  /// The open version; 0: none.
  [[nodiscard]] std::uint64_t version() const { return held_.empty() ? 0 : version_; }
  /// Equal for all who have the same bytes open, and another one where the open version's number
  /// was published again. @pre version() is not 0
  [[nodiscard]] std::uint64_t identity() const { return identity_; }
  /// Segments of the node that has the object's first part: for all readers the same. @pre
  /// version() is not 0
  [[nodiscard]] std::uint64_t segment_bytes() const { return segment_bytes_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const layout::Mesh& reader_mesh() const { return reader_mesh_; }
  /// A wanted tensor's, registered.
  [[nodiscard]] const ObjectMemory& memory(std::size_t wanted) const { return memory_.at(wanted); }

 private:
  struct Found {
    NodeIndex node;
    ObjectPart part;
  };
  /// A part that is open.
  struct Held {
    NodeIndex node;
    std::uint64_t hold = 0;
    ObjectPart part;
    const Arena* arena = nullptr;
    ObjectManifest manifest;
  };
  using Segments = std::pair<std::uint32_t, std::vector<SegmentId>>;  ///< a node's
  /// A version all of whose parts were found, by position.
  using Version = std::vector<Found>;
  /// Why a look found too little; "" where there is nothing to say.
  struct Missed {
    std::string unanswered;  ///< why a node did not answer
    std::string incomplete;  ///< what the newest version lacks that is there in part
  };
  struct Fetch;

  Subscriber(Pool& pool, const Options& options, layout::Mesh mesh);
  [[nodiscard]] static std::uint64_t identity_of(const Version& version);
  [[nodiscard]] Result<std::vector<Version>> find(const Versions& versions, Missed& missed);
  [[nodiscard]] Result<void> open(const Version& version);
  [[nodiscard]] Result<void> open_parts(const Version& version,
                                        const std::set<std::size_t>& positions);
  [[nodiscard]] Result<void> hold(const std::vector<Found>& parts);
  [[nodiscard]] Result<void> get_manifests(const std::vector<Found>& parts);
  [[nodiscard]] Result<void> take_manifest(const Found& found, std::span<const std::byte> bytes);
  [[nodiscard]] Result<const Arena*> attach(const Found& found, std::uint64_t hold);
  [[nodiscard]] Result<void> plan_by(const ObjectPart& part);
  [[nodiscard]] Result<void> check_tiles(const Held& held, std::size_t position) const;
  [[nodiscard]] Result<void> read_tiles(std::span<const TileRead> tiles);
  [[nodiscard]] std::vector<Fetch> in_turns(std::span<const TileRead> tiles) const;
  [[nodiscard]] Result<void> start(TransferWindow& window, Fetch& fetch);
  [[nodiscard]] Result<void> finish(const Fetch& fetch);
  template <typename Ended>
  void release_arenas(Ended ended);

  Pool& pool_;
  const Options options_;
  const layout::Mesh reader_mesh_;
  SteadyClock clock_;
  RegisteredTensors memory_;
  BounceBuffer bounce_;  ///< for pieces that are several runs of the reader's tile, by the first

  std::optional<ObjectChecksum> description_;  ///< that the plan is for
  std::string mesh_;
  std::vector<ObjectTensor> tensors_;
  ReadPlan plan_;
  std::uint64_t plan_number_ = 0;
  std::optional<std::uint64_t> missed_;  ///< least version that the last acquire() found none of
  bool misfit_ = false;                  ///< what is wanted does not fit the object: no look helps
  std::map<std::size_t, Held> held_;     ///< by position
  std::uint64_t version_ = 0;
  std::uint64_t identity_ = 0;
  std::uint64_t segment_bytes_ = 0;
  std::map<Segments, std::unique_ptr<Arena>> arenas_;  ///< attached
  /// Answers to what release_soon() has told nodes.
  std::vector<std::pair<NodeIndex, std::future<Result<void>>>> closing_;
};

}  // namespace ho::client
