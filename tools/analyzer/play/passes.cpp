#include "tools/analyzer/play/passes.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tools/analyzer/play/play_room.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// A wait of the step below this share of its compute time is not worth a change.
constexpr std::int64_t kSmallShare = 1000;
constexpr int kPassesPerWait = 3;  ///< to find a shorter step without the longest wait
/// All waits together below this share of it end the passes.
constexpr std::int64_t kSmallWaitShare = 2000;

/// The gaps of all values that left in any of theirs.
std::vector<std::uint8_t> whole_values(const Lifetimes& life, std::vector<std::uint8_t> candidates,
                                       const std::vector<std::uint8_t>& left) {
  std::vector<std::uint8_t> value_left(life.versions, 0);
  for (std::size_t g = 0; g < life.gaps.size(); ++g) {
    if (left[g] && life.gaps[g].version != kHomeVersion) value_left[life.gaps[g].version] = 1;
  }
  for (std::size_t g = 0; g < life.gaps.size(); ++g) {
    const std::uint32_t version = life.gaps[g].version;
    if (version != kHomeVersion && !value_left[version]) candidates[g] = 0;
  }
  return candidates;
}

/// Takes from `leaves` what room allows to stay, the longest transfers first: the furthest next use
/// decides what leaves, which may be far larger than the room that is needed.
/// @param stayed  called with each gap that stays, and the least room in it before
template <typename Stayed>
void stay_where_room_is(const Lifetimes& life, const PlayedStep& step,
                        const std::vector<std::int64_t>& room_bytes,
                        std::vector<std::uint8_t>& leaves, Stayed&& stayed) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    if (leaves[g] && !is_free_gap(life.gaps[g]) && !life.gaps[g].mandatory) order.push_back(g);
  }
  const auto transfer_ns = [&](std::uint32_t g) {
    const Gap& gap = life.gaps[g];
    return step.fetch_ns[gap.storage] +
           (gap.version == kHomeVersion ? 0 : step.store_ns[gap.storage]);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return transfer_ns(a) > transfer_ns(b);
  });
  PlayRoom room(room_beside(room_bytes, least_resident(life, leaves)));
  for (const std::uint32_t g : order) {
    const Gap& gap = life.gaps[g];
    const auto bytes = static_cast<std::int64_t>(life.bytes[gap.storage]);
    const std::int64_t least = room.least(gap.from + 1, gap.to);
    if (least < bytes) continue;
    room.take(gap.from + 1, gap.to, bytes);
    leaves[g] = 0;
    stayed(g, least);
  }
}

/// The passes over one step.
class Passes {
 public:
  Passes(const Problem& input, const PlayedStep& step, const PassOptions& options)
      : in_(input),
        step_(step),
        options_(options),
        leaves_(step.candidates),
        stays_(leaves_.size()) {
    for (std::size_t g = 0; g < leaves_.size() && !in_.tiers.empty(); ++g) {
      const Gap& gap = in_.lifetimes.gaps[g];
      if (leaves_[g] || !gap.movable || gap.mandatory || is_free_gap(gap)) continue;
      stays_[g] = {StayCause::kSmall, 1, static_cast<std::int64_t>(step.small_bytes)};
    }
    for (std::size_t g = 0; g < options.first_leaves.size(); ++g) {
      if (!leaves_[g] || options.first_leaves[g]) continue;
      leaves_[g] = 0;
      stays_[g] = {StayCause::kDivided, 1, 0};
    }
  }

  std::optional<Played> run() {
    if (options_.latest_starts) {
      const std::vector<std::uint8_t> none(leaves_.size(), 0);
      gate(none, none);
    }
    std::int64_t last_ns = 0;
    for (int i = 0; i < options_.passes_max; ++i) {
      auto pass = play_once(PassKind::kLearning);
      if (!pass) break;
      learn(*pass, options_.whole_values);
      const std::int64_t change_ns = std::abs(pass->step_ns - last_ns);
      last_ns = pass->step_ns;
      const bool waits = still_waits(*pass);
      keep(*std::move(pass));
      if (!waits || change_ns <= last_ns / 1'000'000) break;
    }
    if (best_) avoid_waits();
    if (best_ && options_.fewest_bytes && still_waits(*best_)) move_fewest_bytes();
    if (best_) best_->steps = steps_;
    return std::move(best_);
  }

 private:
  [[nodiscard]] bool still_waits(const Played& pass) const {
    const std::int64_t compute_ns = step_.begin_ns.back();
    return pass.step_ns > compute_ns + compute_ns / kSmallWaitShare;
  }

  std::optional<Played> play_once(PassKind kind) {
    ++passes_;
    if (options_.rules != nullptr) {
      for (std::size_t g = 0; g < leaves_.size(); ++g) {
        const GapRule rule = (*options_.rules)[g];
        if (rule == GapRule::kFree) continue;
        leaves_[g] = rule == GapRule::kLeaves ? 1 : 0;
        if (!leaves_[g]) stays_[g] = {StayCause::kVariation, 1, 0};
      }
    }
    auto pass = play(in_, step_,
                     {.room_bytes = options_.room_bytes,
                      .steps = options_.steps,
                      .leaves = leaves_,
                      .lead = fetches_.lead,
                      .need_bytes = need_bytes_,
                      .slot_bytes = options_.slot_bytes,
                      .held_slot_bytes = options_.held_slot_bytes,
                      .leaves_slot = leaves_slot_,
                      .stage_lead = stages_.lead,
                      .need_slot_bytes = need_slot_bytes_,
                      .rules = options_.rules,
                      .lead_ns = &fetches_.before_ns});
    if (!pass) return pass;
    steps_ += pass->steps;
    record_stays(kind, *pass);
    return pass;
  }

  void record_stays(PassKind kind, Played& pass) {
    Decisions& out = pass.decisions;
    out.decided_by.pass = passes_;
    out.decided_by.kind = kind;
    out.stays = stays_;
    for (std::size_t g = 0; g < leaves_.size(); ++g) {
      if (out.moved[g]) {
        out.stays[g] = {};
      } else if (leaves_[g]) {
        out.stays[g] = {StayCause::kNotAsked, number(passes_), 0};
      }
    }
  }
  static std::uint8_t number(int pass) { return static_cast<std::uint8_t>(std::min(pass, 255)); }

  void gate(const std::vector<std::uint8_t>& left, const std::vector<std::uint8_t>& left_slot) {
    fetches_ = latest_fetches(in_, step_, left);
    if (in_.flash != nullptr) stages_ = latest_stages(in_, step_, left_slot, fetches_);
  }

  /// What the next pass knows from this one.
  void learn(const Played& pass, bool whole) {
    gate(pass.left, pass.left_slot);
    need_bytes_ = pass.need_bytes;
    need_slot_bytes_ = pass.need_slot_bytes;
    leaves_ = pass.left;
    leaves_slot_ = pass.left_slot;
    if (whole) learn_whole(pass);
    stays_ = pass.decisions.stays;
    for (StayReason& stay : stays_) {
      if (stay.cause == StayCause::kNotAsked) stay.cause = StayCause::kNotNeeded;
    }
  }

  void learn_whole(const Played& pass) {
    leaves_ = whole_values(in_.lifetimes, step_.candidates, pass.left);
    if (in_.flash == nullptr) return;
    const std::vector<std::uint8_t> all(leaves_.size(), 1);
    leaves_slot_ = whole_values(in_.lifetimes, all, pass.left_slot);
  }

  /// @return whether it is the shortest so far.
  bool keep(Played pass) {
    if (best_ && pass.step_ns >= best_->step_ns) return false;
    best_ = std::move(pass);
    return true;
  }

  /// What an op waited for longest stays on the device, and others leave instead; then what the
  /// next one waited for.
  void avoid_waits() {
    std::vector<std::size_t> stays;
    for (int i = 0; i < options_.waits_avoided && still_waits(*best_); ++i) {
      const auto longest = std::max_element(best_->waited_ns.begin(), best_->waited_ns.end());
      const auto g = static_cast<std::size_t>(longest - best_->waited_ns.begin());
      if (*longest < step_.begin_ns.back() / kSmallShare || in_.lifetimes.gaps[g].mandatory) return;
      stays.push_back(g);
      stays_[g] = {StayCause::kWaitedFor, number(passes_ + 1), *longest};
      leaves_ = step_.candidates;
      bool shorter = false;
      for (int pass = 0; pass < kPassesPerWait && !shorter; ++pass) {
        for (const std::size_t each : stays) leaves_[each] = 0;
        auto played = play_once(PassKind::kAvoidsWait);
        if (!played) return;
        learn(*played, false);
        shorter = keep(*std::move(played));
      }
      if (!shorter) return;
    }
  }

  void move_fewest_bytes() {
    learn(*best_, false);
    bool changed = false;
    stay_where_room_is(in_.lifetimes, step_, options_.room_bytes, leaves_,
                       [&](std::uint32_t g, std::int64_t room_bytes) {
                         changed = true;
                         stays_[g] = {StayCause::kRoomLeft, number(passes_ + 1), room_bytes};
                       });
    if (!changed) return;
    gate(leaves_, leaves_slot_);
    if (auto pass = play_once(PassKind::kFewestBytes)) keep(*std::move(pass));
  }

  const Problem& in_;
  const PlayedStep& step_;
  const PassOptions& options_;
  std::vector<std::uint8_t> leaves_;
  std::vector<std::uint8_t> leaves_slot_;
  std::vector<StayReason> stays_;  ///< for gaps outside `leaves_`
  int passes_ = 0;
  int steps_ = 0;  ///< played in all of them
  LatestStarts fetches_;
  LatestStarts stages_;
  std::vector<std::int64_t> need_bytes_;
  std::vector<std::int64_t> need_slot_bytes_;
  std::optional<Played> best_;
};

}  // namespace

std::optional<Played> play_in_passes(const Problem& input, const PlayedStep& step,
                                     const PassOptions& options) {
  return Passes(input, step, options).run();
}

}  // namespace ho::analyzer
