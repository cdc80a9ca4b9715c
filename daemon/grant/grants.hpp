#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "common/transport/target.hpp"
#include "daemon/data/loop.hpp"
#include "daemon/grant/reserve.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/tier/ddr/machine_memory.hpp"
#include "daemon/tier/ddr/segment_maker.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"
#include "proto/control/control_values.hpp"

namespace asio {
class io_context;
class thread_pool;
}  // namespace asio

namespace ho::daemon {

/// Carries out the pool's decisions. Makes memory for reserved segments (worker threads), exposes
/// it (data thread), and faults in the driver's mapping of it (worker threads). Ends it in the
/// reverse order: revoke, wait, unmap, truncate, close, and only then forget the bytes. Wiping has
/// its own thread, so large grants do not delay the end of others.
///
/// Owner: the control thread, which also runs every callback. Lifecycle: make/end -> give_up() ->
/// idle() -> stop() -> destructor.
class Grants {
 public:
  struct Spec {
    SessionId session;
    std::uint64_t bytes = 0;
    std::string driver;  ///< kUnexposed: only share() gives access
    transport::Rights rights = transport::Rights::kReadWrite;
    std::optional<NumaNode> near = {};  ///< preferred NUMA node
  };
  static constexpr std::string_view kUnexposed = "none";
  using Made = std::function<void(Result<std::vector<GrantedSegment>>)>;
  using Ended = std::function<void()>;
  using Admitted = std::function<void(Result<std::string>)>;
  using Fenced = std::function<void(Result<std::string>)>;

  /// @param keeper  outlives it; told of every segment that begins or ends.
  Grants(Pool& pool, DataLoop& data, asio::io_context& io, PagePlan pages, Keeper& keeper);
  ~Grants();

  /// The memory of one live segment.
  struct Live {
    std::span<std::byte> bytes;
    transport::Rights rights = transport::Rights::kReadWrite;
  };
  /// Called once no access to the segments over a driver is possible, before their memory is freed.
  /// The memory stays until the given function is called. Set it before the first grant.
  using BeforeWipe = std::function<void(const std::vector<SegmentId>&, std::function<void()>)>;
  void set_before_wipe(BeforeWipe hook) { before_wipe_ = std::move(hook); }

  /// What an owner's sessions may have of links that they share with others. Set it before the
  /// first session.
  using ShareOf = std::function<transport::LinkShare(const std::string& owner)>;
  void set_share_of(ShareOf share_of) { share_of_ = std::move(share_of); }

  /// Lets an existing session in at the driver that carries its data, before its first grant;
  /// close_session() ends that. Answers once, with the address where it is served.
  void admit(SessionId session, const std::string& driver, Admitted answer);
  /// Ends a rail of the session's driver. Answers once; kConflict: it has none but `local`.
  void fence(SessionId session, const transport::RailFence& rail, Fenced answer);
  /// Grants whole segments to an existing session, all or none: over `local`, or the driver that it
  /// was admitted to (kConflict otherwise). Answers exactly once.
  void make(const Spec& spec, Made answer);
  /// Access for a session, with at most the rights that the segments were granted with.
  struct ShareSpec {
    SessionId session;
    std::string driver;
    transport::Rights rights = transport::Rights::kReadWrite;
    std::vector<SegmentId> segments;
  };
  /// Gives a session access to live segments of another one, over `local` or the driver that it was
  /// admitted to, until it or they end. Answers once, with those that are live; asked again, with
  /// the same keys.
  void share(const ShareSpec& spec, Made answer);
  /// Ends segments that were live and that the pool has set to kEnding. Answers once their bytes
  /// are free.
  void end(const std::vector<SegmentId>& segments, Ended answer);
  /// Closes a session and ends all it holds.
  void close_session(SessionId session, Ended answer);

  /// True if nothing is held, being made or ending.
  [[nodiscard]] bool idle() const { return held_.empty() && jobs_ == 0; }
  [[nodiscard]] PageKind page_kind() const { return pages_.kind; }
  /// nullopt if it is not live.
  [[nodiscard]] std::optional<Live> memory(SegmentId segment) const;
  /// The kind of pages of a live segment; the pool's kind if the segment is unknown.
  [[nodiscard]] PageKind page_kind(SegmentId segment) const;
  /// As SegmentMemory::numa_node(); nullopt if it is not live.
  [[nodiscard]] std::optional<NumaNode> numa_node(SegmentId segment) const;

  /// Makes grants in progress fail soon with kCanceled, and all later ones too.
  void give_up() { giving_up_.store(true); }

  /// A session's segments that an earlier process granted; its pool has them in kPreparing.
  struct Adopted {
    SegmentId id;
    std::string driver;
    transport::Rights rights = transport::Rights::kReadWrite;
    SegmentMemory memory;
  };
  /// Lets an adopted session in at its driver (empty: none), and exposes its segments. Answers
  /// once; after a failure the caller closes the session, and the segments end as any do.
  void adopt(SessionId session, const std::string& driver, std::vector<Adopted> segments,
             Ended answer, std::function<void(const Error&)> failed);
  /// How a session is reached: at the driver it was admitted to. nullptr: none.
  struct Admission {
    std::string driver;
    std::string address;
  };
  [[nodiscard]] const Admission* admission(SessionId session) const;
  /// The key of a live segment.
  [[nodiscard]] const std::string& key(SegmentId segment) const;

  /// Takes the pool's memory that is not granted, and keeps it for grants to come, beginning with
  /// what the last process left. Before the first grant. @param progress, filled  as
  /// Reserve::fill().
  void reserve(std::vector<Inherited::Reserved> left, std::function<void(std::uint64_t)> progress,
               std::function<void(Result<void>)> filled);
  [[nodiscard]] std::uint64_t reserved_bytes() const { return reserve_ ? reserve_->bytes() : 0; }
  /// To be called every Pool::tick_period().
  void tick();

  /// Leaves a session that the keeper does not know to the next process, with its live segments.
  /// @return the store's failure: nothing is left.
  [[nodiscard]] Result<void> keep(SessionId session);
  /// The opposite: a session that was adopted, and goes on, ends with this process.
  void unkeep(SessionId session);
  /// The memory that the keeper has outlives this process. After stop().
  void leave();

  /// Calls give_up() and waits for the threads. Call it after the io_context has ended.
  void stop();

 private:
  struct Job;
  struct Share {
    SessionId session;
    std::string driver;
    transport::Rights rights;
    transport::Exposure exposure;
  };
  struct Held {
    SegmentMemory memory;
    transport::ExposureId exposure;
    std::string key;
    std::string driver;
    transport::Rights rights;
    std::vector<Share> shares = {};
    std::uint32_t sharing = 0;  ///< shares being made, which its end waits for
  };
  struct Sharing {
    SessionId session;
    std::string driver;
    transport::Rights rights;
    std::vector<SegmentId> segments;
    Made answer;

    [[nodiscard]] bool is(const Share& one) const {
      return one.session == session && one.driver == driver && one.rights == rights;
    }
  };
  struct Ending {
    std::vector<SegmentId> segments;
    Ended answer;
  };
  struct Adoption;
  using Places = std::vector<std::optional<NumaNode>>;  ///< one per segment

  [[nodiscard]] SegmentMemory::Spec segment_spec() const;
  [[nodiscard]] Result<std::vector<SegmentMemory>> make_memory(const Places& places,
                                                               transport::Rights rights);
  [[nodiscard]] Result<void> check_driver(SessionId session, const std::string& driver) const;
  void end_sharing(const Sharing& sharing, const std::vector<SegmentId>& fresh,
                   const Result<std::vector<transport::Exposure>>& exposed);
  void hand_out(const Sharing& sharing);
  void end_shares(SessionId session);
  void expose(const std::shared_ptr<Job>& job);
  void fault_in_mappings(const std::shared_ptr<Job>& job,
                         std::vector<transport::Exposure> exposures);
  void hand_out(const std::shared_ptr<Job>& job, std::vector<transport::Exposure> exposures);
  [[nodiscard]] Result<void> store(const Job& job);
  [[nodiscard]] KeptSegment describe(SegmentId segment, const Held& held) const;
  void adopt_some(const std::shared_ptr<Adoption>& adoption);
  void adopted_some(const std::shared_ptr<Adoption>& adoption,
                    const std::vector<transport::Exposure>& exposures);
  void abandon(const std::shared_ptr<Adoption>& adoption, const Error& why);
  void log_failure(const Spec& spec, const Error& error);
  void post(std::function<void()> task);
  /// For the data thread: hands its answer to `told` on the control thread.
  template <typename Told>
  [[nodiscard]] auto posted(Told told) {
    return [this, told](const auto& result) { post([told, result] { told(result); }); };
  }
  void note_place(SegmentId segment, const SegmentMemory& memory);
  void fail(const std::shared_ptr<Job>& job, const Error& error);
  void wipe(std::shared_ptr<std::vector<SegmentMemory>> memory, std::vector<SegmentId> segments,
            Ended answer);

  Pool& pool_;
  DataLoop& data_;
  asio::io_context& io_;
  const PagePlan pages_;
  Keeper& keeper_;
  BeforeWipe before_wipe_;
  ShareOf share_of_ = [](const std::string& owner) { return transport::LinkShare{owner}; };
  std::map<SegmentId, Held> held_;
  std::map<SessionId, Admission> admitted_;
  std::vector<Ending> endings_;  ///< that wait for shares being made
  std::size_t jobs_ = 0;         ///< makes, shares and ends in progress
  std::optional<TimePoint> failure_logged_;
  bool misplaced_ = false;  ///< memory on another NUMA node was logged
  std::atomic<bool> giving_up_{false};
  SegmentMaker maker_;
  std::unique_ptr<Reserve> reserve_;  ///< null: memory is taken with each grant
  std::unique_ptr<asio::thread_pool> makers_;
  std::unique_ptr<asio::thread_pool> wiper_;
};

}  // namespace ho::daemon
