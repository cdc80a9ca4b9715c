#include "client/transfer/mover.hpp"

#include <algorithm>
#include <utility>

#include "client/transfer/piece_id.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

/// An operation on which bytes move has so many times the time that a silent one has.
constexpr int kSlowTimes = 20;

static_assert(Mover::kTransfersMax <= (1U << kPieceSlotBits));

struct LessUrgent {
  template <typename Entry>
  bool operator()(const Entry& a, const Entry& b) const {
    if (a.urgency != b.urgency) return a.urgency > b.urgency;
    return a.order > b.order;
  }
};

}  // namespace

Mover::Mover(std::vector<DriverPort> drivers, const Clock& clock) : clock_(clock) {
  HO_CHECK(!drivers.empty() && drivers.size() <= kDriversMax);
  for (DriverPort& port : drivers) {
    HO_CHECK(port.transport != nullptr && port.pieces_max > 0 && port.small_pieces_max > 0);
    const transport::Caps& caps = port.transport->caps();
    port.piece_bytes = std::min(port.piece_bytes, caps.op_bytes_max);
    HO_CHECK(port.piece_bytes > 0);
    Driver driver;
    driver.port = port;
    driver.small.pieces_max = port.small_pieces_max;
    // What the transport takes is for both; one that takes very little is shared as it comes.
    const bool room = caps.depth_ops_max > port.small_pieces_max;
    driver.large.pieces_max =
        std::min(port.pieces_max, room ? caps.depth_ops_max - port.small_pieces_max : 1);
    for (Queue* const queue : {&driver.small, &driver.large}) {
      queue->reserve();
      if (caps.has_classes) queue->later_pieces_max = std::max(1U, queue->pieces_max / 2);
    }
    drivers_.push_back(std::move(driver));
  }
  device_.large.pieces_max = DeviceCarrier::kPiecesMax;
  device_.large.reserve();
  active_.resize(kTransfersMax);
  done_.resize(kTransfersMax);
  parked_.reserve(kTransfersMax);
  after_old_puts_.reserve(kTransfersMax);
  may_be_late_.reserve(kTransfersMax);
  free_.resize(kTransfersMax);
  for (std::uint32_t i = 0; i < kTransfersMax; ++i) free_[i] = kTransfersMax - 1 - i;
}

void Mover::set_stager(const StagePort& port) {
  HO_CHECK(stager_ == nullptr && port.stager != nullptr && port.pieces_max > 0);
  stager_ = port.stager;
  stage_.port.piece_bytes = std::min(port.piece_bytes, stager_->op_bytes_max());
  stage_.port.op_deadline = port.op_deadline;
  stage_.large.pieces_max = port.pieces_max;
  stage_.large.reserve();
}

void Mover::set_link(double bytes_per_s) { paces_ = {Pace(bytes_per_s), Pace(bytes_per_s)}; }

Result<LocalHandles> Mover::register_memory(std::span<std::byte> memory) {
  LocalHandles handles;
  for (std::size_t i = 0; i < drivers_.size(); ++i) {
    auto handle = drivers_[i].port.transport->register_memory(memory);
    if (!handle) {
      while (i-- > 0) drivers_[i].port.transport->unregister_memory(handles[i]);
      return handle.error();
    }
    handles[i] = *handle;
  }
  return handles;
}

void Mover::unregister_memory(const LocalHandles& handles) {
  for (std::size_t i = 0; i < drivers_.size(); ++i) {
    drivers_[i].port.transport->unregister_memory(handles[i]);
  }
}

Result<void> Mover::start(const Transfer& transfer) {
  HO_CHECK(transfer.arena != nullptr && transfer.bytes > 0);
  HO_CHECK(!transfer.flash || stager_ != nullptr);
  HO_CHECK(transfer.arena_offset_bytes <= transfer.arena->bytes() &&
           transfer.bytes <= transfer.arena->bytes() - transfer.arena_offset_bytes);
  if (full()) return Error(Errc::kBusy, "too many transfers in flight");
  HO_CHECK(free_count_ > 0);
  const std::uint32_t slot = free_[--free_count_];
  in_flight_ += 1;
  active_[slot] = Active{};
  active_[slot].transfer = transfer;
  active_[slot].resumes = resumes_;
  if (transfer.late_after > Duration{0}) {
    HO_CHECK(!transfer.flash && !nodes_.empty());
    may_be_late_.push_back(slot);
  }
  if (transfer.traffic == transport::TrafficClass::kBulk) {
    active_[slot].transfer.urgency = Urgency::kScheduled + progress_ + Urgency::kBulkPositions;
  }
  enqueue(slot, next_order_++);
  return {};
}

void Mover::drop(std::uint32_t owner) { end_waiting(owner, Ended::kDropped); }

void Mover::cancel(std::uint32_t owner) { end_waiting(owner, Ended::kCanceled); }

void Mover::end_waiting(std::uint32_t owner, Ended how) {
  end_waiting(stage_.large, owner, how);
  end_waiting(device_.large, owner, how);
  end_parked(owner, how);
  std::erase_if(after_old_puts_, [&](std::uint32_t slot) { return ends(slot, owner, how); });
  for (Driver& driver : drivers_) {
    end_waiting(driver.small, owner, how);
    end_waiting(driver.large, owner, how);
  }
}

/// Ends a transfer that waits to be sent, if it is the owner's. @return whether it was.
bool Mover::ends(std::uint32_t slot, std::uint32_t owner, Ended how) {
  Active& active = active_[slot];
  HO_CHECK(active.queued && active.submitted_bytes < active.transfer.bytes);
  if (active.transfer.owner != owner) return false;
  const bool untouched = active.submitted_bytes == 0;
  if (how == Ended::kDropped && !(active.transfer.droppable && untouched)) return false;
  active.queued = false;
  active.dropped = untouched;
  if (untouched) active.sent_ticks = 0;
  if (how == Ended::kCanceled && active.code == Errc::kOk) active.code = Errc::kCanceled;
  finish_if_done(slot);
  return true;
}

/// A transfer with bytes still to be sent stands in a queue, unless it waits for its node.
void Mover::end_waiting(Queue& queue, std::uint32_t owner, Ended how) {
  for (auto& way : queue.waiting) {
    for (Heap& heap : way) {
      std::erase_if(heap, [&](const HeapEntry& entry) { return ends(entry.slot, owner, how); });
      std::make_heap(heap.begin(), heap.end(), LessUrgent{});
    }
  }
}

void Mover::enqueue(std::uint32_t slot, std::uint64_t order) {
  Active& active = active_[slot];
  const std::uint64_t at = active.transfer.arena_offset_bytes + active.submitted_bytes;
  Driver& driver = carrier(active.transfer, active.transfer.arena->extent_at(at));
  Heap& heap = driver.queue_of(active.transfer).heap_of(active.transfer);
  HO_CHECK(heap.size() < kTransfersMax);
  heap.push_back({active.transfer.urgency, order, slot});
  std::push_heap(heap.begin(), heap.end(), LessUrgent{});
  active.queued = true;
}

Mover::Driver& Mover::carrier(const Transfer& transfer, const ArenaExtent& extent) {
  if (transfer.flash) return stage_;
  return transfer.streams != nullptr ? device_ : drivers_[extent.driver.value()];
}

std::size_t Mover::pump(std::uint64_t now_ticks) {
  next_due_.reset();
  std::size_t submitted = pump(stage_, stage_.large, now_ticks);
  submitted += pump(device_, device_.large, now_ticks);
  for (Driver& driver : drivers_) {
    submitted += pump(driver, driver.small, now_ticks);
    submitted += pump(driver, driver.large, now_ticks);
  }
  rest_paces();
  return submitted;
}

void Mover::rest_paces() {
  for (std::size_t way = 0; way < paces_.size(); ++way) {
    const auto waits = [way](const Driver& driver) {
      return driver.small.waits(way) || driver.large.waits(way);
    };
    const bool none = !waits(device_) && std::none_of(drivers_.begin(), drivers_.end(), waits);
    if (paces_[way] && none) paces_[way]->rest();
  }
}

std::size_t Mover::pump(Driver& driver, Queue& queue, std::uint64_t now_ticks) {
  std::size_t submitted = 0;
  while (queue.pieces < queue.pieces_max) {
    Heap* const heap = next_heap(driver, queue, now_ticks);
    if (heap == nullptr || !submit_next(driver, queue, *heap, now_ticks)) break;
    submitted += 1;
  }
  return submitted;
}

/// The heap with the most urgent transfer that the link lets go now. nullptr: there is none.
Mover::Heap* Mover::next_heap(const Driver& driver, Queue& queue, std::uint64_t now_ticks) {
  Heap* next = nullptr;
  for (auto& way : queue.waiting) {
    for (Heap& heap : way) {
      const bool later = &heap == &way[1];
      if (heap.empty() || (later && !queue.takes_later())) continue;
      if (!may_go(driver, active_[heap.front().slot], now_ticks)) continue;
      if (next == nullptr || LessUrgent{}(next->front(), heap.front())) next = &heap;
    }
  }
  return next;
}

/// Whether the link's pace lets the transfer's next piece go; notes when it will otherwise. A node
/// knows nothing of an accelerator's order: what it stages waits here until copies have ended.
bool Mover::may_go(const Driver& driver, Active& active, std::uint64_t now_ticks) {
  const Transfer& transfer = active.transfer;
  if (is_held(active)) return true;  // to be parked
  const bool stages = transfer.flash && transfer.streams != nullptr;
  if (stages && active.code == Errc::kOk && !transfer.streams->ended(transfer.after)) return false;
  const bool copies = !transfer.flash && transfer.streams != nullptr && active.code == Errc::kOk;
  if (copies && !devices_.has_room(transfer, next_extent(active))) return false;
  Pace* const pace = pace_of(active.transfer);
  if (pace == nullptr || active.code != Errc::kOk) return true;
  if (active.sent_ticks == 0) active.sent_ticks = now_ticks;  // its time on the link begins
  const TimePoint now = clock_.now();
  const TimePoint due = pace->due(next_piece(driver, active).bytes, now);
  if (due <= now) return true;
  next_due_ = std::min(next_due_.value_or(due), due);
  return false;
}

Mover::Piece Mover::next_piece(const Driver& driver, const Active& active) {
  const Transfer& transfer = active.transfer;
  const std::uint64_t at = transfer.arena_offset_bytes + active.submitted_bytes;
  Piece piece;
  piece.extent = &next_extent(active);
  piece.in_extent_bytes = std::min(transfer.bytes - active.submitted_bytes,
                                   piece.extent->begin_bytes + piece.extent->length_bytes - at);
  const bool copies = !transfer.flash && transfer.streams != nullptr;
  const std::uint64_t limit =
      copies ? DeviceCarrier::piece_bytes(*piece.extent) : driver.port.piece_bytes;
  piece.bytes = std::min(piece.in_extent_bytes, limit);
  const bool plain = !transfer.flash && transfer.streams == nullptr;
  if (plain && Queue::is_later(transfer) && driver.port.transport->caps().has_classes) {
    piece.bytes = std::min(piece.bytes, kLaterPieceBytes);
  }
  const Pace* const pace = pace_of(transfer);
  if (pace != nullptr) piece.bytes = std::min(piece.bytes, pace->piece_bytes());
  return piece;
}

/// Takes one step with the heap's most urgent transfer. @return false: the driver is full.
bool Mover::submit_next(Driver& driver, Queue& queue, Heap& heap, std::uint64_t now_ticks) {
  const HeapEntry entry = heap.front();
  Active& active = active_[entry.slot];
  const auto leave_heap = [&] {
    std::pop_heap(heap.begin(), heap.end(), LessUrgent{});
    heap.pop_back();
    active.queued = false;
  };
  if (active.code != Errc::kOk) {
    leave_heap();
    finish_if_done(entry.slot);
    return true;
  }
  if (is_held(active)) {
    leave_heap();
    const NodeIndex node = next_extent(active).node;
    if (!active.transfer.yields) {
      park(entry.slot, node);
    } else {
      yield(entry.slot, node);
      finish_if_done(entry.slot);
    }
    return true;
  }
  if (late_already(active)) {
    leave_heap();
    end_late(entry.slot);
    return true;
  }
  if (old_puts_at(active)) {
    leave_heap();
    active.queued = true;
    after_old_puts_.push_back(entry.slot);
    return true;
  }
  const Piece piece = next_piece(driver, active);
  const ArenaExtent& extent = *piece.extent;
  const OpId op = piece_id(entry.slot, extent.node, next_op_++);
  const auto submit = [&] {
    if (active.transfer.flash) return submit_stage(active, extent, piece.bytes, op);
    if (active.transfer.streams != nullptr) return submit_copy(active, extent, piece.bytes, op);
    const std::uint64_t within =
        active.transfer.arena_offset_bytes + active.submitted_bytes - extent.begin_bytes;
    return submit_piece({op,
                         active.transfer.direction,
                         {active.transfer.memory + active.submitted_bytes, piece.bytes},
                         active.transfer.local,
                         extent,
                         within,
                         active.transfer.traffic});
  };
  const auto ok = submit();
  if (!ok) {
    if (ok.error().code() == Errc::kBusy) return false;
    fail(active, ok.error().code(), op);
    leave_heap();
    finish_if_done(entry.slot);
    return true;
  }
  if (Pace* const pace = pace_of(active.transfer)) pace->take(piece.bytes, clock_.now());
  if (active.sent_ticks == 0) active.sent_ticks = now_ticks;
  active.submitted_bytes += piece.bytes;
  active.pieces += 1;
  queue.began(active.transfer);
  nodes_[extent.node.value()].pieces += 1;
  const bool moved_on = piece.bytes == piece.in_extent_bytes;
  if (moved_on) leave_heap();
  if (moved_on && active.submitted_bytes < active.transfer.bytes) enqueue(entry.slot, entry.order);
  return true;
}

Result<void> Mover::submit_piece(const Operation& operation) {
  const ArenaExtent& extent = operation.extent;
  const Driver& driver = drivers_[extent.driver.value()];
  const transport::LocalId local = operation.local[extent.driver.value()];
  const std::uint64_t offset_bytes = extent.region_offset_bytes + operation.within_bytes;
  TimePoint lease_end = TimePoint::max();
  // Once the lease may have ended, a target that serves by itself may have taken the memory away
  // under an operation and tell it as done nevertheless. (Where no target serves, losing the memory
  // is seen at once.)
  if (driver.port.transport->caps().needs_peer_progress) {
    lease_end = state_of(extent.node).lease->lease_end();
  }
  // A driver that knows whether anything moves is patient with a link that others use, too.
  const Duration patience = driver.port.op_deadline;
  const int times = driver.port.transport->caps().patient ? kSlowTimes : 1;
  const TimePoint deadline = std::min(clock_.now() + times * patience, lease_end);
  return driver.port.transport->submit({operation.direction, operation.op, operation.memory, local,
                                        extent.region, offset_bytes, deadline, lease_end, patience,
                                        operation.traffic});
}

Result<void> Mover::submit_copy(const Active& active, const ArenaExtent& extent,
                                std::uint64_t bytes, OpId op) {
  const Transfer& transfer = active.transfer;
  const std::uint64_t within =
      transfer.arena_offset_bytes + active.submitted_bytes - extent.begin_bytes;
  return devices_.submit({op, transfer.direction, transfer.streams,
                          transfer.memory + active.submitted_bytes, bytes, &extent, within,
                          transfer.after, transfer.done_when});
}

/// The network's half of pieces that bounce.
void Mover::send_bounced() {
  devices_.send([this](const DeviceCarrier::Send& send) {
    const DevicePiece& piece = *send.piece;
    const Active& active = active_[slot_of(piece.op)];
    if (active.late) return Result<void>(Error(active.code, "its node does not answer"));
    auto ok = submit_piece(
        {piece.op, piece.direction, send.memory, *send.local, *piece.extent, piece.within_bytes});
    if (ok) drivers_[piece.extent->driver.value()].bounced += 1;
    return ok;
  });
}

void Mover::end_copies() {
  std::array<DevicePieceDone, DeviceCarrier::kPiecesMax> done;
  const std::size_t count = devices_.poll(done);
  for (std::size_t i = 0; i < count; ++i) {
    active_[slot_of(done[i].op)].order.join(done[i].order);
    piece_done(device_, Completion{done[i].op, done[i].code, 0});
  }
}

Result<void> Mover::submit_stage(const Active& active, const ArenaExtent& extent,
                                 std::uint64_t bytes, OpId op) {
  const Transfer& transfer = active.transfer;
  HO_CHECK(transfer.flash->node == extent.node);  // the caller of start() has checked that
  StageOp piece;
  piece.op = op;
  piece.direction =
      transfer.direction == Direction::kGet ? StageDirection::kIn : StageDirection::kOut;
  piece.flash = *transfer.flash;
  piece.flash.offset_bytes += active.submitted_bytes;
  piece.segment = extent.segment;
  piece.segment_offset_bytes = extent.region_offset_bytes + transfer.arena_offset_bytes +
                               active.submitted_bytes - extent.begin_bytes;
  piece.length_bytes = bytes;
  piece.deadline = clock_.now() + stage_.port.op_deadline;
  return stager_->submit(piece);
}

std::size_t Mover::poll(std::span<TransferDone> out) {
  std::array<Completion, 64> completions;
  if (stage_.pieces() > 0) {
    const std::size_t count = stager_->poll(completions);
    for (std::size_t i = 0; i < count; ++i) piece_done(stage_, completions[i]);
  }
  for (Driver& driver : drivers_) {
    if (driver.pieces() == 0) continue;
    const std::size_t count = driver.port.transport->poll(completions);
    HO_CHECK(count <= completions.size());
    for (std::size_t i = 0; i < count; ++i) {
      if (driver.bounced > 0 && devices_.arrived(completions[i])) {
        driver.bounced -= 1;
      } else {
        piece_done(driver, completions[i]);
      }
    }
  }
  send_bounced();
  end_copies();
  end_suspects();
  end_late();
  std::size_t written = 0;
  for (; written < out.size() && done_count_ > 0; ++written) {
    out[written] = done_[done_first_];
    done_first_ = (done_first_ + 1) % done_.size();
    done_count_ -= 1;
    HO_CHECK(in_flight_ > 0);
    in_flight_ -= 1;
  }
  return written;
}

bool Mover::drivers_idle() const {
  return device_.pieces() == 0 &&
         std::all_of(drivers_.begin(), drivers_.end(),
                     [](const Driver& driver) { return driver.pieces() == 0; });
}

bool Mover::waits_for_stager_only() const {
  return (stage_.pieces() > 0 || !parked_.empty()) && drivers_idle() && !devices_.moves();
}

std::optional<TimePoint> Mover::paced_until() const {
  return drivers_idle() ? next_due_ : std::nullopt;
}

void Mover::piece_done(Driver& driver, const Completion& completion) {
  // An accelerator's piece has the name of its operation in the network.
  if (&driver != &device_ && !left_behind_.empty() && was_left_behind(completion)) return;
  const std::uint32_t slot = slot_of(completion.op);
  HO_CHECK(slot < kTransfersMax);
  Active& active = active_[slot];
  Queue& queue = driver.queue_of(active.transfer);
  HO_CHECK(active.pieces > 0);
  queue.ended(active.transfer, 1);
  active.pieces -= 1;
  NodeState& node = nodes_[node_of(completion.op).value()];
  HO_CHECK(node.pieces > 0);
  node.pieces -= 1;
  if (completion.code != Errc::kOk) fail(active, completion.code, completion.op);
  finish_if_done(slot);
}

/// Keeps the first failure: what follows it (a closed peer's other pieces) explains less.
void Mover::fail(Active& active, Errc code, OpId op) {
  if (active.code != Errc::kOk) return;
  active.code = code;
  active.failed = op;
}

void Mover::finish_if_done(std::uint32_t slot) {
  const Active& active = active_[slot];
  if (active.pieces > 0 || active.queued) return;
  if (park_failed(slot)) return;
  HO_CHECK(active.code != Errc::kOk || active.dropped ||
           active.submitted_bytes == active.transfer.bytes);
  HO_CHECK(done_count_ < done_.size());
  done_[(done_first_ + done_count_) % done_.size()] = {
      active.transfer.owner,   active.transfer.cookie, active.code,
      node_of(active.failed),  active.failed,          active.transfer.flash.has_value(),
      active.sent_ticks,       active.dropped,         active.order,
      active.transfer.streams, active.yielded,         active.late};
  done_count_ += 1;
  if (active.transfer.late_after > Duration{0}) std::erase(may_be_late_, slot);
  free_[free_count_++] = slot;
}

}  // namespace ho::client
