#include "daemon/tier/flash/store/write_budget.hpp"

#include <algorithm>
#include <string>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/log/layout.hpp"

namespace ho::flash {

namespace {

/// An upper bound for the cost of this many bytes of frames (in one copy): both copies, and the new
/// logs that they require.
std::uint64_t logged_bytes(const LogFill& log, std::uint64_t frame_bytes) {
  HO_CHECK(log.frame_bytes_max >= kBlockBytes && log.frame_bytes_max < log.area_bytes);
  // A frame that no longer fits leaves less than the longest frame unused.
  const std::uint64_t usable = log.area_bytes - log.frame_bytes_max + kBlockBytes;
  // create() leaves at least one block of each log free. A larger table, which only a foreign path
  // can have, is not written: its path breaks.
  const std::uint64_t table = std::min(log.table_bytes, usable - kBlockBytes);
  const std::uint64_t head = log.begins_log ? usable : std::min(usable, log.head_bytes);
  const std::uint64_t room = usable - head;
  std::uint64_t logs = log.begins_log ? 1 : 0;
  if (frame_bytes > room) {
    logs = std::max(logs, (frame_bytes - room - 1) / (usable - table) + 1);
  }
  return kCopies * (frame_bytes + logs * (table + kBlockBytes));
}

}  // namespace

Result<void> WriteBudget::check(const WriteNeed& need, std::uint64_t written_bytes,
                                const LogFill& log) const {
  if (bytes_per_day_max_ == 0 || need.none()) return {};
  const std::uint64_t alone = written_bytes + need.data_bytes + logged_bytes(log, need.frame_bytes);
  const std::uint64_t beside_others = written_bytes + promised_.data_bytes + need.data_bytes +
                                      logged_bytes(log, promised_.frame_bytes + need.frame_bytes);
  HO_CHECK(beside_others >= alone);
  if (beside_others <= bytes_per_day_max_) return {};
  const std::string budget = "today's write budget of " + format_bytes(bytes_per_day_max_) + " is ";
  if (log.begins_log || alone <= bytes_per_day_max_) {
    return Error(Errc::kBusy, budget + "promised to requests in flight");
  }
  return Error(Errc::kExhausted, budget + "used up (" + format_bytes(written_bytes) +
                                     " written, or the rest is less than this may need); it begins "
                                     "anew at midnight UTC");
}

void WriteBudget::promise(const WriteNeed& need) {
  promised_.data_bytes += need.data_bytes;
  promised_.frame_bytes += need.frame_bytes;
  HO_CHECK(promised_.data_bytes >= need.data_bytes && promised_.frame_bytes >= need.frame_bytes);
}

void WriteBudget::settle(const WriteNeed& need) {
  HO_CHECK(promised_.data_bytes >= need.data_bytes);
  HO_CHECK(promised_.frame_bytes >= need.frame_bytes);
  promised_.data_bytes -= need.data_bytes;
  promised_.frame_bytes -= need.frame_bytes;
}

}  // namespace ho::flash
