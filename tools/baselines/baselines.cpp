#include "tools/baselines/baselines.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/problem/planned_step.hpp"
#include "tools/baselines/offloader.hpp"

namespace ho::analyzer {

namespace detail {

using schedule::Access;
using schedule::Schedule;

namespace {

/// The read channel of each storage's home: from the schedule, else local DDR while it has room,
/// then remote DDR, then flash.
Result<std::vector<std::uint8_t>> home_lanes(const Schedule& schedule, const Hardware& hardware,
                                             const ChannelLinks& links) {
  if (!hardware.local_ddr && !hardware.remote_ddr) {
    return Error{Errc::kInvalidArgument, "the hardware has no tier below the device"};
  }
  std::vector<std::uint8_t> lanes(schedule.storages.size(), 0);
  std::uint64_t used[] = {schedule.local_ddr_bytes, schedule.remote_ddr_bytes};
  const std::optional<TierSpec>* const tiers[] = {&hardware.local_ddr, &hardware.remote_ddr};
  for (std::size_t s = 0; s < lanes.size(); ++s) {
    if (const auto& home = schedule.homes[s]) {
      auto channel = links.channel(home->tier, schedule::CacheOpKind::kPrefetch);
      if (!channel) return channel.error();
      lanes[s] = static_cast<std::uint8_t>(*channel);
      continue;
    }
    const std::uint64_t bytes = schedule.storages[s].bytes;
    const auto fits = [&](std::size_t tier) {
      const auto& spec = *tiers[tier];
      return spec && used[tier] <= spec->capacity_bytes &&
             bytes <= spec->capacity_bytes - used[tier];
    };
    // Without flash the last tier takes the rest: the capacity does not limit a baseline.
    const unsigned last = hardware.remote_ddr ? 1 : 0;
    const unsigned tier = fits(0) ? 0 : fits(1) ? 1 : hardware.flash ? 2 : last;
    if (tier < 2) used[tier] += bytes;
    lanes[s] = static_cast<std::uint8_t>(2 * tier);
  }
  return lanes;
}

/// The schedule's ops as in the graph: each once, in program order, without cache ops.
Schedule in_program_order(const Schedule& schedule) {
  Schedule out;
  out.device_budget_bytes = schedule.device_budget_bytes;
  out.storages = schedule.storages;
  out.homes = schedule.homes;
  out.ops = schedule.ops;
  out.hardware = schedule.hardware;
  out.local_ddr_bytes = schedule.local_ddr_bytes;
  out.remote_ddr_bytes = schedule.remote_ddr_bytes;
  out.flash_bytes = schedule.flash_bytes;
  for (const std::uint32_t p : first_positions(schedule)) {
    out.positions.push_back(schedule.positions[p]);
  }
  return out;
}

}  // namespace

Offloader::Offloader(const Schedule& schedule, const ChannelLinks& links,
                     std::vector<std::uint8_t> lane, const Migrations* migrations)
    : schedule_(schedule),
      links_(links),
      last_access_(last_access(schedule)),
      lane_(std::move(lane)),
      migrations_(migrations),
      values_(schedule.storages.size()),
      budget_bytes_(schedule.device_budget_bytes) {
  room_.push({0, budget_bytes_});
  room_bytes_ = budget_bytes_;
}

void Offloader::unlink(std::uint32_t s) {
  Value& value = values_[s];
  (value.older == kNone ? oldest_ : values_[value.older].newer) = value.newer;
  (value.newer == kNone ? newest_ : values_[value.newer].older) = value.older;
  value.older = value.newer = kNone;
}

void Offloader::touch(std::uint32_t s) {
  if (newest_ == s) return;
  unlink(s);
  values_[s].older = newest_;
  (newest_ == kNone ? oldest_ : values_[newest_].newer) = s;
  newest_ = s;
}

/// Books the next free time of a channel for these bytes. @return the end of the transfer.
std::uint64_t Offloader::book(unsigned channel, std::uint64_t bytes, std::uint64_t earliest_ns) {
  const unsigned direction = channel % 2;
  std::uint64_t start_ns = std::max(earliest_ns, channel_free_ns_[channel]);
  auto length_ns = static_cast<std::uint64_t>(transfer_ns(*links_.links[channel], bytes));
  if (const auto& port = links_.ports[direction]; port && channel < kPortChannelCount) {
    // The port is a second server for both channels: together they never exceed its rate.
    start_ns = std::max(start_ns, port_free_ns_[direction]);
    const auto port_ns = static_cast<std::uint64_t>(transfer_ns({port->bytes_per_s, 0}, bytes));
    length_ns = std::max(length_ns, links_.links[channel]->latency_ns + port_ns);
    port_free_ns_[direction] = start_ns + port_ns;
  }
  channel_free_ns_[channel] = start_ns + length_ns;
  totals_.busy_ns[channel] += length_ns;
  return start_ns + length_ns;
}

std::uint64_t Offloader::transfer(std::uint32_t s, bool toward_device, std::uint64_t earliest_ns) {
  const unsigned direction = toward_device ? 0 : 1;
  const std::uint64_t bytes = storage(s).bytes;
  (toward_device ? totals_.out.prefetch_bytes : totals_.out.store_bytes) += bytes;
  const std::uint64_t done_ns = book(lane_[s] + direction, bytes, earliest_ns);
  if (lane_[s] != kFlashLane || !links_.links[direction]) return done_ns;
  // Through local DDR, piece by piece: both links are busy, at best at the same time.
  (toward_device ? totals_.out.stage_in_bytes : totals_.out.stage_out_bytes) += bytes;
  return std::max(done_ns, book(direction, bytes, earliest_ns));
}

void Offloader::give_room(std::uint64_t bytes, std::uint64_t from_ns) {
  room_.push({from_ns, bytes});
  room_bytes_ += bytes;
}

/// Takes the bytes that are free earliest. @return the time when all of them are free.
std::uint64_t Offloader::take_room(std::uint64_t bytes) {
  HO_CHECK(bytes <= room_bytes_);
  room_bytes_ -= bytes;
  std::uint64_t from_ns = 0;
  while (bytes > 0) {
    Room room = room_.top();
    room_.pop();
    from_ns = std::max(from_ns, room.from_ns);
    const std::uint64_t taken = std::min(bytes, room.bytes);
    bytes -= taken;
    room.bytes -= taken;
    if (room.bytes > 0) room_.push(room);
  }
  totals_.out.peak_bytes = std::max(totals_.out.peak_bytes, budget_bytes_ - room_bytes_);
  return from_ns;
}

/// Removes a value from the device; writes it back first if the home copy is outdated.
void Offloader::drop(std::uint32_t s, std::uint64_t now_ns) {
  Value& value = values_[s];
  std::uint64_t free_ns = std::max(now_ns, value.ready_ns);
  if (value.dirty) {
    free_ns = transfer(s, false, free_ns);
    value.home_ready_ns = free_ns;
    value.dirty = false;
  }
  value.resident = false;
  if (!std::exchange(value.stays, false)) unlink(s);
  give_room(storage(s).bytes, free_ns);
}

bool Offloader::evict_one(std::uint64_t now_ns) {
  for (std::uint32_t s = oldest_; s != kNone; s = values_[s].newer) {
    if (values_[s].kept_for == stamp_) continue;
    drop(s, now_ns);
    return true;
  }
  return false;
}

/// Makes an operand resident, or starts to. @return false if there is no room.
bool Offloader::bring(const schedule::Operand& operand, std::uint64_t now_ns, bool may_evict) {
  const std::uint32_t s = operand.storage.value();
  Value& value = values_[s];
  if (value.resident) return true;
  while (room_bytes_ < storage(s).bytes) {
    if (!may_evict || !evict_one(now_ns)) return false;
  }
  std::uint64_t ready_ns = std::max(now_ns, take_room(storage(s).bytes));
  if (operand.access != Access::kWrite && value.exists) {
    ready_ns = transfer(s, true, std::max(ready_ns, value.home_ready_ns));
  }
  value.resident = true;
  value.exists = true;
  value.ready_ns = ready_ns;
  value.older = newest_;
  (newest_ == kNone ? oldest_ : values_[newest_].newer) = s;
  newest_ = s;
  return true;
}

/// Requests the operands of positions [begin, end) in order, while there is room. The inputs of a
/// step do not exist before it begins.
void Offloader::look_ahead(std::uint32_t begin, std::uint32_t end, bool next_step, bool may_evict) {
  for (std::uint32_t p = begin; p < end; ++p) {
    for (const auto& operand : schedule_.positions[p].operands) {
      if (next_step && !storage(operand.storage.value()).persistent) continue;
      if (!bring(operand, op_start_ns_, may_evict)) return;
    }
  }
}

void Offloader::begin_step() {
  totals_ = StepTotals{};
  totals_.start_ns = clock_ns_;
  totals_.out.op_stall_ns.resize(schedule_.positions.size());
  for (std::uint32_t s = 0; s < values_.size(); ++s) {
    Value& value = values_[s];
    if (storage(s).persistent) {
      value.exists = true;
    } else {
      HO_CHECK(!value.resident);
      value.exists = storage(s).kind == StorageKind::kInput;
      value.home_ready_ns = clock_ns_;
    }
  }
}

/// Runs an op whose operands were requested.
void Offloader::run_op(std::uint32_t position) {
  const auto& at = schedule_.positions[position];
  std::uint64_t start_ns = clock_ns_;
  for (const auto& operand : at.operands) {
    start_ns = std::max(start_ns, values_[operand.storage.value()].ready_ns);
  }
  totals_.out.op_stall_ns[position] = start_ns - clock_ns_;
  totals_.out.stall_ns += start_ns - clock_ns_;
  totals_.out.memory.push_back({start_ns - totals_.start_ns, budget_bytes_ - room_bytes_});
  op_start_ns_ = start_ns;
  clock_ns_ = start_ns + schedule_.ops[at.op.value()].duration_ns;
  for (const auto& operand : at.operands) {
    const std::uint32_t s = operand.storage.value();
    Value& value = values_[s];
    ++value.uses;
    if (operand.access != Access::kRead) value.dirty = true;
    if (value.stays) continue;
    if (storage(s).pinned) {
      unlink(s);
      value.stays = true;
    } else {
      touch(s);
    }
  }
}

/// Frees the storages that die with the op at `position`.
void Offloader::free_dead(std::uint32_t position) {
  for (const auto& operand : schedule_.positions[position].operands) {
    const std::uint32_t s = operand.storage.value();
    if (storage(s).persistent || last_access_[s] != position) continue;
    values_[s].dirty = false;
    values_[s].exists = false;
    drop(s, clock_ns_);
  }
}

void Offloader::step_on_demand() {
  const auto positions = static_cast<std::uint32_t>(schedule_.positions.size());
  for (std::uint32_t p = 0; p < positions; ++p) {
    ++stamp_;
    keep(p);
    for (const auto& operand : schedule_.positions[p].operands) {
      HO_CHECK(bring(operand, clock_ns_, true));
    }
    run_op(p);
    const std::uint32_t next = p + 1 == positions ? 0 : p + 1;
    ++stamp_;
    keep(p);
    keep(next);
    look_ahead(next, next + 1, next == 0, true);
    free_dead(p);
  }
}

/// The first position of each layer: as many ops as have operands of at most half the budget.
std::vector<std::uint32_t> Offloader::cut_into_layers() const {
  const std::vector<std::uint64_t> pinned_bytes = pinned_at();
  const std::uint64_t most_bytes = *std::max_element(pinned_bytes.begin(), pinned_bytes.end());
  const std::uint64_t half_bytes = (budget_bytes_ - most_bytes) / 2;
  std::vector<std::uint32_t> first{0};
  std::vector<std::uint32_t> in_layer(schedule_.storages.size(), kNone);
  std::uint64_t layer_bytes = 0;
  for (std::uint32_t p = 0; p < schedule_.positions.size(); ++p) {
    std::uint64_t added = 0;
    std::uint64_t own = 0;
    for (const auto& operand : schedule_.positions[p].operands) {
      const std::uint32_t s = operand.storage.value();
      if (storage(s).pinned) continue;
      own += storage(s).bytes;
      if (in_layer[s] != first.back()) added += storage(s).bytes;
    }
    if (p > 0 && layer_bytes + added > half_bytes) {
      first.push_back(p);
      layer_bytes = 0;
      added = own;
    }
    layer_bytes += added;
    for (const auto& operand : schedule_.positions[p].operands) {
      in_layer[operand.storage.value()] = first.back();
    }
  }
  first.push_back(static_cast<std::uint32_t>(schedule_.positions.size()));
  return first;
}

void Offloader::drop_behind(std::uint32_t next_begin, std::uint32_t next_end) {
  ++stamp_;
  for (std::uint32_t p = next_begin; p < next_end; ++p) keep(p);
  while (evict_one(clock_ns_)) {
  }
}

void Offloader::step_by_layers(const std::vector<std::uint32_t>& first_of_layer) {
  const std::size_t layers = first_of_layer.size() - 1;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::uint32_t begin = first_of_layer[layer];
    const std::uint32_t end = first_of_layer[layer + 1];
    const std::size_t next = layer + 1 == layers ? 0 : layer + 1;
    op_start_ns_ = clock_ns_;
    look_ahead(begin, end, false, false);
    for (std::uint32_t p = begin; p < end; ++p) {
      // The layer exceeds the room that the one before it left: its rest is fetched on demand.
      ++stamp_;
      keep(p);
      for (const auto& operand : schedule_.positions[p].operands) {
        HO_CHECK(bring(operand, clock_ns_, true));
      }
      run_op(p);
      if (p == begin) {
        look_ahead(first_of_layer[next], first_of_layer[next + 1], next == 0, false);
      }
      free_dead(p);
    }
    drop_behind(first_of_layer[next], first_of_layer[next + 1]);
  }
}

/// By position, and 0 beyond the last, the bytes of pinned storages that may not leave there.
std::vector<std::uint64_t> Offloader::pinned_at() const {
  const std::size_t positions = schedule_.positions.size();
  std::vector<std::size_t> first(schedule_.storages.size(), positions);
  for (std::size_t p = positions; p-- > 0;) {
    for (const auto& operand : schedule_.positions[p].operands) first[operand.storage.value()] = p;
  }
  std::vector<std::uint64_t> bytes(positions + 1, 0);  // first what is added at each, then the sum
  for (std::uint32_t s = 0; s < first.size(); ++s) {
    const Storage& each = storage(s);
    const bool used = first[s] < positions;
    if (!each.pinned || (!each.persistent && !used)) continue;
    bytes[each.persistent ? 0 : first[s]] += each.bytes;
    bytes[each.persistent ? positions : last_access_[s] + 1] -= each.bytes;
  }
  std::partial_sum(bytes.begin(), bytes.end(), bytes.begin());
  return bytes;
}

Result<void> Offloader::check_fits() const {
  const std::vector<std::uint64_t> pinned_bytes = pinned_at();
  for (std::size_t p = 0; p < schedule_.positions.size(); ++p) {
    const auto& at = schedule_.positions[p];
    std::uint64_t bytes = pinned_bytes[p];
    for (const auto& operand : at.operands) {
      const Storage& each = storage(operand.storage.value());
      if (!each.pinned) bytes += each.bytes;
    }
    if (bytes > budget_bytes_) {
      return Error{Errc::kExhausted, "op " + schedule_.ops[at.op.value()].name + " needs " +
                                         std::to_string(bytes) + " bytes; the budget is " +
                                         std::to_string(budget_bytes_)};
    }
  }
  return {};
}

Result<Simulation> Offloader::run(Baseline baseline) {
  if (auto fits = check_fits(); !fits) return fits.error();
  std::vector<std::uint32_t> layers;
  if (baseline == Baseline::kLayerWindow) layers = cut_into_layers();
  std::optional<StepTotals> best;
  std::uint64_t before_ns = 0;
  std::uint64_t peak_bytes = 0;
  for (std::uint32_t k = 0; k < kStepsMax; ++k) {
    begin_step();
    switch (baseline) {
      case Baseline::kLayerWindow: step_by_layers(layers); break;
      case Baseline::kG10Greedy: step_by_migrations(); break;
      case Baseline::kOnDemandLru: step_on_demand(); break;
    }
    totals_.end_ns = clock_ns_;
    peak_bytes = std::max(peak_bytes, totals_.out.peak_bytes);
    const std::uint64_t length_ns = totals_.end_ns - totals_.start_ns;
    const bool steady = k >= 2 && length_ns == before_ns;
    before_ns = length_ns;
    if (steady || (k >= 4 && (!best || length_ns < best->end_ns - best->start_ns))) best = totals_;
    if (steady) break;
  }
  HO_CHECK(best.has_value());
  Simulation out = std::move(best->out);
  out.step_ns = best->end_ns - best->start_ns;
  out.peak_bytes = peak_bytes;
  for (unsigned channel = 0; channel < kChannelCount; ++channel) {
    if (!links_.links[channel]) continue;
    out.channels.push_back({std::string(kChannelNames[channel]), best->busy_ns[channel]});
  }
  out.tiers = tier_peaks(schedule_, peak_bytes);
  return out;
}

}  // namespace detail

Result<Simulation> simulate_baseline(const schedule::Schedule& schedule, const Hardware& hardware,
                                     Baseline baseline) {
  using namespace detail;
  if (auto fine = check_indices(schedule); !fine) return fine.error();
  if (auto fine = check_transfers(schedule, hardware); !fine) return fine.error();
  auto links = ChannelLinks::create(hardware);
  if (!links) return links.error();
  auto lanes = home_lanes(schedule, hardware, *links);
  if (!lanes) return lanes.error();
  const schedule::Schedule plain = in_program_order(schedule);
  if (baseline != Baseline::kG10Greedy) {
    return Offloader(plain, *links, *std::move(lanes), nullptr).run(baseline);
  }
  std::optional<Simulation> best;
  for (const GreedyTier tier : {GreedyTier::kDdrFirst, GreedyTier::kFlashFirst}) {
    if (tier == GreedyTier::kFlashFirst && !hardware.flash) continue;
    for (const GreedyLink link : {GreedyLink::kBooked, GreedyLink::kOverbooked}) {
      const Migrations migrations = plan_migrations(plain, *links, hardware, tier, link);
      auto next = Offloader(plain, *links, *lanes, &migrations).run(baseline);
      if (!next) return next;
      if (!best || next->step_ns < best->step_ns) best = *std::move(next);
    }
  }
  return *std::move(best);
}

}  // namespace ho::analyzer
