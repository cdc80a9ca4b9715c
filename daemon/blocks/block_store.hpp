#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/model/address.hpp"
#include "daemon/blocks/block_index.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/grant/staging.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/pool/tenant.hpp"

namespace ho::daemon {

struct LeftTenant;

/// The KV block store of this node: tenants, the segments that hold their blocks, and which session
/// uses which tenant's. Segments are a tenant's own: its blocks never share one with another's, and
/// a segment that changes hands is wiped like any other. They belong to a session of the pool that
/// the store opens for the tenant.
///
/// A tenant's segments grow in number until the store is full; then its own blocks are evicted,
/// unless it has less than an equal share, which the largest tenant then gives. Extents of flash,
/// where the store has any, grow in the same way.
///
/// Owner: the control thread, which also runs every callback, exactly once.
class BlockStore {
 public:
  static constexpr std::size_t kTenantsMax = 256;
  static constexpr std::size_t kStoresPerSessionMax = 16;
  static constexpr std::size_t kKeysMax = 8192;
  static constexpr std::size_t kToLoadMax = 65'536;  ///< blocks of a tenant that wait for flash
  /// How much of the flash is left to the next daemon, in extents and in copies. Jobs wait 5 s for
  /// it, and so many extents take about 2 s of them (17 bytes and 30 ns for each 4 KiB at most, and
  /// the copies of these bytes), so many copies 1.2 s (dev build). Memory: about 1.2 GiB in either
  /// daemon.
  static constexpr std::uint64_t kLeftFlashBytesMax = 128 * kGiB;
  static constexpr std::size_t kLeftCopiesMax = std::size_t{1} << 19U;
  static constexpr Duration kPinMax = std::chrono::seconds(60);

  struct Options {
    std::uint64_t capacity_bytes = 0;  ///< what it takes of the pool at most; whole segments
    std::uint64_t flash_bytes = 0;     ///< and of the flash, in extents of that size
    std::uint64_t salt = 0;            ///< random
  };
  /// What a user may take, by owner, as things are now. Called when a tenant grows.
  struct Quota {
    std::uint64_t segment_bytes = UINT64_MAX;  ///< in the store
    std::uint64_t flash_bytes = UINT64_MAX;    ///< on the node's flash, with extents of jobs
    std::uint64_t flash_used = 0;              ///< as far as is known
  };
  using QuotaOf = std::function<Quota(const std::string&)>;
  BlockStore(Pool& pool, Grants& grants, Staging& staging, const Clock& clock, Options options);
  void set_quota(QuotaOf quota_of) { quota_of_ = std::move(quota_of); }
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /// Opens a tenant's blocks for an existing session. A new tenant's memory counts for
  /// `spec.owner`, up to its quota; then its own blocks are evicted. @return the store's number in
  /// the session: of one that it opened before the same, as stores end with their session only.
  /// kExhausted: kStoresPerSessionMax, kTenantsMax.
  enum class Limit : std::uint8_t { kQuota, kNone };
  [[nodiscard]] Result<std::uint32_t> open(SessionId session, const TenantSpec& spec,
                                           const std::string& model, Limit limit = Limit::kQuota);

  /// Ends when its session does. What find() and its like return is for one call.
  struct Use {
    SessionId session;
    ModelIndex model;
    BlockIndex* index = nullptr;
  };
  /// @return kNotFound: the session has not opened it.
  [[nodiscard]] Result<Use> find(SessionId session, std::uint32_t store) const;

  /// As Grants::share(), of segments that are the tenant's.
  void attach(SessionId session, std::uint32_t store, const std::string& driver,
              const std::vector<SegmentId>& segments, Grants::Made answer);

  /// One for each key; nullopt: a miss.
  using Located = std::function<void(const Result<std::vector<std::optional<BlockPlace>>>&)>;
  /// Finds blocks, and counts hits and misses. Blocks that are on flash only come to DDR first.
  /// Answers kBusy where kToLoadMax wait already.
  void locate(SessionId session, std::uint32_t store, const std::vector<BlockKey>& keys,
              Located answer);

  /// As BlockIndex::pin(). A job mostly gets next what it has matched: blocks that are on flash
  /// only come to DDR meanwhile, into free slots and those of saved blocks, until a share of the
  /// tenant's DDR is pinned.
  [[nodiscard]] Result<BlockIndex::Pinned> pin(SessionId session, std::uint32_t store,
                                               const std::vector<BlockKey>& keys, TimePoint until);

  struct Wanted {
    BlockKey key;
    std::uint64_t length_bytes = 0;
    std::uint32_t cost = 1;
  };
  using Reserved = std::function<void(const Result<std::vector<BlockIndex::Reserved>>&)>;
  /// Reserves slots, one for each that is wanted; may make a segment for them first. For a block
  /// that is larger than a segment, or of one size more than a tenant may have, there is no room.
  void reserve(SessionId session, std::uint32_t store, std::vector<Wanted> wanted, Reserved answer);

  /// Ends what sessions had that are gone, old reservations and pins, and, where the daemon drains,
  /// everything. To be called every Pool::tick_period(), before Pool::tick().
  void tick(TimePoint now);

  struct Left {
    std::string index;                  ///< for adopt(); empty: nothing can be left
    std::set<flash::ExtentId> extents;  ///< that it names
  };
  /// Leaves stored blocks to the next daemon; their segments go to the descriptor store. Nothing of
  /// the store may be used any more.
  [[nodiscard]] Left leave();
  /// Takes over what the last daemon left, as far as its memory and flash are there. Before the
  /// first request, after the sessions were taken over.
  void adopt(std::string left);

  struct TenantView {
    std::string name;
    std::uint64_t held_bytes = 0;
    std::uint64_t held_flash_bytes = 0;
    std::vector<std::pair<std::string, BlockFigures>> models;
  };
  [[nodiscard]] std::vector<TenantView> tenants() const;
  /// The figures of all tenants, with those that have ended.
  [[nodiscard]] BlockFigures totals() const;
  /// By owner.
  [[nodiscard]] std::map<std::string, std::uint64_t> held_bytes() const;
  [[nodiscard]] std::uint64_t capacity_bytes() const { return options_.capacity_bytes; }
  [[nodiscard]] std::uint64_t flash_bytes() const { return options_.flash_bytes; }
  /// Ends all blocks of tenants of this name, and gives their memory back. @return what they were;
  /// kNotFound.
  [[nodiscard]] Result<BlockFigures> clear(const std::string& name);
  /// The session holds a tenant's segments.
  [[nodiscard]] bool owns(SessionId session) const;

 private:
  /// A request that waits for a segment.
  struct Reserving {
    SessionId session;
    ModelIndex model;
    std::vector<Wanted> wanted;
    std::vector<BlockIndex::Reserved> made;
    Reserved answer;
  };
  /// A request that waits for blocks from flash.
  struct Locating {
    SessionId session;
    ModelIndex model;
    std::vector<std::optional<BlockPlace>> places;
    std::vector<BlockNumber> held;  ///< until the answer
    std::size_t loads = 0;          ///< left
    Located answer;                 ///< empty: given
  };
  /// A place that a load will fill.
  struct Waiter {
    std::shared_ptr<Locating> request;
    std::size_t at = 0;
  };
  /// How a tenant's areas of a medium grow in number.
  struct Growth {
    bool asking = false;    ///< within grow()
    bool growing = false;   ///< one is being made
    bool refused = false;   ///< the last one: there is less than the store may take
    TimePoint not_until{};  ///< there was none to have
    /// No own one was to have. The search takes too long to repeat it for each block: the next one
    /// is after a while, or when there are half as many reservations.
    struct NoRecut {
      TimePoint until{};
      std::size_t reservations = 0;  ///< 0: they were not in the way
    };
    /// While a block of the size could go, and while none could.
    std::array<NoRecut, 2> no_recut{};
  };
  struct Tenant {
    Tenant(std::string identity, std::string shown, std::uint64_t area_bytes, std::uint64_t salt)
        : key(std::move(identity)), name(std::move(shown)), index(area_bytes, salt) {}
    const std::string key;   ///< a secret
    const std::string name;  ///< for people
    std::string owner;       ///< opened it first
    Limit limit = Limit::kQuota;
    BlockIndex index;
    std::optional<SessionId> session;  ///< holds segments and extents; opened for the first
    std::uint64_t generation = 0;      ///< another one after each clear, and for each tenant
    std::array<Growth, 2> growths;     ///< by medium
    std::vector<Reserving> waiting;    ///< for segments

    TimePoint no_save_until{};  ///< one failed
    TimePoint no_warning_until{};
    std::map<std::uint64_t, std::size_t> saves;  ///< in flight, by size
    std::size_t loads = 0;                       ///< in flight
    std::deque<BlockNumber> to_load;
    std::deque<BlockNumber> matched;                     ///< to be loaded while nothing else is
    std::map<BlockNumber, std::vector<Waiter>> waiters;  ///< by block that is loaded or in to_load

    [[nodiscard]] Growth& growth(BlockMedium medium) {
      return growths[static_cast<std::size_t>(medium)];
    }
    [[nodiscard]] const Growth& growth(BlockMedium medium) const {
      return growths[static_cast<std::size_t>(medium)];
    }
  };
  struct Opened {
    Tenant* tenant = nullptr;
    ModelIndex model;
  };

  [[nodiscard]] BlockIndex::LeaveMost most_left(const Tenant& tenant) const;
  [[nodiscard]] Result<std::size_t> adopt(LeftTenant& left);
  void claim_extents(LeftTenant& left);
  [[nodiscard]] Result<Opened> opened(SessionId session, std::uint32_t store) const;
  void go_on(Tenant& tenant, Reserving reserving);
  void resume(Tenant& tenant);
  void clear(Tenant& tenant);
  [[nodiscard]] Tenant* alive(const std::string& key, std::uint64_t generation) const;

  // Room: segments and extents.
  [[nodiscard]] std::uint64_t area_bytes() const { return pool_.options().segment_bytes; }
  [[nodiscard]] std::uint64_t areas_max(BlockMedium medium) const;
  [[nodiscard]] bool within_quota(const Tenant& tenant, BlockMedium medium) const;
  [[nodiscard]] bool may_grow(const Tenant& tenant, BlockMedium medium) const;
  [[nodiscard]] bool grow(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes);
  [[nodiscard]] bool ensure_session(Tenant& tenant);
  void make_area(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes);
  void area_made(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes,
                 std::optional<AreaId> area);
  [[nodiscard]] Tenant* giver(const Tenant& taker, BlockMedium medium) const;
  void take_area(Tenant& from, Tenant& to, BlockMedium medium, std::uint64_t block_bytes);
  bool recut(Tenant& tenant, BlockMedium medium, std::uint64_t block_bytes);
  [[nodiscard]] std::uint64_t& held(BlockMedium medium) {
    return held_areas_[static_cast<std::size_t>(medium)];
  }
  [[nodiscard]] std::uint64_t held(BlockMedium medium) const {
    return held_areas_[static_cast<std::size_t>(medium)];
  }

  // Moves between DDR and flash.
  void load_more(Tenant& tenant);
  void load_matched(Tenant& tenant);
  void start_load(Tenant& tenant, const BlockIndex::Move& move);
  [[nodiscard]] std::optional<BlockIndex::Load> begin_load(Tenant& tenant, BlockNumber block);
  [[nodiscard]] bool wanted(const Tenant& tenant, BlockNumber block) const;
  void load_ended(Tenant& tenant, BlockNumber block, const Result<void>& done);
  void tell(Tenant& tenant, BlockNumber block, const std::optional<BlockPlace>& place);
  void reply(Tenant& tenant, Locating& request);
  void save_ahead(Tenant& tenant);
  [[nodiscard]] std::optional<BlockIndex::Move> begin_save(Tenant& tenant, BlockNumber block,
                                                           std::uint64_t block_bytes);
  void save_ended(Tenant& tenant, BlockNumber block, std::uint64_t block_bytes,
                  const Result<void>& done);
  void start(Tenant& tenant, const BlockIndex::Move& move, StageDirection direction,
             Staging::Done ended);
  void warn(Tenant& tenant, const char* what, const Error& why);
  void end_moves(Tenant& tenant);

  Pool& pool_;
  Grants& grants_;
  Staging& staging_;
  const Clock& clock_;
  const Options options_;
  std::map<std::string, std::unique_ptr<Tenant>> tenants_;  ///< by identity
  std::map<SessionId, std::vector<Opened>> sessions_;
  QuotaOf quota_of_;
  std::uint64_t generations_ = 0;  ///< the last one given out
  BlockFigures ended_;             ///< of tenants that have ended
  /// All tenants', with those being made or ending, by medium.
  std::array<std::uint64_t, 2> held_areas_{};
};

}  // namespace ho::daemon
