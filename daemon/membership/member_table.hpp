#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/error.hpp"
#include "proto/control/control_values.hpp"

namespace ho::daemon {

/// A daemon as the phone book lists it.
struct Member {
  NodeInfo info;
  std::uint64_t instance = 0;  ///< HelloReply::daemon_instance
};

/// Says which book it is, and how often it was changed. The number of the cluster alone tells a new
/// book only where etcd was set up with other names or another token; the revision alone does not
/// where the new one was changed more often than the old one.
struct BookVersion {
  std::uint64_t cluster = 0;
  std::int64_t revision = 0;

  bool operator==(const BookVersion&) const = default;
};

/// The list of nodes as it was read last, and what is wrong with it. Pure: no I/O.
///
/// A read replaces the list; a failed one changes nothing. Where the book itself was replaced
/// (another cluster answers, or its data were wiped and its revision went back), members that are
/// missing stay for a time: they have not signed in again yet. Owner: one thread.
class MemberTable {
 public:
  /// @param grace  for so long members of a replaced book stay.
  explicit MemberTable(Duration grace) : grace_(grace) {}

  /// Whether a book of that version has to be read.
  [[nodiscard]] bool is_news(const BookVersion& version) const { return news_ || version != last_; }
  /// The next version is news, whichever it is.
  void expect_news() { news_ = true; }
  /// The whole book, as of a version.
  void read(const BookVersion& version, std::vector<Member> members, TimePoint now);
  /// Ends the time of members that a replaced book left behind.
  void tick(TimePoint now);

  /// Something is wrong from now on, if nothing was before.
  void fail(const Error& error, TimePoint now);
  /// Nothing is wrong.
  void mend() { trouble_.clear(); }

  /// All but `self`, by number.
  [[nodiscard]] std::vector<NodeInfo> others(NodeId self) const;
  /// The cause of trouble; empty: none.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  [[nodiscard]] TimePoint trouble_since() const { return trouble_since_; }

 private:
  struct Entry {
    Member member;
    std::optional<TimePoint> gone_at;  ///< when the grace of a replaced book ends
  };

  const Duration grace_;
  bool news_ = true;
  BookVersion last_;  ///< as the book was read
  std::map<NodeId, Entry> members_;
  std::string trouble_;
  TimePoint trouble_since_;
};

}  // namespace ho::daemon
