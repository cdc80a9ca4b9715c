// What a job's thread calls. blocks_steps.cpp has what happens in between.
#include "client/blocks/blocks.hpp"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <thread>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"

namespace ho::client {

namespace {

/// For the nodes' answers to match(), on the path of a serving job's scheduler.
constexpr Duration kMatchTimeout = std::chrono::seconds(2);

/// What match() waits for.
struct Pinning {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t left = 0;
  struct Answer {
    bool came = false;
    BlocksPinned pinned;
  };
  std::vector<Answer> answers;  ///< by question

  [[nodiscard]] std::vector<Answer> come() {
    const std::lock_guard lock(mutex);
    return answers;
  }
};

}  // namespace

Blocks::Blocks(Engine& engine, Options options, UniqueFd timer)
    : engine_(engine), options_(std::move(options)), timer_(std::move(timer)), moving_(kMovingMax) {
  for (std::uint32_t i = kMovingMax; i > 0; --i) free_moves_.push_back(i - 1);
}

Result<std::shared_ptr<Blocks>> Blocks::create(Engine& engine, Options options) {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer.valid()) return errno_error(errno, "timerfd_create");
  std::vector<BlocksNode> nodes = std::move(options.nodes);
  std::shared_ptr<Blocks> made(new Blocks(engine, std::move(options), std::move(timer)));
  for (BlocksNode& node : nodes) {
    Node& to = made->nodes_.emplace_back();
    to.id = node.id;
    to.index = node.index;
    to.driver = node.driver;
    to.fault = std::move(node.fault);
    to.store = std::make_shared<Store>();
    to.store->at = std::move(node.store);
  }
  engine.call([&] {
    made->owner_ = engine.reserve_owner();
    engine.attach(made.get(), made->owner_);
  });
  return made;
}

/// @return nullopt: no node is left.
std::optional<std::size_t> Blocks::route(const BlockDigest& key) const {
  std::optional<std::size_t> best;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].fault->reason() != FaultReason::kNone || nodes_[i].store->at.control == nullptr) {
      continue;
    }
    const std::uint64_t weight = block_weight(key, nodes_[i].id);
    if (best && weight <= most) continue;
    best = i;
    most = weight;
  }
  return best;
}

/// Whether a node is to be asked something now. One that is silent gets one try at a time.
bool Blocks::asks(Node& node) {
  if (!node.silent_until) return true;
  const TimePoint now = clock_.now();
  if (now < *node.silent_until) return false;
  node.silent_until = now + kSilence;
  return true;
}

void Blocks::heard(std::size_t node) {
  const std::lock_guard lock(mutex_);
  nodes_[node].silent_until.reset();
}

Result<std::uint64_t> Blocks::submit(BlockOp op, std::span<const BlockItem> items) {
  if (items.empty()) return Error(Errc::kInvalidArgument, "no blocks");
  if (items.size() > kOutstandingMax) {
    return Error(Errc::kInvalidArgument, std::to_string(items.size()) + " blocks; a request has " +
                                             std::to_string(kOutstandingMax) + " at most");
  }
  std::vector<Element> elements(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    Element& element = elements[i];
    element.index = static_cast<std::uint32_t>(i);
    element.item = items[i];
    if (op != BlockOp::kPut) continue;
    element.checksum = checksum128({items[i].data, items[i].bytes}, items[i].name.seed);
  }
  const std::size_t most =
      op == BlockOp::kGet || op == BlockOp::kPut ? kBlocksPerRequest : kBlockKeysMax;
  const std::lock_guard lock(mutex_);
  HO_CHECK(!closing_);
  if (items.size() > kOutstandingMax - outstanding_) {
    return Error(Errc::kBusy, "more than " + std::to_string(kOutstandingMax) +
                                  " blocks are submitted and not drained");
  }
  const bool idle = live_.empty() && done_.empty();
  const bool drained = done_.empty();
  const std::uint64_t ticket = next_ticket_++;
  outstanding_ += items.size();
  std::vector<BatchPtr> filling(nodes_.size());
  for (Element& element : elements) {
    const auto node = route(element.item.name.digest);
    // A removal has to be tried, however long it takes.
    const bool asked =
        node && (filling[*node] != nullptr || op == BlockOp::kRemove || asks(nodes_[*node]));
    if (!asked) {
      const Errc code = failed(op, node ? Errc::kDeadline : Errc::kUnavailable);
      done_.push_back({{ticket, element.index, code}, {}, nullptr, false});
      continue;
    }
    BatchPtr& batch = filling[*node];
    if (batch == nullptr || batch->elements.size() == most) {
      batch = std::make_shared<Batch>();
      batch->op = op;
      batch->ticket = ticket;
      batch->number = next_batch_++;
      batch->node = *node;
      batch->deadline = clock_.now() + options_.deadline;
      live_.emplace(batch->number, batch);
      nodes_[*node].queue.push_back(batch);
    }
    batch->elements.push_back(element);
    batch->open += 1;
  }
  for (Node& node : nodes_) pump(node);
  if (idle || (drained && !done_.empty())) arm();
  return ticket;
}

std::size_t Blocks::drain(std::span<BlockDone> out) {
  std::uint64_t expirations = 0;
  static_cast<void>(::read(timer_.get(), &expirations, sizeof(expirations)) < 0);  // resets it
  std::vector<Outcome> taken;
  {
    const std::lock_guard lock(mutex_);
    expire(clock_.now());
    while (taken.size() < out.size() && !done_.empty()) {
      taken.push_back(std::move(done_.front()));
      done_.pop_front();
    }
    outstanding_ -= taken.size();
    for (Node& node : nodes_) pump(node);
    arm();
  }
  std::map<StorePtr, BlocksSettlement> damaged;
  for (std::size_t i = 0; i < taken.size(); ++i) {
    const Element* const check = taken[i].compare ? taken[i].element : nullptr;
    out[i] = taken[i].done;
    if (check == nullptr) continue;
    const auto found = checksum128({check->item.data, check->item.bytes}, check->item.name.seed);
    if (found == check->checksum) continue;
    out[i].code = Errc::kNotFound;
    damaged[taken[i].batch->store].dropped.push_back(check->id);
  }
  for (const auto& [store, settlement] : damaged) {
    // A block that was evicted meanwhile is not there any more; one that is damaged should go.
    static_cast<void>(store->at.control->settle(settlement, [](const auto&) {}));
  }
  return taken.size();
}

Blocks::Matched Blocks::match(std::span<const BlockName> chain) {
  struct Question {
    std::size_t node = 0;
    StorePtr store;
    std::vector<BlockDigest> keys;
    std::vector<std::size_t> positions;  // in the chain, by key
  };
  std::vector<Question> questions;
  std::vector<std::size_t> filling(nodes_.size(), SIZE_MAX);  // questions by node
  Matched out;
  out.count = std::min(chain.size(), kMatchedMax);
  std::unique_lock own(mutex_);
  for (std::size_t i = 0; i < out.count; ++i) {
    const auto node = route(chain[i].digest);
    if (!node || (filling[*node] == SIZE_MAX && !asks(nodes_[*node]))) {
      out.count = i;
      break;
    }
    std::size_t& at = filling[*node];
    if (at == SIZE_MAX || questions[at].keys.size() == kBlockKeysMax) {
      at = questions.size();
      questions.push_back({*node, nodes_[*node].store, {}, {}});
    }
    questions[at].keys.push_back(chain[i].digest);
    questions[at].positions.push_back(i);
  }
  own.unlock();
  const auto waiting = std::make_shared<Pinning>();
  waiting->answers.resize(questions.size());
  waiting->left = questions.size();
  for (std::size_t at = 0; at < questions.size(); ++at) {
    const Question& one = questions[at];
    const auto told = [weak = weak_from_this(), waiting, at,
                       node = one.node](const Result<BlocksPinned>& answer) {
      {
        const std::lock_guard lock(waiting->mutex);
        waiting->answers[at] = {true, answer ? *answer : BlocksPinned{}};
        waiting->left -= 1;
        waiting->changed.notify_all();
      }
      // Afterwards: who finds no answer calls the node silent.
      if (const auto self = answer ? weak.lock() : nullptr) self->heard(node);
    };
    const auto asked = one.store->at.control->pin(one.keys, options_.pin_time, told);
    if (!asked) told(asked.error());
  }
  {
    // An answer that comes later pins its blocks until their time is over.
    std::unique_lock lock(waiting->mutex);
    waiting->changed.wait_for(lock, kMatchTimeout, [&] { return waiting->left == 0; });
  }
  std::vector<std::pair<StorePtr, std::uint64_t>> pins;
  own.lock();
  const std::vector<Pinning::Answer> answers = waiting->come();
  for (std::size_t at = 0; at < questions.size(); ++at) {
    const Question& one = questions[at];
    const BlocksPinned& pinned = answers[at].pinned;
    if (!answers[at].came) nodes_[one.node].silent_until = clock_.now() + kSilence;
    if (pinned.pin != 0) pins.emplace_back(one.store, pinned.pin);
    if (pinned.count >= one.positions.size()) continue;
    out.count = std::min(out.count, one.positions[pinned.count]);
  }
  if (pins.empty()) return out;
  out.pin = next_pin_++;
  pins_.emplace(out.pin, std::move(pins));
  own.unlock();
  if (out.count == 0) unpin(std::exchange(out.pin, 0));
  return out;
}

bool Blocks::unpin(std::uint64_t pin) {
  std::vector<std::pair<StorePtr, std::uint64_t>> pins;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pins_.find(pin);
    if (found == pins_.end()) return false;
    pins = std::move(found->second);
    pins_.erase(found);
  }
  for (const auto& [store, number] : pins) {
    BlocksSettlement settlement;
    settlement.pins.push_back(number);
    // One that is not heard ends by its time.
    static_cast<void>(store->at.control->settle(settlement, [](const auto&) {}));
  }
  return true;
}

bool Blocks::uses_memory(const LocalHandles& local) {
  const std::lock_guard lock(mutex_);
  const auto same = [&](const BlockItem& item) {
    return item.data != nullptr && item.local == local;
  };
  for (const auto& [number, batch] : live_) {
    const auto& elements = batch->elements;
    if (std::any_of(elements.begin(), elements.end(),
                    [&](const Element& one) { return same(one.item); })) {
      return true;
    }
  }
  return std::any_of(done_.begin(), done_.end(), [&](const Outcome& one) {
    return one.element != nullptr && same(one.element->item);
  });
}

void Blocks::reopened(NodeIndex index, BlocksStore store) {
  auto fresh = std::make_shared<Store>();
  fresh->at = std::move(store);
  std::vector<Retired> ended;  // ends without the lock
  const std::lock_guard lock(mutex_);
  const auto node = std::find_if(nodes_.begin(), nodes_.end(),
                                 [&](const Node& one) { return one.index == index; });
  HO_CHECK(node != nodes_.end() && !closing_);
  for (Retired& one : std::exchange(retired_, {})) {
    const bool unused = one.store.use_count() == 1 && one.store->segments.empty();
    (unused ? ended : retired_).push_back(std::move(one));
  }
  retired_.push_back({node->driver, std::exchange(node->store, std::move(fresh))});
  node->silent_until.reset();  // its daemon has just opened the store
  pump(*node);
  news_.store(true);
  engine_.ring();
}

void Blocks::close() {
  if (on_close_) std::exchange(on_close_, {})();
  std::vector<std::uint64_t> pins;
  {
    const std::lock_guard lock(mutex_);
    HO_CHECK(!closing_);
    closing_ = true;
    for (const auto& [pin, of] : pins_) pins.push_back(pin);
  }
  for (const std::uint64_t pin : pins) unpin(pin);
  while (!engine_.call([&] { return engine_.detach(this); })) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  engine_.call([&] {
    for (Node& node : nodes_) detach_all(node.driver, *node.store);
    for (Retired& one : retired_) detach_all(one.driver, *one.store);
  });
  // They end on this thread: the end of a connection joins its own.
  std::vector<StorePtr> stores;
  const std::lock_guard lock(mutex_);
  live_.clear();
  done_.clear();
  ready_.clear();
  arrivals_.clear();
  for (Node& node : nodes_) {
    node.queue.clear();
    stores.push_back(std::move(node.store));
  }
  for (Retired& one : std::exchange(retired_, {})) stores.push_back(std::move(one.store));
}

/// Sets the timer for the next thing that drain() has to do.
void Blocks::arm() {
  itimerspec when{};
  int flags = 0;
  if (!done_.empty()) {
    when.it_value.tv_nsec = 1;
  } else {
    const auto next = std::find_if(live_.begin(), live_.end(),
                                   [](const auto& one) { return !one.second->expired; });
    if (next != live_.end()) {
      const Duration at = next->second->deadline.time_since_epoch();
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at);
      when.it_value.tv_sec = static_cast<time_t>(seconds.count());
      when.it_value.tv_nsec = static_cast<long>((at - seconds).count());
      flags = TFD_TIMER_ABSTIME;
    }
  }
  HO_CHECK(::timerfd_settime(timer_.get(), flags, &when, nullptr) == 0);
}

}  // namespace ho::client
