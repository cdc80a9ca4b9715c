#include <schedule.pb.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "proto/files/convert_parts.hpp"
#include "proto/files/schedule_message.hpp"

namespace ho::wire {

namespace {

namespace v1 = hyperoffload::v1;
namespace sch = ho::schedule;

Error broken(std::string reason) { return Error(Errc::kCorrupt, std::move(reason)); }

Result<sch::CacheOp> cache_op_from(const v1::CacheOp& in) {
  if (!v1::CacheOpKind_IsValid(in.kind()) || in.kind() == v1::CACHE_OP_UNSPECIFIED) {
    return broken("a cache op has the unknown kind " + std::to_string(in.kind()));
  }
  sch::CacheOp op;
  op.kind = static_cast<sch::CacheOpKind>(in.kind());
  op.storage = StorageIndex(in.storage());
  op.range_begin_bytes = in.range_begin_bytes();
  op.range_end_bytes = in.range_end_bytes();
  op.device_offset_bytes = in.device_offset_bytes();
  if (in.has_ddr_offset_bytes()) op.ddr_offset_bytes = in.ddr_offset_bytes();
  if (in.has_after_position()) op.after_position = sch::Position(in.after_position());
  if (in.has_before_position()) op.before_position = sch::Position(in.before_position());
  op.before_next_step = in.before_next_step();
  op.after_cache_ops.reserve(static_cast<std::size_t>(in.after_cache_ops_size()));
  for (const v1::CacheOpRef& ref : in.after_cache_ops()) {
    op.after_cache_ops.push_back({sch::CacheOpIndex(ref.op()), ref.previous_step()});
  }
  if (in.copy() >= kCopiesMax) return broken("a cache op names an unknown copy");
  op.copy = static_cast<std::uint8_t>(in.copy());
  op.start_ns = in.start_ns();
  op.end_ns = in.end_ns();
  return op;
}

template <typename Messages>
Result<std::vector<sch::CacheOp>> cache_ops_from(const Messages& messages) {
  std::vector<sch::CacheOp> out;
  out.reserve(static_cast<std::size_t>(messages.size()));
  for (const v1::CacheOp& in : messages) {
    auto op = cache_op_from(in);
    if (!op) return op.error();
    out.push_back(*std::move(op));
  }
  return out;
}

void cache_op_to(const sch::CacheOp& op, v1::CacheOp& out) {
  out.set_kind(static_cast<v1::CacheOpKind>(op.kind));
  out.set_storage(op.storage.value());
  out.set_range_begin_bytes(op.range_begin_bytes);
  out.set_range_end_bytes(op.range_end_bytes);
  out.set_device_offset_bytes(op.device_offset_bytes);
  if (op.ddr_offset_bytes) out.set_ddr_offset_bytes(*op.ddr_offset_bytes);
  if (op.after_position) out.set_after_position(op.after_position->value());
  if (op.before_position) out.set_before_position(op.before_position->value());
  out.set_before_next_step(op.before_next_step);
  for (const sch::CacheOpRef& ref : op.after_cache_ops) {
    v1::CacheOpRef& message = *out.add_after_cache_ops();
    message.set_op(ref.op.value());
    message.set_previous_step(ref.previous_step);
  }
  out.set_copy(op.copy);
  out.set_start_ns(op.start_ns);
  out.set_end_ns(op.end_ns);
}

Result<void> storages_from(const v1::Schedule& in, sch::Schedule& out) {
  out.storages.reserve(static_cast<std::size_t>(in.storages_size()));
  for (const v1::Storage& message : in.storages()) {
    auto storage = from_wire(message);
    if (!storage) return broken("storages: " + storage.error().context());
    out.storages.push_back(*std::move(storage));
  }
  out.homes.resize(out.storages.size());
  for (const v1::HomeSlot& home : in.homes()) {
    if (home.storage() >= out.homes.size()) return broken("homes: storage out of range");
    if (home.copy() >= kCopiesMax) return broken("homes: unknown copy");
    if (home.copy() != 0) out.second_homes.resize(out.storages.size());
    auto& slot = (home.copy() == 0 ? out.homes : out.second_homes)[home.storage()];
    if (slot) return broken("homes: a storage has two home slots of one copy");
    if (!v1::HomeTier_IsValid(home.tier()) || home.tier() == v1::HOME_TIER_UNSPECIFIED) {
      return broken("homes: unknown tier");
    }
    slot = sch::HomeSlot{static_cast<sch::HomeTier>(home.tier()), home.offset_bytes()};
  }
  return {};
}

Result<void> positions_from(const v1::Schedule& in, sch::Schedule& out) {
  out.ops.reserve(static_cast<std::size_t>(in.ops_size()));
  for (const v1::OpInfo& op : in.ops()) {
    out.ops.push_back(sch::OpInfo{.id = op.id(),
                                  .name = op.name(),
                                  .duration_ns = op.duration_ns(),
                                  .phase = op.phase(),
                                  .fixed = op.fixed(),
                                  .recomputable = op.recomputable(),
                                  .after = {op.after().begin(), op.after().end()}});
  }
  out.positions.reserve(static_cast<std::size_t>(in.positions_size()));
  for (const v1::ScheduledOp& message : in.positions()) {
    sch::ScheduledOp& position = out.positions.emplace_back();
    position.op = OpIndex(message.op());
    position.operands.reserve(static_cast<std::size_t>(message.operands_size()));
    for (const v1::Operand& operand : message.operands()) {
      if (!v1::Access_IsValid(operand.access()) || operand.access() == v1::ACCESS_UNSPECIFIED) {
        return broken("positions: unknown access");
      }
      position.operands.push_back(sch::Operand{StorageIndex(operand.storage()),
                                               static_cast<sch::Access>(operand.access()),
                                               operand.device_offset_bytes()});
    }
  }
  return {};
}

sch::Prediction prediction_from(const v1::Prediction& in) {
  sch::Prediction out;
  out.peak_unmanaged_bytes = in.peak_unmanaged_bytes();
  out.peak_planned_bytes = in.peak_planned_bytes();
  out.live_bound_bytes = in.live_bound_bytes();
  out.compute_ns = in.compute_ns();
  out.step_ns = in.step_ns();
  out.stall_ns = in.stall_ns();
  out.lower_bound_ns = in.lower_bound_ns();
  out.prefetch_bytes = in.prefetch_bytes();
  out.store_bytes = in.store_bytes();
  out.stage_in_bytes = in.stage_in_bytes();
  out.stage_out_bytes = in.stage_out_bytes();
  out.recomputed_ops = in.recomputed_ops();
  out.moved_ops = in.moved_ops();
  out.program_order_step_ns = in.program_order_step_ns();
  out.first_step_ns = in.first_step_ns();
  out.prologue_ns = in.prologue_ns();
  out.epilogue_ns = in.epilogue_ns();
  out.margin_bandwidth = in.margin_bandwidth();
  out.margin_op_time = in.margin_op_time();
  for (const auto& tier : in.tiers()) out.tiers.push_back({tier.name(), tier.peak_bytes()});
  for (const auto& load : in.channels()) out.channels.push_back({load.name(), load.busy_ns()});
  out.op_start_ns.assign(in.op_start_ns().begin(), in.op_start_ns().end());
  return out;
}

void prediction_to(const sch::Prediction& in, v1::Prediction& out) {
  out.set_peak_unmanaged_bytes(in.peak_unmanaged_bytes);
  out.set_peak_planned_bytes(in.peak_planned_bytes);
  out.set_live_bound_bytes(in.live_bound_bytes);
  out.set_compute_ns(in.compute_ns);
  out.set_step_ns(in.step_ns);
  out.set_stall_ns(in.stall_ns);
  out.set_lower_bound_ns(in.lower_bound_ns);
  out.set_prefetch_bytes(in.prefetch_bytes);
  out.set_store_bytes(in.store_bytes);
  out.set_stage_in_bytes(in.stage_in_bytes);
  out.set_stage_out_bytes(in.stage_out_bytes);
  out.set_recomputed_ops(in.recomputed_ops);
  out.set_moved_ops(in.moved_ops);
  out.set_program_order_step_ns(in.program_order_step_ns);
  out.set_first_step_ns(in.first_step_ns);
  out.set_prologue_ns(in.prologue_ns);
  out.set_epilogue_ns(in.epilogue_ns);
  out.set_margin_bandwidth(in.margin_bandwidth);
  out.set_margin_op_time(in.margin_op_time);
  for (const sch::TierPeak& tier : in.tiers) {
    v1::TierPeak& message = *out.add_tiers();
    message.set_name(tier.name);
    message.set_peak_bytes(tier.peak_bytes);
  }
  for (const sch::ChannelLoad& load : in.channels) {
    v1::ChannelLoad& message = *out.add_channels();
    message.set_name(load.name);
    message.set_busy_ns(load.busy_ns);
  }
  out.mutable_op_start_ns()->Add(in.op_start_ns.begin(), in.op_start_ns.end());
}

void storages_to(const sch::Schedule& in, v1::Schedule& out) {
  HO_CHECK(in.homes.size() == in.storages.size());
  for (const Storage& storage : in.storages) to_wire(storage, *out.add_storages());
  const auto add = [&](std::size_t storage, const std::optional<sch::HomeSlot>& slot,
                       std::uint32_t copy) {
    if (!slot) return;
    v1::HomeSlot& home = *out.add_homes();
    home.set_storage(static_cast<std::uint32_t>(storage));
    home.set_tier(static_cast<v1::HomeTier>(slot->tier));
    home.set_offset_bytes(slot->offset_bytes);
    home.set_copy(copy);
  };
  for (std::size_t s = 0; s < in.homes.size(); ++s) add(s, in.homes[s], 0);
  for (std::size_t s = 0; s < in.second_homes.size(); ++s) add(s, in.second_homes[s], 1);
}

void positions_to(const sch::Schedule& in, v1::Schedule& out) {
  for (const sch::OpInfo& op : in.ops) {
    v1::OpInfo& message = *out.add_ops();
    message.set_id(op.id);
    message.set_name(op.name);
    message.set_duration_ns(op.duration_ns);
    message.set_phase(op.phase);
    message.set_fixed(op.fixed);
    message.set_recomputable(op.recomputable);
    for (const OpIndex before : op.after) message.add_after(before.value());
  }
  for (const sch::ScheduledOp& position : in.positions) {
    v1::ScheduledOp& message = *out.add_positions();
    message.set_op(position.op.value());
    for (const sch::Operand& operand : position.operands) {
      v1::Operand& part = *message.add_operands();
      part.set_storage(operand.storage.value());
      part.set_access(static_cast<v1::Access>(operand.access));
      part.set_device_offset_bytes(operand.device_offset_bytes);
    }
  }
}

}  // namespace

Result<sch::Schedule> from_wire(const v1::Schedule& in) {
  sch::Schedule out;
  out.format_version = in.version();
  out.graph_name = in.graph_name();
  out.graph_fingerprint = in.graph_fingerprint();
  out.hardware = from_wire(in.hardware());
  out.device_budget_bytes = in.device_budget_bytes();
  out.arena_bytes = in.arena_bytes();
  out.align_bytes = in.align_bytes();
  out.local_ddr_bytes = in.local_ddr_bytes();
  out.remote_ddr_bytes = in.remote_ddr_bytes();
  out.flash_bytes = in.flash_bytes();
  if (auto read = storages_from(in, out); !read) return read.error();
  if (auto read = positions_from(in, out); !read) return read.error();
  auto cache_ops = cache_ops_from(in.cache_ops());
  if (!cache_ops) return cache_ops.error();
  auto prologue = cache_ops_from(in.prologue());
  if (!prologue) return prologue.error();
  auto epilogue = cache_ops_from(in.epilogue());
  if (!epilogue) return epilogue.error();
  out.cache_ops = *std::move(cache_ops);
  out.prologue = *std::move(prologue);
  out.epilogue = *std::move(epilogue);
  out.prediction = prediction_from(in.prediction());
  out.explanations.reserve(static_cast<std::size_t>(in.explanations_size()));
  for (const v1::Explanation& message : in.explanations()) {
    out.explanations.push_back({StorageIndex(message.storage()),
                                message.choice(),
                                message.reason(),
                                {message.considered().begin(), message.considered().end()}});
  }
  return out;
}

void to_wire(const sch::Schedule& schedule, v1::Schedule& out) {
  out.set_version(schedule.format_version);
  out.set_graph_name(schedule.graph_name);
  out.set_graph_fingerprint(schedule.graph_fingerprint);
  to_wire(schedule.hardware, *out.mutable_hardware());
  out.set_device_budget_bytes(schedule.device_budget_bytes);
  out.set_arena_bytes(schedule.arena_bytes);
  out.set_align_bytes(schedule.align_bytes);
  out.set_local_ddr_bytes(schedule.local_ddr_bytes);
  out.set_remote_ddr_bytes(schedule.remote_ddr_bytes);
  out.set_flash_bytes(schedule.flash_bytes);
  storages_to(schedule, out);
  positions_to(schedule, out);
  for (const sch::CacheOp& op : schedule.cache_ops) cache_op_to(op, *out.add_cache_ops());
  for (const sch::CacheOp& op : schedule.prologue) cache_op_to(op, *out.add_prologue());
  for (const sch::CacheOp& op : schedule.epilogue) cache_op_to(op, *out.add_epilogue());
  prediction_to(schedule.prediction, *out.mutable_prediction());
  for (const sch::Explanation& explanation : schedule.explanations) {
    v1::Explanation& message = *out.add_explanations();
    message.set_storage(explanation.storage.value());
    message.set_choice(explanation.choice);
    message.set_reason(explanation.reason);
    for (const std::string& text : explanation.considered) message.add_considered(text);
  }
}

}  // namespace ho::wire
