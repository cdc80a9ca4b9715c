#include "client/replay/replay.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

using schedule::CacheOpKind;

bool toward_device(CacheOpKind kind) { return schedule::moves_toward_device(kind); }

}  // namespace

const Replay::Move& Replay::move_of(const Instance& instance) const {
  switch (instance.list) {
    case CacheOpList::kSteady: return moves_[instance.index];
    case CacheOpList::kPrologue: return moves_[steady_ + instance.index];
    case CacheOpList::kEpilogue: break;
  }
  return moves_[steady_ + prologue_ + instance.index];
}

std::span<const std::uint32_t> Replay::moves_of(StorageIndex storage) const {
  const std::uint32_t begin = moves_first_[storage.value()];
  return std::span(moves_by_storage_).subspan(begin, moves_first_[storage.value() + 1] - begin);
}

/// A value without a copy at home may stay if nothing in a step moves it to the device again or
/// releases it: then no transfer of the plan reads its home.
Replay::Entry Replay::entry(StorageIndex storage, const ValuePlace& place) const {
  HO_CHECK(place.on_device);
  Entry entry;
  bool moves = false;
  for (const std::uint32_t i : moves_of(storage)) {
    const Move& move = moves_[i];
    const bool prologue = i >= steady_;
    const bool here = hosted_ != nullptr || move.device_offset_bytes == place.device_offset_bytes;
    if (prologue && move.kind == CacheOpKind::kPrefetch && here) entry.stays = true;
    const bool stores = move.kind == CacheOpKind::kStore || move.kind == CacheOpKind::kStageOut;
    if (!prologue && !stores) moves = true;
  }
  entry.store_first = !place.at_home && (!entry.stays || moves);
  return entry;
}

void Replay::restart(std::span<const ValuePlace> places, std::uint64_t first_step,
                     std::uint64_t first_mark) {
  HO_CHECK(places.size() == persistent_.size() && in_flight_ == 0 && asked_ == 0);
  HO_CHECK(leaving_.empty());
  places_.assign(places.begin(), places.end());
  version_.assign(places.size(), 1);
  staged_version_.assign(places.size(), 0);
  given_up_.assign(places.size(), 0);
  again_.clear();
  for (Whole& whole : wholes_) whole = {whole.chunks, 0, false};
  std::vector<std::uint8_t> skip(prologue_, 0);
  for (std::uint32_t i = 0; i < prologue_; ++i) {
    const Move& move = moves_[steady_ + i];
    const ValuePlace& place = places_[move.storage.value()];
    // In place: it need not be fetched. But the step may fetch it again from a slot that the
    // prologue fills.
    const bool fills = move.kind == CacheOpKind::kStageIn && place.at_home;
    skip[i] = place.on_device && !fills ? 1 : 0;
    HO_CHECK(place.on_device || place.at_home);
  }
  for (std::uint32_t s = 0; s < places_.size(); ++s) {
    if (!places_[s].on_device) continue;
    const Entry allowed = entry(StorageIndex(s), places_[s]);
    HO_CHECK(allowed.stays && !allowed.store_first);
  }
  executor_.restart(skip);
  free_flights_.clear();
  for (std::uint32_t i = 0; i < flights_.size(); ++i) free_flights_.push_back(i);
  told_ = 0;
  first_step_ = first_step;
  first_mark_ = first_mark;
  stopped_ = false;
}

Result<void> Replay::begin_step() {
  const std::uint64_t step = first_step_ + executor_.steps_begun();
  if (auto begun = executor_.begin_step(); !begun) return begun;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const std::uint32_t s = inputs_[i].value();
    version_[s] += 1;
    places_[s] = ValuePlace{};
    places_[s].at_home = true;
    places_[s].stale_homes = input_missed_[i][step % 2].load();
  }
  release_at_once();
  return {};
}

Result<void> Replay::positions_ended(std::uint64_t ended) {
  const std::uint64_t before = executor_.positions_ended_count();
  if (auto accepted = executor_.positions_ended(ended); !accepted) return accepted;
  for (std::uint64_t at = before; at < ended; ++at) {
    position_ended(static_cast<std::uint32_t>(at % positions_));
  }
  release_at_once();
  return {};
}

void Replay::position_ended(std::uint32_t position) {
  for (std::uint32_t i = effect_first_[position]; i < effect_first_[position + 1]; ++i) {
    const Effect& effect = effects_[i];
    const std::uint32_t s = effect.storage.value();
    version_[s] += 1;
    given_up_[s] = 0;
    places_[s] = ValuePlace{};
    if (effect.ends) continue;
    places_[s].on_device = true;
    places_[s].device_offset_bytes = effect.device_offset_bytes;
  }
}

/// How far off the op is that waits for a transfer. One that no op waits for still holds back the
/// step after next (Executor's second rule).
std::uint64_t Replay::positions_until(const Flight& flight) const {
  const std::uint64_t needed_at =
      flight.needed_at != kNeverNeeded ? flight.needed_at : (flight.instance.step + 2) * positions_;
  return needed_at - std::min(needed_at, executor_.positions_ended_count());
}

/// Which of the storage's values a transfer moves that starts now; 0: one that is not the latest.
std::uint64_t Replay::version_moved(const Move& move) const {
  const std::uint32_t s = move.storage.value();
  const bool from_slot =
      move.by_slot && (move.kind == CacheOpKind::kPrefetch || move.kind == CacheOpKind::kStageOut);
  if (from_slot) return staged_version_[s];
  const bool latest = move.kind == CacheOpKind::kStore ? lies_at(move) : places_[s].at_home;
  return latest ? version_[s] : 0;
}

std::uint32_t Replay::open_flight(const Instance& instance, std::uint64_t now_ticks) {
  HO_CHECK(!free_flights_.empty());
  const std::uint32_t flight = free_flights_.back();
  free_flights_.pop_back();
  flights_[flight] = Flight{};
  flights_[flight].instance = instance;
  flights_[flight].queued_ticks = now_ticks;
  return flight;
}

void Replay::ask(HostedMemory::Ask what, std::uint32_t flight, const DeviceOrder& after) {
  hosted_->ask({what, flight, move_of(flights_[flight].instance).storage, after});
  asked_ += 1;
}

void Replay::complete(const Instance& instance, const DeviceOrder& order) {
  const auto accepted = executor_.completed(instance, order);
  HO_CHECK(accepted.ok());
}

void Replay::released(const Instance& instance) {
  const Move& move = move_of(instance);
  if (lies_at(move)) places_[move.storage.value()].on_device = false;
  complete(instance);
}

/// Whether a Store or Detach is about the bytes that hold the storage's latest value: in an arena
/// an op may have written the storage elsewhere meanwhile.
bool Replay::lies_at(const Move& move) const {
  const ValuePlace& place = places_[move.storage.value()];
  return place.on_device &&
         (hosted_ != nullptr || place.device_offset_bytes == move.device_offset_bytes);
}

/// An arena's bytes are free as soon as nothing holds them.
void Replay::release_at_once() {
  if (hosted_ != nullptr) return;
  while (const auto detach = executor_.next_detach()) released(detach->instance);
}

/// Whether a copy from or to the bytes is queued on the device. Kernels do not matter: what the job
/// does next with the memory comes after them, in its own stream.
bool Replay::still_copied(const ReadyOp& detach) const {
  if (memory_.streams == nullptr) return false;
  DeviceOrder copies = detach.after;
  copies[Lane::kJob] = 0;
  return !memory_.streams->ended(copies);
}

/// The job must drop the bytes that it has placed. On a device it may use them at once, so copies
/// have to end first. They are not waited for here before the job comes to what needs the room:
/// its stream then waits, and not its thread.
std::size_t Replay::ask_to_drop() {
  if (hosted_ == nullptr) return 0;
  while (const auto detach = executor_.next_detach()) leaving_.push_back(*detach);
  std::size_t count = 0;
  std::erase_if(leaving_, [&](const ReadyOp& detach) {
    // One that no op waits for holds back the step after next, as positions_until() says.
    const std::uint64_t needed_at = detach.needed_at != kNeverNeeded
                                        ? detach.needed_at
                                        : (detach.instance.step + 2) * positions_;
    const bool needed = needed_at <= executor_.positions_ended_count();
    if (free_flights_.empty() || (!needed && still_copied(detach))) return false;
    ask(HostedMemory::Ask::kDrop, open_flight(detach.instance, 0), detach.after);
    count += 1;
    return true;
  });
  return count;
}

/// What the job has done since: taken memory for a prefetch, or dropped memory.
std::size_t Replay::take_answers(Mover& mover) {
  std::size_t count = 0;
  while (hosted_ != nullptr && !failure_ && !mover.full()) {
    const auto answer = hosted_->next_answer();
    if (!answer) break;
    HO_CHECK(asked_ > 0);
    asked_ -= 1;
    count += 1;
    Flight& flight = flights_[answer->flight];
    if (move_of(flight.instance).kind == CacheOpKind::kPrefetch) {
      flight.taken_mark = answer->job_mark;
      start(mover, answer->flight);
    } else {
      const Instance detach = flight.instance;
      free_flights_.push_back(answer->flight);
      released(detach);
    }
  }
  return count;
}

std::size_t Replay::pump(Mover& mover, std::uint64_t now_ticks) {
  if (failure_ || stopped_) return 0;
  mover.add_progress(executor_.positions_ended_count() - told_);
  told_ = executor_.positions_ended_count();
  std::size_t started = take_answers(mover) + ask_to_drop() + start_again(mover, now_ticks);
  while (!failure_ && !mover.full() && !free_flights_.empty()) {
    const auto ready = executor_.next();
    if (!ready) break;
    const std::uint32_t flight = open_flight(ready->instance, now_ticks);
    flights_[flight].needed_at = ready->needed_at;
    flights_[flight].droppable = ready->droppable;
    flights_[flight].after = ready->after;
    const bool wants_memory = move_of(ready->instance).kind == CacheOpKind::kPrefetch;
    if (hosted_ != nullptr && wants_memory) {
      ask(HostedMemory::Ask::kTake, flight);
    } else {
      start(mover, flight);
    }
    started += 1;
  }
  if (!failure_) release_at_once();  // a Store that is given up is complete
  return started;
}

/// Hands a transfer to the mover, which has room.
void Replay::start(Mover& mover, std::uint32_t number) {
  Flight& flight = flights_[number];
  const Move& move = move_of(flight.instance);
  HO_CHECK(move.area != nullptr);
  if (move.other.area != nullptr && !direct(mover, number)) return;
  flight.version = version_moved(move);
  const bool to_slot =
      move.by_slot && (move.kind == CacheOpKind::kStore || move.kind == CacheOpKind::kStageIn);
  if (to_slot) staged_version_[move.storage.value()] = flight.version;
  Transfer transfer;
  transfer.owner = owner_;
  transfer.cookie = number;
  transfer.direction = toward_device(move.kind) ? Direction::kGet : Direction::kPut;
  const bool other = move.other.area != nullptr && flight.home != move.home;
  const HomeArea& area = other ? *move.other.area : *move.area;
  const auto& offsets = other ? move.other.offset_bytes : move.area_offset_bytes;
  transfer.arena = area.map;
  const std::uint64_t step = first_step_ + flight.instance.step;
  transfer.arena_offset_bytes = area.begin_bytes + offsets[step % offsets.size()];
  transfer.yields = flight.yields;
  if (flight.yields) transfer.late_after = move.late_after;
  transfer.bytes = move.bytes;
  transfer.flash = move.flash;
  if (!move.flash && hosted_ != nullptr) {
    std::byte* const bytes = hosted_->address(move.storage);
    HO_CHECK(bytes != nullptr);
    transfer.memory = bytes + move.begin_bytes;
  } else if (!move.flash) {
    const std::uint64_t offset = move.device_offset_bytes + move.begin_bytes;
    transfer.memory = memory_.arena->data() + offset;
    transfer.local = memory_.arena_handles;
    device_end_bytes_ = std::max(device_end_bytes_, offset + move.bytes);
  }
  if (!move.flash && hosted_ != nullptr && memory_.streams == nullptr) {
    auto handles = mover.register_memory({transfer.memory, move.bytes});
    if (!handles) {
      free_flights_.push_back(number);
      fail(handles.error().code(), NodeIndex(0));
      failure_->storages.push_back(move.storage);
      return;
    }
    flight.handles = transfer.local = *handles;
    flight.registered = true;
  }
  if (memory_.streams != nullptr) {  // `memory` is an address there, and never read
    transfer.streams = memory_.streams;
    transfer.after = flight.after;
    transfer.after[Lane::kJob] = std::max(
        flight.taken_mark, DeviceStreams::position_mark(first_mark_, flight.after[Lane::kJob]));
  }
  transfer.droppable = flight.droppable;
  transfer.urgency = Urgency::kScheduled + mover.progress() + positions_until(flight);
  const auto accepted = mover.start(transfer);
  HO_CHECK(accepted.ok());
  flight.moves = true;
  in_flight_ += 1;
}

Result<void> Replay::begin_epilogue(Mover& mover, std::span<const std::uint8_t> keep) {
  HO_CHECK(keep.empty() || keep.size() == places_.size());
  std::vector<std::uint8_t> skip;
  for (std::size_t i = steady_ + prologue_; i < moves_.size(); ++i) {
    const std::uint32_t s = moves_[i].storage.value();
    const bool kept = !keep.empty() && keep[s] != 0 && places_[s].on_device;
    const bool stale = (places_[s].stale_homes & 1U << moves_[i].home) != 0 && lies_at(moves_[i]);
    skip.push_back((places_[s].at_home && !stale) || kept ? 1 : 0);
  }
  if (auto begun = executor_.begin_epilogue(skip); !begun) return begun;
  release_at_once();
  mover.drop(owner_);
  return {};
}

bool Replay::stop(Mover& mover) {
  if (!stopped_) {
    mover.cancel(owner_);
    // What the job took or dropped meanwhile shows in its addresses.
    if (hosted_ != nullptr) hosted_->clear();
    asked_ = 0;
    leaving_.clear();
    again_.clear();
    stopped_ = true;
  }
  return in_flight_ == 0 && settled();
}

/// Whether the rest of the step that is stopped would still have read the storage's value, or that
/// outlives it.
bool Replay::wanted_in_step(StorageIndex storage) const {
  const std::uint32_t s = storage.value();
  if (executor_.positions_ended_count() == executor_.steps_begun() * positions_) {
    return persistent_[s] != 0;
  }
  const std::uint64_t position = executor_.positions_ended_count() % positions_;
  const auto end = uses_.begin() + use_first_[s + 1];
  const auto next = std::find_if(uses_.begin() + use_first_[s], end,
                                 [&](const Use& use) { return use.position >= position; });
  return next != end ? next->reads : persistent_[s] != 0;
}

ValuePlace Replay::place(StorageIndex storage) const {
  const std::uint32_t s = storage.value();
  ValuePlace place = places_[s];
  if (hosted_ != nullptr) place.on_device = place.on_device && hosted_->address(storage) != nullptr;
  // Homes of what does not outlive a step, and staging slots, hold other storages' bytes by and by:
  // only a copy that is the only one is sure to be there still.
  const bool shared_home = persistent_[s] == 0;
  const bool wanted = !stopped_ || wanted_in_step(storage);
  if (!wanted || (shared_home && place.on_device)) place.at_home = false;
  if (!wanted || place.on_device || place.at_home) place.staged = false;
  return place;
}

bool Replay::at_rest(StorageIndex storage) const {
  const auto moves = moves_of(storage);
  return std::all_of(moves.begin(), moves.end(), [&](std::uint32_t i) {
    return i < steady_ ? executor_.all_complete(CacheOpList::kSteady, i)
                       : executor_.all_complete(CacheOpList::kPrologue, i - steady_);
  });
}

bool Replay::arriving(StorageIndex storage) const {
  const auto fills = [&](const Flight& flight) {
    const Move& move = move_of(flight.instance);
    return move.storage == storage && move.kind == CacheOpKind::kPrefetch;
  };
  return !hosted_->answers_read() || std::any_of(again_.begin(), again_.end(), fills) ||
         std::any_of(flights_.begin(), flights_.end(),
                     [&](const Flight& flight) { return flight.moves && fills(flight); });
}

void Replay::transfer_done(Mover& mover, const TransferDone& done, std::uint64_t now_ticks) {
  HO_CHECK(done.owner == owner_ && done.cookie < flights_.size() && in_flight_ > 0);
  const Flight flight = flights_[done.cookie];
  flights_[done.cookie].moves = false;
  if (flight.registered) mover.unregister_memory(flight.handles);
  free_flights_.push_back(static_cast<std::uint32_t>(done.cookie));
  in_flight_ -= 1;
  const Move& move = move_of(flight.instance);
  if (done.code == Errc::kCanceled) {
    HO_CHECK(stopped_ || failure_);
    return;
  }
  if (done.code != Errc::kOk) {
    if (!failure_ && failed_over(mover, flight, move, done)) return;
    if (!failure_) fail(done.code, done.node);
    auto& named = failure_->storages;
    const bool known = std::find(named.begin(), named.end(), move.storage) != named.end();
    if (!known && named.size() < kNamedStoragesMax) named.push_back(move.storage);
    return;
  }
  if (failure_) return;  // the executor stands still; the bytes have arrived, nobody waits for them
  if (!done.dropped) {
    const bool in = toward_device(move.kind);
    if (move.flash) {
      (in ? staged_in_bytes_ : staged_out_bytes_) += move.bytes;
    } else {
      (in ? prefetched_bytes_ : stored_bytes_) += move.bytes;
    }
    if (flight.instance.list == CacheOpList::kSteady) {
      times_[(flight.instance.step % kStepsKept) * steady_ + flight.instance.index] = {
          flight.queued_ticks, done.sent_ticks, now_ticks};
    }
    moved(move, flight.version);
  }
  if (stopped_) return;
  complete(flight.instance, done.order);
  release_at_once();
}

/// A chunk has arrived; with the last one of its cache op the value is in another place, too.
void Replay::moved(const Move& move, std::uint64_t version) {
  Whole& whole = wholes_[move.whole];
  const std::uint32_t s = move.storage.value();
  whole.out_of_date = whole.out_of_date || version != version_[s];
  whole.done += 1;
  HO_CHECK(whole.done <= whole.chunks);
  if (whole.done < whole.chunks) return;
  const bool latest = !whole.out_of_date;
  whole.done = 0;
  whole.out_of_date = false;
  ValuePlace& place = places_[s];
  switch (move.kind) {
    case CacheOpKind::kPrefetch:
      HO_CHECK(latest);  // a legal schedule fetches no other value
      place.on_device = true;
      place.device_offset_bytes = move.device_offset_bytes;
      break;
    case CacheOpKind::kStore:
    case CacheOpKind::kStageIn:
      if (latest && move.other.area != nullptr) {
        stored(move);
      } else if (move.by_slot) {
        place.staged = latest;
        place.staged_offset_bytes = move.area_offset_bytes[0] - move.begin_bytes;
      } else {
        place.at_home = latest;
      }
      break;
    case CacheOpKind::kStageOut: place.at_home = place.at_home || latest; break;
    case CacheOpKind::kDetach: HO_CHECK(false);
  }
}

void Replay::fail(Errc code, NodeIndex node) {
  if (failure_) return;
  failure_ = ReplayFailure{code, node, {}, {}};
  failure_->storages.reserve(kNamedStoragesMax);
}

Replay::Span Replay::span(std::uint32_t cache_op, std::uint64_t step,
                          std::uint64_t begin_ticks) const {
  HO_CHECK(cache_op + 1 < first_.size());
  const auto begin = times_.begin() + static_cast<std::ptrdiff_t>((step % kStepsKept) * steady_);
  Span whole;
  for (std::uint32_t at = first_[cache_op]; at < first_[cache_op + 1]; ++at) {
    const Times& one = begin[at];
    if (one.queued_ticks < begin_ticks)
      continue;  // times of an earlier step: it moved nothing in this one
    const bool first = whole.end_ticks == 0;
    whole.queued_ticks = first ? one.queued_ticks : std::min(whole.queued_ticks, one.queued_ticks);
    whole.start_ticks = first ? one.start_ticks : std::min(whole.start_ticks, one.start_ticks);
    whole.end_ticks = std::max(whole.end_ticks, one.end_ticks);
    whole.bytes += moves_[at].bytes;
  }
  return whole;
}

std::optional<std::uint32_t> Replay::released_by(std::uint64_t position) const {
  const auto chunk = executor_.released_by(position);
  if (!chunk) return std::nullopt;
  const auto after = std::upper_bound(first_.begin(), first_.end(), *chunk);
  return static_cast<std::uint32_t>(after - first_.begin()) - 1;
}

}  // namespace ho::client
