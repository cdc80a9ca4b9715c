#include "tools/compare/lru.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/contains.hpp"
#include "common/base/units.hpp"
#include "tools/compare/resident.hpp"

namespace ho::gpt {
namespace {

constexpr std::uint64_t kBounceBytes = 4 * kMiB;
/// Cleaning goes by parts of this size: a request waits for one of them at most.
constexpr std::uint64_t kCleanBytes = kMiB;
/// The next victims are kept clean, up to this part of the arena. Source: own measurement, 2026-11,
/// 6 layers of width 512 at 60 %: at a quarter the waits fall to a third or less, and not a byte
/// more is written than by write-backs on eviction alone.
constexpr std::uint64_t kCleanShare = 4;

}  // namespace

Result<std::unique_ptr<Lru>> Lru::create(const Model& model, hyperoffload::Pool& pool,
                                         const Arena& arena) {
  const LargestOp largest = largest_op(model);
  if (largest.bytes > arena.bytes()) {
    return Error(Errc::kOutOfRange, "op " + model.graph.ops[largest.op.value()].name + " needs " +
                                        format_bytes(largest.bytes) +
                                        " of device memory, the budget is " +
                                        format_bytes(arena.bytes()));
  }
  std::unique_ptr<Lru> lru(new Lru(model, pool, arena));
  auto opened = lru->open();
  if (!opened) return opened.error();
  return lru;
}

Lru::Lru(const Model& model, hyperoffload::Pool& pool, const Arena& arena)
    : model_(model), pool_(pool), arena_(arena), cache_(model.graph, arena.bytes()) {
  constexpr std::size_t kNever = SIZE_MAX;
  std::vector<std::size_t> last(model.graph.storages.size(), kNever);
  for (std::size_t o = 0; o < model.ops.size(); ++o) {
    for (const StorageIndex s : model.ops[o].operands) last[s.value()] = o;
  }
  dies_after_.resize(model.ops.size());
  for (std::uint32_t s = 0; s < last.size(); ++s) {
    if (!model.graph.storages[s].persistent && last[s] != kNever) {
      dies_after_[last[s]].push_back(StorageIndex(s));
    }
  }
}

Result<void> Lru::open() {
  std::uint64_t end = 0;
  for (const Storage& storage : model_.graph.storages) {
    home_bytes_.push_back(end);
    if (storage.kind != StorageKind::kWorkspace) end += align_up(storage.bytes, 64);
  }
  auto bounce = Arena::create(kBounceBytes);
  if (!bounce) return bounce.error();
  bounce_ = std::move(bounce).value();
  auto opened = guarded([&] {
    home_ = std::make_unique<hyperoffload::Allocation>(pool_.allocate(end));
    pool_.register_memory(bounce_->data(), bounce_->bytes());
    registered_ = true;
    pool_.register_memory(arena_.data(), arena_.bytes());
  });
  if (!opened) return opened;
  mover_ = std::thread([this] { serve(); });
  return {};
}

Lru::~Lru() {
  if (mover_.joinable()) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !request_; });
      request_ = Request{};
    }
    changed_.notify_all();
    mover_.join();
  }
  if (registered_) {  // nothing can be done about an error here; ho_disconnect() ends what is left
    ho_unregister(pool_.get(), bounce_->data());
    ho_unregister(pool_.get(), arena_.data());
  }
}

std::uint32_t Lru::position_count() const { return static_cast<std::uint32_t>(model_.ops.size()); }

std::uint64_t Lru::bytes_of(StorageIndex storage) const {
  return model_.graph.storages[storage.value()].bytes;
}

void Lru::post(const Request& request) {
  {
    const std::lock_guard lock(mutex_);
    HO_CHECK(!request_);
    request_ = request;
  }
  changed_.notify_all();
}

Result<void> Lru::await_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !request_; });
  if (failure_) return *failure_;
  return {};
}

Result<void> Lru::fill(StorageIndex storage, std::span<const std::byte> value) {
  HO_CHECK(value.size() == bytes_of(storage));
  const SteadyClock clock;
  const TimePoint start = clock.now();
  auto idle = await_idle();
  if (!idle) return idle;
  post(Request{Wish::kFill, 0, 0, storage, value});
  idle = await_idle();
  const std::lock_guard lock(mutex_);
  usage_.stall_ns += static_cast<std::uint64_t>((clock.now() - start).count());
  return idle;
}

Result<void> Lru::before(std::uint32_t position) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  auto idle = await_idle();
  if (!idle) return idle;
  bool ready = false;
  {
    const std::lock_guard lock(mutex_);
    ready = ready_op_ == position;
  }
  if (!ready) {
    post(Request{Wish::kNow, position, position, {}, {}});
    idle = await_idle();
    if (!idle) return idle;
  }
  current_.clear();
  {
    const std::lock_guard lock(mutex_);
    HO_CHECK(ready_op_ == position);
    for (const std::uint64_t offset : ready_offsets_) current_.push_back(arena_.data() + offset);
    usage_.stall_ns += static_cast<std::uint64_t>((clock.now() - start).count());
  }
  const bool last = position + 1 == position_count();
  post(
      Request{last ? Wish::kAheadOfStep : Wish::kAhead, last ? 0 : position + 1, position, {}, {}});
  return {};
}

void* Lru::operand(std::uint32_t position, StorageIndex storage) {
  const std::vector<StorageIndex>& operands = model_.ops[position].operands;
  const auto found = std::find(operands.begin(), operands.end(), storage);
  HO_CHECK(found != operands.end());
  return current_[static_cast<std::size_t>(found - operands.begin())];
}

Result<void> Lru::after(std::uint32_t) { return {}; }

Result<Usage> Lru::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

void Lru::serve() {
  pthread_setname_np(pthread_self(), "lru-mover");
  while (true) {
    const Request request = next_request();
    std::optional<Error> failure;
    if (request.wish != Wish::kStop) {
      auto done = guarded([&] { carry_out(request); });
      if (!done) failure = done.error().at(model_.graph.storages[moving_.value()].name);
    }
    {
      const std::lock_guard lock(mutex_);
      request_.reset();
      if (failure) failure_ = failure;
      usage_.peak_device_bytes = cache_.peak_bytes();
    }
    changed_.notify_all();
    if (request.wish == Wish::kStop) return;
  }
}

/// Waits for a request, and cleans meanwhile.
Lru::Request Lru::next_request() {
  std::unique_lock lock(mutex_);
  bool more = !failure_;
  while (!request_) {
    if (!more) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    auto cleaned = guarded([&] { return clean_some(); });
    lock.lock();
    if (!cleaned) failure_ = cleaned.error().at(model_.graph.storages[moving_.value()].name);
    more = cleaned && *cleaned;
  }
  return *request_;
}

/// Writes a part of the next victim home. Unpinned storages are not operands of a running kernel:
/// the job starts none before it has posted the request that this thread then takes.
/// @return false: nothing is to be cleaned.
bool Lru::clean_some() {
  const auto victim = cache_.next_to_clean(arena_.bytes() / kCleanShare);
  if (!victim) return false;
  const std::uint64_t version = cache_.version(*victim);
  if (!cleaning_ || cleaning_->storage != *victim || cleaning_->version != version) {
    cleaning_ = Cleaning{*victim, version, 0};
  }
  const std::uint64_t at = cleaning_->done_bytes;
  const std::uint64_t bytes = std::min(kCleanBytes, bytes_of(*victim) - at);
  const std::byte* const from = arena_.data() + cache_.offset_bytes(*victim) + at;
  moving_ = *victim;
  pool_.wait(pool_.put(*home_, home_bytes_[victim->value()] + at, from, bytes));
  cleaning_->done_bytes += bytes;
  if (cleaning_->done_bytes == bytes_of(*victim)) {
    cache_.mark_clean(*victim);
    cleaning_.reset();
  }
  const std::lock_guard lock(mutex_);
  usage_.store_bytes += bytes;
  return true;
}

void Lru::carry_out(const Request& request) {
  if (request.wish == Wish::kFill) {
    write_home(request.storage, request.value);
  } else {
    prepare(request);
  }
}

void Lru::write_home(StorageIndex storage, std::span<const std::byte> value) {
  cache_.drop(storage);
  moving_ = storage;
  for (std::uint64_t at = 0; at < value.size(); at += kBounceBytes) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kBounceBytes, value.size() - at);
    std::memcpy(bounce_->data(), value.data() + at, bytes);
    pool_.wait(pool_.put(*home_, home_bytes_[storage.value()] + at, bounce_->data(), bytes));
  }
}

void Lru::drop_dead(std::uint32_t finished_op) {
  for (const StorageIndex storage : dies_after_[finished_op]) cache_.drop(storage);
}

void Lru::start_writes(const std::vector<LruCache::Eviction>& evictions) {
  for (const LruCache::Eviction& eviction : evictions) {
    if (!eviction.dirty) continue;
    const std::uint64_t bytes = bytes_of(eviction.storage);
    moving_ = eviction.storage;
    const std::uint64_t ticket = pool_.put(*home_, home_bytes_[eviction.storage.value()],
                                           arena_.data() + eviction.offset_bytes, bytes);
    reading_.push_back(Reading{eviction.offset_bytes, eviction.offset_bytes + align_up(bytes, 64),
                               ticket, eviction.storage});
    const std::lock_guard lock(mutex_);
    usage_.store_bytes += bytes;
  }
}

void Lru::await_reads_of(std::uint64_t begin, std::uint64_t end) {
  for (std::size_t i = 0; i < reading_.size();) {
    if (reading_[i].begin >= end || begin >= reading_[i].end) {
      ++i;
      continue;
    }
    const Reading done = reading_[i];
    reading_.erase(reading_.begin() + static_cast<std::ptrdiff_t>(i));
    await(done.ticket, done.storage);
  }
}

void Lru::await(std::uint64_t ticket, StorageIndex storage) {
  moving_ = storage;
  pool_.wait(ticket);
}

void Lru::await_transfers() {
  await_reads_of(0, arena_.bytes());
  while (!fetching_.empty()) {
    const Fetching done = fetching_.back();
    fetching_.pop_back();
    await(done.ticket, done.storage);
  }
}

void Lru::fetch(StorageIndex storage) {
  const std::uint64_t offset = cache_.offset_bytes(storage);
  const std::uint64_t bytes = bytes_of(storage);
  moving_ = storage;
  const std::uint64_t ticket =
      pool_.get(*home_, home_bytes_[storage.value()], arena_.data() + offset, bytes);
  fetching_.push_back(Fetching{ticket, storage});
  const std::lock_guard lock(mutex_);
  usage_.prefetch_bytes += bytes;
}

bool Lru::place_missing(const Request& request) {
  const Op& op = model_.graph.ops[request.op];
  std::vector<StorageIndex> placed;
  bool complete = true;
  for (const StorageIndex storage : model_.ops[request.op].operands) {
    if (cache_.resident(storage)) {
      cache_.touch(storage);
      continue;
    }
    if (request.wish == Wish::kAheadOfStep &&
        model_.graph.storages[storage.value()].kind == StorageKind::kInput) {
      complete = false;
      continue;
    }
    const auto placement = cache_.place(storage);
    if (!placement) {
      complete = false;
      break;
    }
    start_writes(placement->evictions);
    placed.push_back(storage);
  }
  // All write-backs are under way; each operand waits only for those of its own bytes.
  for (const StorageIndex storage : placed) {
    const std::uint64_t begin = cache_.offset_bytes(storage);
    await_reads_of(begin, begin + align_up(bytes_of(storage), 64));
    if (contains(op.reads, storage)) fetch(storage);
  }
  await_transfers();
  return complete;
}

void Lru::make_room() {
  start_writes(cache_.evict_unpinned());
  await_transfers();
  for (const LruCache::Move& move : cache_.compact()) {
    std::memmove(arena_.data() + move.to_bytes, arena_.data() + move.from_bytes,
                 bytes_of(move.storage));
  }
}

void Lru::prepare(const Request& request) {
  {
    const std::lock_guard lock(mutex_);
    ready_op_.reset();
  }
  // Everything before the running op is done; its dead values free their bytes.
  const auto count = position_count();
  const bool beside = request.wish != Wish::kNow;
  drop_dead((request.running + count - 1) % count);
  cache_.unpin_all();
  for (const StorageIndex storage : model_.ops[request.op].operands) cache_.pin(storage);
  if (beside) {
    for (const StorageIndex storage : model_.ops[request.running].operands) cache_.pin(storage);
  }
  bool complete = place_missing(request);
  if (!complete && !beside) {
    // No window fits though the operands do: the pinned ones lie scattered.
    make_room();
    complete = place_missing(request);
    HO_CHECK(complete);  // create() has seen that one op's operands fit
  }
  if (!complete) return;
  for (const StorageIndex storage : model_.graph.ops[request.op].writes) {
    cache_.mark_dirty(storage);
  }
  const std::lock_guard lock(mutex_);
  ready_op_ = request.op;
  ready_offsets_.clear();
  for (const StorageIndex storage : model_.ops[request.op].operands) {
    ready_offsets_.push_back(cache_.offset_bytes(storage));
  }
}

}  // namespace ho::gpt
