#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/pool/tenant.hpp"
#include "proto/control/object_values.hpp"

namespace ho::daemon {

/// The published parts whose bytes lie on this node, and who has them open. Soft state: a part is
/// there as long as its segments are live in its publisher's session, and ends with the daemon,
/// after which its publisher announces it again. Pure: it knows the pool, and no memory.
///
/// Owner: the control thread.
class ObjectDirectory {
 public:
  static constexpr std::size_t kPartsMax = 16'384;      ///< on a node
  static constexpr std::size_t kSegmentsMax = 262'144;  ///< that the parts of a node list, in all
  static constexpr std::size_t kHoldsMax = 65'536;      ///< on a node
  /// One session may have this part of each limit, so that it does not shut out the others.
  static constexpr std::size_t kShare = 4;
  static constexpr std::size_t kFoundMax = 1024;   ///< in one answer
  static constexpr std::size_t kListedMax = 1024;  ///< in one page

  /// @param first_hold  above 0, and not near what an earlier daemon of the sessions gave out: a
  /// reader may close what that one has kept.
  ObjectDirectory(const Pool& pool, std::uint64_t first_hold)
      : pool_(pool), next_hold_(first_hold) {}
  ObjectDirectory(const ObjectDirectory&) = delete;
  ObjectDirectory& operator=(const ObjectDirectory&) = delete;

  /// Makes a part visible. `tenant` has the object's name, here and below.
  /// @return kInvalidArgument: numbers that do not fit together, a segment twice; kNotFound: a
  /// segment that is not live in the session; kAlreadyExists: the version's part is there, or the
  /// version of another run; kExhausted: kPartsMax or kSegmentsMax, of the node or the session.
  [[nodiscard]] Result<void> publish(SessionId session, const TenantSpec& tenant,
                                     const ObjectPart& part, TimePoint now);
  /// Ends a part. @return kNotFound: the session has not published it; kBusy: it is open.
  [[nodiscard]] Result<void> drop(SessionId session, const TenantSpec& tenant,
                                  const ObjectPartId& id);
  /// Parts of versions between two, both included, newest first, at most kFoundMax.
  [[nodiscard]] std::vector<ObjectPart> find(const TenantSpec& tenant, std::uint64_t min_version,
                                             std::uint64_t max_version) const;

  struct Opened {
    std::uint64_t hold = 0;
    std::vector<SegmentId> segments;  ///< all that the part lies in
  };
  /// Keeps a part from being dropped, until close() or the session's end. `hold` of an earlier call
  /// by the session for this part: nothing new is kept.
  /// @return kNotFound; kExhausted: kHoldsMax, of the node or the session.
  [[nodiscard]] Result<Opened> open(SessionId session, const TenantSpec& tenant,
                                    const ObjectPartId& id, std::uint64_t hold);
  /// Holds that the session does not have are ignored.
  void close(SessionId session, const std::vector<std::uint64_t>& holds);

  struct View {
    std::uint64_t number = 0;
    ObjectInfo info;
  };
  /// Parts with larger numbers, in order, at most kListedMax.
  [[nodiscard]] std::vector<View> list(std::uint64_t after_number, TimePoint now) const;

  /// Segments that published parts lie in, by session. O(segments that all parts list).
  [[nodiscard]] std::map<SessionId, std::uint64_t> published_bytes() const;

  /// Forgets what ended, a slice of it all in each call: what is not forgotten yet is not found
  /// either, but counts. To be called every Pool::tick_period().
  void tick();

 private:
  /// Version, run and part.
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;
  struct Record;
  using Parts = std::map<Key, Record>;
  struct Record {
    ObjectPart part;
    SessionId session;
    std::string object;  ///< its key in objects_
    std::string label;
    TimePoint published;
    std::uint64_t number = 0;
  };
  struct Hold {
    SessionId session;
    std::uint64_t number = 0;  ///< the record's
  };
  /// What a session has of that which is limited.
  struct Use {
    std::size_t parts = 0;
    std::size_t segments = 0;
    std::size_t holds = 0;
  };

  [[nodiscard]] static Key key_of(const ObjectPartId& id) { return {id.version, id.run, id.part}; }
  [[nodiscard]] bool owns(SessionId session, const std::vector<SegmentId>& segments) const;
  [[nodiscard]] bool alive(const Record& record) const {
    return owns(record.session, record.part.segments);
  }
  [[nodiscard]] std::uint32_t readers(std::uint64_t number) const;
  [[nodiscard]] Result<void> make_way(const TenantSpec& tenant, const ObjectPartId& id);
  [[nodiscard]] Result<void> check_room(SessionId session, std::size_t segments) const;
  void erase(std::uint64_t number);
  void close_one(std::map<std::uint64_t, Hold>::iterator at);
  void tidy_use(SessionId session);

  const Pool& pool_;
  std::map<std::string, Parts> objects_;            ///< by tenant_key()
  std::map<std::uint64_t, const Record*> records_;  ///< by number
  std::map<std::uint64_t, Hold> holds_;
  std::map<std::uint64_t, std::uint32_t> held_;  ///< holds of a record, by its number
  std::map<SessionId, Use> uses_;
  std::size_t segments_ = 0;        ///< that the parts list
  std::uint64_t swept_record_ = 0;  ///< tick() goes on behind these
  std::uint64_t swept_hold_ = 0;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_hold_;
};

}  // namespace ho::daemon
