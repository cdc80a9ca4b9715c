// How a batch of blocks goes on: by answers of control, on I/O threads; by transfers, on the
// transfer thread; by its deadline, on the job's.
#include <algorithm>
#include <utility>

#include "client/blocks/blocks.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {

/// A put says what went wrong; for the others every failure is a miss.
Errc Blocks::failed(BlockOp op, Errc code) { return op == BlockOp::kPut ? code : Errc::kNotFound; }

/// Asks the node about what waits, while it may.
void Blocks::pump(Node& node) {
  while (node.active < kActiveMax && !node.queue.empty()) {
    const BatchPtr batch = std::move(node.queue.front());
    node.queue.pop_front();
    if (batch->phase != Phase::kQueued) continue;
    node.active += 1;
    batch->phase = Phase::kAsking;
    const auto started = ask(batch);
    if (started) continue;
    if (batch->op != BlockOp::kPut) node.active -= 1;
    end_all(batch, failed(batch->op, started.error().code()));
  }
}

Result<void> Blocks::ask(const BatchPtr& batch) {
  BlocksControl& control = *nodes_[batch->node].of.control;
  if (batch->op == BlockOp::kPut) {
    std::vector<BlockWish> wishes;
    for (const Element& one : batch->elements) {
      wishes.push_back({one.item.name.digest, one.item.bytes, one.item.cost});
    }
    return control.reserve(wishes, on_answer<std::vector<BlockSlot>>(batch, &Blocks::reserved));
  }
  std::vector<BlockDigest> keys;
  for (const Element& one : batch->elements) keys.push_back(one.item.name.digest);
  if (batch->op == BlockOp::kGet) {
    return control.locate(keys, on_answer<std::vector<BlockLocation>>(batch, &Blocks::located));
  }
  const auto question =
      batch->op == BlockOp::kExists ? BlocksQuestion::kExists : BlocksQuestion::kRemove;
  return control.ask(question, keys, on_answer<std::vector<bool>>(batch, &Blocks::asked));
}

/// A put counts as active until it ends, the others until they are answered.
template <typename Value>
BlocksControl::Answered<Value> Blocks::on_answer(const BatchPtr& batch,
                                                 void (Blocks::*then)(const BatchPtr&,
                                                                      const Value&)) {
  return [weak = weak_from_this(), batch, then](const Result<Value>& value) {
    const auto self = weak.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->closing_) return;
    Node& node = self->nodes_[batch->node];
    if (batch->op != BlockOp::kPut) node.active -= 1;
    if (batch->phase == Phase::kAsking || batch->phase == Phase::kSettling) {
      if (value) {
        (self.get()->*then)(batch, *value);
      } else {
        self->end_all(batch, failed(batch->op, value.error().code()));
      }
    }
    self->pump(node);
  };
}

void Blocks::located(const BatchPtr& batch, const std::vector<BlockLocation>& places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    Element& element = batch->elements[i];
    const BlockLocation& place = places[i];
    if (place.id == 0 || place.length_bytes != element.item.bytes) {
      end(batch, element, Errc::kNotFound);
      continue;
    }
    element.id = place.id;
    element.segment = place.segment;
    element.offset_bytes = place.offset_bytes;
    element.checksum = place.checksum;
  }
  if (batch->phase != Phase::kEnded) prepare(batch);
}

void Blocks::asked(const BatchPtr& batch, const std::vector<bool>& answers) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    end(batch, batch->elements[i], answers[i] ? Errc::kOk : Errc::kNotFound);
  }
}

void Blocks::reserved(const BatchPtr& batch, const std::vector<BlockSlot>& slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Element& element = batch->elements[i];
    switch (slots[i].answer) {
      case BlockAnswer::kExists: end(batch, element, Errc::kOk); break;
      case BlockAnswer::kNoRoom: end(batch, element, Errc::kExhausted); break;
      case BlockAnswer::kReserved:
        element.id = slots[i].id;
        element.segment = slots[i].segment;
        element.offset_bytes = slots[i].offset_bytes;
        break;
    }
  }
  if (batch->phase != Phase::kEnded) prepare(batch);
}

/// Starts the transfers, once all segments are attached or known to be gone.
void Blocks::prepare(const BatchPtr& batch) {
  Node& node = nodes_[batch->node];
  bool complete = true;
  for (const Element& element : batch->elements) {
    if (element.ended) continue;
    const auto [segment, fresh] = node.segments.try_emplace(element.segment);
    complete = complete && segment->second.state != Segment::State::kAsked;
  }
  if (!complete) {
    batch->phase = Phase::kAttaching;
    node.attaching.push_back(batch);
    if (!node.attach_sent) attach(batch->node);
    return;
  }
  batch->phase = Phase::kMoving;
  for (std::size_t i = 0; i < batch->elements.size(); ++i) {
    Element& element = batch->elements[i];
    if (element.ended) continue;
    const Segment& segment = node.segments.at(element.segment);
    const std::uint64_t bytes = segment.map.bytes();
    const bool inside = segment.state == Segment::State::kAttached &&
                        element.offset_bytes <= bytes &&
                        element.item.bytes <= bytes - element.offset_bytes;
    if (!inside) continue;  // moves_ended() ends it
    ready_.push_back({batch, i});
    batch->moving += 1;
  }
  if (batch->moving == 0) return moves_ended(batch);
  news_.store(true);
  engine_.ring();
}

/// Asks for all segments that are not attached, as many as one request may have.
void Blocks::attach(std::size_t at) {
  Node& node = nodes_[at];
  std::vector<SegmentId> wanted;
  for (const auto& [id, segment] : node.segments) {
    if (wanted.size() == segments_per_grant_max("local")) break;
    if (segment.state == Segment::State::kAsked) wanted.push_back(id);
  }
  if (wanted.empty()) return;
  node.attach_sent = true;
  const auto done = [weak = weak_from_this(), at,
                     wanted](Result<std::vector<GrantedSegment>> segments) {
    const auto self = weak.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->closing_) return;
    self->attached(at, wanted, std::move(segments));
    self->pump(self->nodes_[at]);
  };
  const auto started = node.of.control->attach(wanted, done);
  if (!started) attached(at, wanted, started.error());
}

void Blocks::attached(std::size_t at, const std::vector<SegmentId>& wanted,
                      Result<std::vector<GrantedSegment>> segments) {
  Node& node = nodes_[at];
  if (!segments) {
    node.attach_sent = false;
    for (const SegmentId id : wanted) node.segments.erase(id);
    for (const BatchPtr& batch : std::exchange(node.attaching, {})) {
      if (batch->phase != Phase::kAttaching) continue;
      end_all(batch, failed(batch->op, segments.error().code()));
    }
    return;
  }
  for (const SegmentId id : wanted) {
    const bool given = std::any_of(segments->begin(), segments->end(),
                                   [&](const GrantedSegment& one) { return one.id == id; });
    if (!given) node.segments.at(id).state = Segment::State::kGone;
  }
  arrivals_.push_back({at, std::move(*segments)});
  news_.store(true);
  engine_.ring();
}

/// Attaches what has arrived, without the lock: mapping a segment takes some milliseconds.
bool Blocks::take_arrivals() {
  std::vector<Arrival> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (Arrival& arrival : arrivals) {
    const BlocksNode& of = nodes_[arrival.node].of;
    for (GrantedSegment& granted : arrival.segments) {
      transport::RegionGrant grant;
      grant.key = granted.key;
      grant.fd = std::move(granted.fd);
      grant.length_bytes = granted.length_bytes;
      auto region = engine_.transport(of.driver).attach(of.peer, std::move(grant));
      const std::lock_guard lock(mutex_);
      const auto segment = nodes_[arrival.node].segments.find(granted.id);
      if (segment == nodes_[arrival.node].segments.end()) continue;  // nobody asked for it
      if (!region) {
        log(LogLevel::kWarning, "a segment of blocks cannot be used",
            {{"reason", region.error().message()}});
        segment->second.state = Segment::State::kGone;
        continue;
      }
      ArenaExtent extent;
      extent.length_bytes = granted.length_bytes;
      extent.driver = of.driver;
      extent.node = of.index;
      extent.region = *region;
      extent.segment = granted.id;
      segment->second.map = ArenaMap({extent});
      segment->second.region = *region;
      segment->second.state = Segment::State::kAttached;
    }
    const std::lock_guard lock(mutex_);
    look_again(arrival.node);
  }
  return !arrivals.empty();
}

/// Segments have come: batches that waited for them go on.
void Blocks::look_again(std::size_t at) {
  Node& node = nodes_[at];
  node.attach_sent = false;
  for (const BatchPtr& batch : std::exchange(node.attaching, {})) {
    if (batch->phase == Phase::kAttaching) prepare(batch);
  }
  pump(node);
}

bool Blocks::feed(Mover& mover, std::uint64_t /*now_ticks*/) {
  if (!news_.exchange(false)) return false;
  bool any = take_arrivals();
  const std::lock_guard lock(mutex_);
  while (!closing_ && !ready_.empty()) {
    if (free_moves_.empty() || mover.full()) {
      news_.store(true);
      break;
    }
    const Move move = ready_.front();
    Batch& batch = *move.batch;
    Element& element = batch.elements[move.element];
    ready_.pop_front();
    any = true;
    if (batch.expired) {
      if (--batch.moving == 0) moves_ended(move.batch);
      pump(nodes_[batch.node]);
      continue;
    }
    Transfer transfer;
    transfer.owner = owner_;
    transfer.cookie = free_moves_.back();
    transfer.direction = batch.op == BlockOp::kGet ? Direction::kGet : Direction::kPut;
    transfer.arena = &nodes_[batch.node].segments.at(element.segment).map;
    transfer.arena_offset_bytes = element.offset_bytes;
    transfer.memory = element.item.data;
    transfer.bytes = element.item.bytes;
    transfer.local = element.item.local;
    transfer.urgency =
        transfer.bytes <= kSmallTransferBytes ? Urgency::kPlainSmall : Urgency::kPlain;
    moving_[free_moves_.back()] = move;
    free_moves_.pop_back();
    HO_CHECK(mover.start(transfer).ok());  // it is not full
  }
  return any;
}

void Blocks::transfer_done(Mover& /*mover*/, const TransferDone& done, const NodeWords& /*words*/,
                           std::uint64_t /*now_ticks*/) {
  const std::lock_guard lock(mutex_);
  HO_CHECK(done.cookie < moving_.size());
  const Move move = std::exchange(moving_[done.cookie], {});
  HO_CHECK(move.batch != nullptr);
  free_moves_.push_back(static_cast<std::uint32_t>(done.cookie));
  if (closing_) return;
  if (!ready_.empty()) news_.store(true);
  Batch& batch = *move.batch;
  Element& element = batch.elements[move.element];
  element.moved = done.code == Errc::kOk;
  if (done.code == Errc::kPermissionDenied) {  // the daemon took the segment back
    nodes_[batch.node].segments.at(element.segment).state = Segment::State::kGone;
  }
  if (element.moved && batch.op == BlockOp::kGet) end(move.batch, element, Errc::kOk);
  batch.moving -= 1;
  if (batch.moving == 0) moves_ended(move.batch);
  pump(nodes_[batch.node]);
}

/// No transfer of the batch is waiting or in flight.
void Blocks::moves_ended(const BatchPtr& batch) {
  if (batch->phase == Phase::kEnded) return;
  HO_CHECK(batch->phase == Phase::kMoving && batch->moving == 0);
  BlocksSettlement settlement;
  for (Element& element : batch->elements) {
    if (element.ended) continue;
    if (batch->op == BlockOp::kPut && element.moved && !batch->expired) {
      settlement.commits.push_back({element.id, element.checksum});
      continue;
    }
    settlement.dropped.push_back(element.id);
    end(batch, element, failed(batch->op, batch->expired ? Errc::kDeadline : Errc::kUnavailable));
  }
  if (batch->op != BlockOp::kPut) return;
  BlocksControl& control = *nodes_[batch->node].of.control;
  if (settlement.commits.empty()) {
    // Reservations that it does not hear of end by their age.
    static_cast<void>(control.settle(settlement, [](const auto&) {}));
    return;
  }
  batch->phase = Phase::kSettling;
  const auto started =
      control.settle(settlement, on_answer<std::vector<bool>>(batch, &Blocks::settled));
  if (!started) end_all(batch, started.error().code());
}

void Blocks::settled(const BatchPtr& batch, const std::vector<bool>& stored) {
  std::size_t at = 0;
  for (Element& element : batch->elements) {
    if (element.ended) continue;
    HO_CHECK(at < stored.size());
    end(batch, element, stored[at++] ? Errc::kOk : Errc::kDeadline);
  }
}

void Blocks::end(const BatchPtr& batch, Element& element, Errc code) {
  HO_CHECK(!element.ended && batch->open > 0);
  element.ended = true;
  const bool compare = batch->op == BlockOp::kGet && code == Errc::kOk;
  const bool first = done_.empty();
  done_.push_back({{batch->ticket, element.index, code},
                   compare ? batch : nullptr,
                   compare ? &element : nullptr});
  if (first) arm();
  batch->open -= 1;
  if (batch->open == 0) finish(batch);
}

void Blocks::end_all(const BatchPtr& batch, Errc code) {
  for (Element& element : batch->elements) {
    if (!element.ended) end(batch, element, code);
  }
}

void Blocks::finish(const BatchPtr& batch) {
  Node& node = nodes_[batch->node];
  if (batch->op == BlockOp::kPut && batch->phase != Phase::kQueued) node.active -= 1;
  batch->phase = Phase::kEnded;
  live_.erase(batch->number);
}

/// Ends what is past its deadline, apart from transfers: theirs ends them, and until then the
/// memory is in use.
void Blocks::expire(TimePoint now) {
  std::vector<BatchPtr> late;
  for (const auto& [number, batch] : live_) {
    if (batch->deadline > now) break;
    if (!batch->expired) late.push_back(batch);
  }
  for (const BatchPtr& batch : late) {
    batch->expired = true;
    if (batch->phase == Phase::kMoving) continue;
    end_all(batch, failed(batch->op, Errc::kDeadline));
  }
}

/// Detached: nothing new is started, and what is in flight is awaited.
bool Blocks::cancel(Mover& mover) {
  mover.cancel(owner_);
  const std::lock_guard lock(mutex_);
  return free_moves_.size() == moving_.size();
}

}  // namespace ho::client
