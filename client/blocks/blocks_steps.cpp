// How a batch of blocks goes on: by answers of control, on I/O threads; by transfers, on the
// transfer thread; by its deadline, on the job's.
#include <algorithm>
#include <utility>

#include "client/blocks/blocks.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {

/// What changes the store says what went wrong; for the others every failure is a miss.
Errc Blocks::failed(BlockOp op, Errc code) {
  return op == BlockOp::kPut || op == BlockOp::kRemove ? code : Errc::kNotFound;
}

/// Asks the node about what waits, while it may.
void Blocks::pump(Node& node) {
  while (node.active < kActiveMax && !node.queue.empty()) {
    const BatchPtr batch = std::move(node.queue.front());
    node.queue.pop_front();
    if (batch->phase != Phase::kQueued) continue;
    node.active += 1;
    batch->phase = Phase::kAsking;
    batch->store = node.store;
    const auto started = node.store->at.control != nullptr
                             ? ask(batch)
                             : Result<void>(Error(Errc::kUnavailable, "the node has no store"));
    if (started) continue;
    if (batch->op != BlockOp::kPut) node.active -= 1;
    end_all(batch, failed(batch->op, started.error().code()));
  }
}

Result<void> Blocks::ask(const BatchPtr& batch) {
  BlocksControl& control = *batch->store->at.control;
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
  // Weak: a connection's thread must not be the last to let go of the store, whose end joins it.
  return [weak = weak_from_this(), asked = std::weak_ptr(batch), at = batch->node,
          is_put = batch->op == BlockOp::kPut, then](const Result<Value>& value) {
    const auto self = weak.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->closing_) return;
    Node& node = self->nodes_[at];
    if (value) node.silent_until.reset();
    if (!is_put) node.active -= 1;
    const BatchPtr live = asked.lock();  // null: it has ended
    if (live && (live->phase == Phase::kAsking || live->phase == Phase::kSettling)) {
      if (value) {
        (self.get()->*then)(live, *value);
      } else {
        self->end_all(live, failed(live->op, value.error().code()));
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
  Store& store = *batch->store;
  bool complete = true;
  for (const Element& element : batch->elements) {
    if (element.ended) continue;
    const auto [segment, fresh] = store.segments.try_emplace(element.segment);
    complete = complete && segment->second.state != Segment::State::kAsked;
  }
  if (!complete) {
    batch->phase = Phase::kAttaching;
    store.attaching.push_back(batch->number);
    if (!store.attach_sent) attach(batch->node, batch->store);
    return;
  }
  batch->phase = Phase::kMoving;
  for (std::size_t i = 0; i < batch->elements.size(); ++i) {
    Element& element = batch->elements[i];
    if (element.ended) continue;
    const Segment& segment = store.segments.at(element.segment);
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
void Blocks::attach(std::size_t node, const StorePtr& store) {
  std::vector<SegmentId> wanted;
  for (const auto& [id, segment] : store->segments) {
    if (wanted.size() == segments_per_grant_max("local")) break;
    if (segment.state == Segment::State::kAsked) wanted.push_back(id);
  }
  if (wanted.empty()) return;
  store->attach_sent = true;
  const auto done = [weak = weak_from_this(), node, of = std::weak_ptr(store),
                     wanted](Result<std::vector<GrantedSegment>> segments) {
    const auto self = weak.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    if (self->closing_) return;
    if (const StorePtr asked = of.lock()) {
      self->attached(node, asked, wanted, std::move(segments));
    }
    self->pump(self->nodes_[node]);
  };
  const auto started = store->at.control->attach(wanted, done);
  if (!started) attached(node, store, wanted, started.error());
}

void Blocks::attached(std::size_t node, const StorePtr& store, const std::vector<SegmentId>& wanted,
                      Result<std::vector<GrantedSegment>> segments) {
  if (!segments) {
    store->attach_sent = false;
    for (const SegmentId id : wanted) store->segments.erase(id);
    for (const std::uint64_t number : std::exchange(store->attaching, {})) {
      const auto batch = live_.find(number);
      if (batch == live_.end()) continue;  // it is too late
      const BatchPtr late = batch->second;
      end_all(late, failed(late->op, segments.error().code()));
    }
    return;
  }
  for (const SegmentId id : wanted) {
    const bool given = std::any_of(segments->begin(), segments->end(),
                                   [&](const GrantedSegment& one) { return one.id == id; });
    if (!given) store->segments[id].state = Segment::State::kGone;
  }
  arrivals_.push_back({node, store, std::move(*segments)});
  news_.store(true);
  engine_.ring();
}

/// Attaches what has arrived.
bool Blocks::take_arrivals() {
  std::vector<Arrival> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
  }
  for (Arrival& arrival : arrivals) {
    for (GrantedSegment& granted : arrival.segments) take_segment(arrival, std::move(granted));
    const std::lock_guard lock(mutex_);
    look_again(arrival.node, *arrival.store);
  }
  return !arrivals.empty();
}

/// Without the lock for the most part: mapping a segment takes some milliseconds.
void Blocks::take_segment(const Arrival& arrival, GrantedSegment granted) {
  const Node& node = nodes_[arrival.node];
  Store& store = *arrival.store;
  transport::RegionGrant grant;
  grant.key = granted.key;
  grant.fd = std::move(granted.fd);
  grant.length_bytes = granted.length_bytes;
  // Nothing is attached any more of a daemon that has ended: nobody would detach it.
  const bool ended = store.at.control->closed();
  auto region = ended ? Result<transport::RegionId>(Error(Errc::kUnavailable, "it has ended"))
                      : engine_.transport(node.driver).attach(store.at.peer, std::move(grant));
  const std::lock_guard lock(mutex_);
  const auto segment = store.segments.find(granted.id);
  if (segment == store.segments.end()) return;  // nobody asked for it
  if (!region) {
    segment->second.state = Segment::State::kGone;
    if (ended) return;
    log(LogLevel::kWarning, "a segment of blocks cannot be used",
        {{"reason", region.error().message()}});
    return;
  }
  ArenaExtent extent;
  extent.length_bytes = granted.length_bytes;
  extent.driver = node.driver;
  extent.node = node.index;
  extent.region = *region;
  extent.segment = granted.id;
  segment->second.map = ArenaMap({extent});
  segment->second.region = *region;
  segment->second.state = Segment::State::kAttached;
}

/// Segments have come: batches that waited for them go on.
void Blocks::look_again(std::size_t node, Store& store) {
  store.attach_sent = false;
  for (const std::uint64_t number : std::exchange(store.attaching, {})) {
    const auto batch = live_.find(number);
    if (batch != live_.end()) prepare(BatchPtr(batch->second));
  }
  pump(nodes_[node]);
}

/// Detaches the segments of daemons that have ended, once no transfer uses them.
void Blocks::detach_retired() {
  for (Retired& one : retired_) {
    if (one.store->segments.empty()) continue;
    const bool used = std::any_of(live_.begin(), live_.end(), [&](const auto& live) {
      return live.second->store == one.store && live.second->moving > 0;
    });
    if (!used) detach_all(one.driver, *one.store);
  }
}

/// The transfer thread. No transfer uses the segments.
void Blocks::detach_all(DriverIndex driver, Store& store) {
  for (auto& [id, segment] : store.segments) {
    if (segment.map.bytes() > 0) engine_.transport(driver).detach(segment.region);
  }
  store.segments.clear();
}

bool Blocks::feed(Mover& mover, const TickClock& /*clock*/) {
  if (!news_.exchange(false)) return false;
  bool any = take_arrivals();
  const std::lock_guard lock(mutex_);
  detach_retired();
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
    if (batch.expired || batch.store->at.control->closed()) {
      if (--batch.moving == 0) moves_ended(move.batch);
      pump(nodes_[batch.node]);
      continue;
    }
    Transfer transfer;
    transfer.owner = owner_;
    transfer.cookie = free_moves_.back();
    transfer.direction = batch.op == BlockOp::kGet ? Direction::kGet : Direction::kPut;
    transfer.arena = &batch.store->segments.at(element.segment).map;
    transfer.arena_offset_bytes = element.offset_bytes;
    transfer.memory = element.item.data;
    transfer.bytes = element.item.bytes;
    transfer.local = element.item.local;
    transfer.yields = true;  // the next daemon has other bytes there
    transfer.urgency = transfer.bytes <= kSmallTransferBytes ? Urgency::kFirst : Urgency::kPlain;
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
  Batch& batch = *move.batch;
  const bool retired = batch.store != nodes_[batch.node].store;
  if (!ready_.empty() || retired) news_.store(true);
  Element& element = batch.elements[move.element];
  element.moved = done.code == Errc::kOk;
  if (done.code == Errc::kPermissionDenied) {  // the daemon took the segment back
    batch.store->segments.at(element.segment).state = Segment::State::kGone;
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
  BlocksControl& control = *batch->store->at.control;
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
  done_.push_back({{batch->ticket, element.index, code}, batch, &element, compare});
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
    // In its other phases it waits for this process.
    if (batch->phase == Phase::kAsking || batch->phase == Phase::kSettling) {
      nodes_[batch->node].silent_until = now + kSilence;
    }
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
