#include "tests/sim/flash/flash_world.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"
#include "daemon/tier/flash/device/cipher/cipher_device.hpp"
#include "tests/support/flash_ops.hpp"

namespace ho::test {

using flash::ExtentId;
using flash::kBlockBytes;
using flash::Policy;

namespace {

constexpr std::size_t kContentsMax = 128;

}  // namespace

/// Some worlds have encrypted paths, each with its own key.
FlashWorld::FlashWorld(std::uint64_t seed) : random_(seed), encrypted_(seed % 3 == 0) {
  const std::uint64_t count = 1 + random_.below(3);
  for (std::uint64_t i = 0; i < count; ++i) {
    disks_.push_back(std::make_shared<SimDisk>(kMiB + random_.below(256) * kBlockBytes));
    disks_.back()->garble();
  }
}

std::unique_ptr<flash::Device> FlashWorld::covered(std::unique_ptr<flash::Device> device) const {
  if (!encrypted_) return device;
  std::vector<std::optional<flash::PathKey>> keys;
  for (std::size_t i = 0; i < disks_.size(); ++i) {
    std::array<std::byte, flash::PathKey::kBytes> bytes{};
    bytes[0] = static_cast<std::byte>(i + 1);
    keys.emplace_back(flash::PathKey(bytes));
  }
  return flash::make_cipher_device(std::move(device), std::move(keys));
}

void FlashWorld::complain(const std::string& what) {
  if (wrong_.empty()) wrong_ = what;
}

bool FlashWorld::open(const SimFlashFaults& faults) {
  auto device = std::make_unique<SimFlash>(disks_, random_.next(), faults);
  device_ = device.get();
  flash::ExtentStore::Options options;
  options.ops_max = 4 + random_.below(28);
  options.bounce_buffers = 1 + random_.below(2);
  options.salt = ++salt_;
  options.time = std::chrono::sys_days(std::chrono::days(1));
  options.frame_data_bytes_min = kBlockBytes << random_.below(6);
  options.new_set[0] = std::byte{7};
  faulty_ = faults.io_error > 0 || faults.no_space > 0 || faults.dies_after != UINT64_MAX;
  // The device ends with the store that did not open. Its effects on the disks stay.
  findings_.clear();
  auto store = flash::ExtentStore::open(covered(std::move(device)), options, findings_);
  if (!store) {
    open_error_ = store.error().message();
    device_ = nullptr;
    return false;
  }
  store_ = std::move(*store);
  store_->check_space();
  return true;
}

void FlashWorld::run(std::size_t actions) {
  for (std::size_t i = 0; i < actions && !device_->dead() && wrong_.empty(); ++i) {
    act();
    if (random_.below(2) == 0) pump();
  }
}

void FlashWorld::act() {
  const std::uint64_t dice = random_.below(100);
  if (dice < 12) return create();
  if (dice < 60) return transfer(Action::Kind::kWrite);
  if (dice < 85) return transfer(Action::Kind::kRead);
  if (dice < 90) return free_one();
  if (dice < 91) return end_session();
  if (dice < 93) return store_->seal();
  for (std::uint64_t i = random_.below(20); i > 0; --i) pump();
}

void FlashWorld::create() {
  flash::ExtentSpec spec;
  spec.session = (salt_ << 32U) + session_;
  spec.access = random_.next();
  spec.label = "object " + std::to_string(random_.below(100));
  const std::uint64_t most = random_.below(4) == 0 ? 2 * kMiB : 64 * kKiB;
  spec.length_bytes = 1 + random_.below(most);
  spec.policy = random_.below(4) == 0 ? Policy::kScratch : Policy::kDurable;
  const auto made = store_->create(spec);
  if (!made) {
    const Errc code = made.error().code();
    if (code == Errc::kExhausted || code == Errc::kBusy || (faulty_ && code == Errc::kIo)) return;
    return complain("create: " + made.error().message());
  }
  Model model;
  model.spec = spec;
  model.blocks.assign((spec.length_bytes - 1) / kBlockBytes + 1, Contents{nullptr});
  if (!models_.emplace(*made, std::move(model)).second) complain("an extent id was used twice");
}

FlashWorld::Model* FlashWorld::pick() {
  if (models_.empty()) return nullptr;
  auto at = models_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(models_.size())));
  return &at->second;
}

void FlashWorld::transfer(Action::Kind kind) {
  if (models_.empty()) return;
  auto at = models_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(models_.size())));
  const std::uint64_t length = at->second.spec.length_bytes;
  Action action;
  action.kind = kind;
  action.extent = at->first;
  action.offset = random_.below(length);
  // Mostly small sizes: faults are likeliest at edges, and bytes take time.
  const std::uint64_t most = random_.below(8) == 0 ? 300 * kKiB : 24 * kKiB;
  action.length = 1 + random_.below(std::min(length - action.offset, most));
  if (random_.below(2) == 0) {
    action.offset = action.offset / kBlockBytes * kBlockBytes;
    action.length = length - action.offset;
    if (action.length > kBlockBytes) action.length = action.length / kBlockBytes * kBlockBytes;
    if (random_.below(8) != 0) action.length = std::min(action.length, 4 * kBlockBytes);
  }
  action.memory.resize(action.length + 2 * kBlockBytes);
  const auto address = reinterpret_cast<std::uintptr_t>(action.memory.data());
  const std::size_t aligned = kBlockBytes - address % kBlockBytes;
  action.begin = action.memory.data() + aligned + (random_.below(4) == 0 ? 1 : 0);
  if (kind == Action::Kind::kWrite) {
    Prng bytes(random_.next());
    for (std::size_t i = 0; i < action.length; i += 8) {
      const std::uint64_t word = bytes.next();
      std::memcpy(action.begin + i, &word, std::min<std::size_t>(8, action.length - i));
    }
  }
  const OpId op(next_op_);
  const auto accepted = kind == Action::Kind::kWrite
                            ? store_->submit(write_op(op, action.extent, action.offset,
                                                      {action.begin, action.length}))
                            : store_->submit(read_op(op, action.extent, action.offset,
                                                     {action.begin, action.length}));
  if (accepted) {
    if (at->second.ending) complain("an extent that is being freed took an operation");
    actions_.emplace(next_op_++, std::move(action));
    return;
  }
  const Errc code = accepted.error().code();
  const bool gone = at->second.ending && code == Errc::kNotFound;
  if (gone || code == Errc::kBusy || (faulty_ && code == Errc::kIo)) return;
  complain("submit: " + accepted.error().message());
}

void FlashWorld::free_one() {
  if (models_.empty()) return;
  auto at = models_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(models_.size())));
  Action action;
  action.kind = Action::Kind::kFree;
  action.extent = at->first;
  if (!store_->submit(flash::FreeOp{OpId(next_op_), at->first}).ok()) return;
  if (at->second.ending) complain("an extent was freed twice");
  at->second.ending = true;
  actions_.emplace(next_op_++, std::move(action));
}

void FlashWorld::end_session() {
  drain();
  if (device_->dead()) return;
  store_->end_session((salt_ << 32U) + session_);
  std::erase_if(models_, [&](const auto& entry) {
    return entry.second.spec.policy == Policy::kScratch &&
           entry.second.spec.session == (salt_ << 32U) + session_;
  });
  ++session_;
}

void FlashWorld::pump() {
  std::array<flash::StoreCompletion, 3> done;
  const std::size_t count = store_->poll(done);
  for (std::size_t i = 0; i < count; ++i) settle(done[i]);
}

void FlashWorld::drain() {
  for (int i = 0; i < 100000 && !actions_.empty() && !device_->dead(); ++i) pump();
  if (!actions_.empty() && !device_->dead()) complain("an operation never ended");
}

void FlashWorld::settle(const flash::StoreCompletion& completion) {
  const auto found = actions_.find(completion.done.op.value());
  if (found == actions_.end()) return complain("a completion without an operation");
  // Acknowledgements after the cut do not count, since no process exists to receive them.
  if (device_->dead()) return;
  const Action action = std::move(found->second);
  const Errc code = completion.done.code;
  if (code != Errc::kOk) ++failures_;
  actions_.erase(found);
  if (action.kind == Action::Kind::kFree) {
    if (code == Errc::kOk) {
      models_.erase(action.extent);
    } else {
      models_.at(action.extent).sure = false;  // it may or may not be freed
    }
    if (code != Errc::kOk && !faulty_) complain("free failed");
    return;
  }
  if (code == Errc::kOk && completion.done.moved_bytes != action.length) {
    complain("moved_bytes is wrong");
  }
  if (action.kind == Action::Kind::kWrite) return settle_write(action, code);
  settle_read(action, completion);
}

FlashWorld::Contents FlashWorld::after_write(const Contents& before, const Action& action,
                                             std::uint64_t block) {
  const std::uint64_t begin = block * kBlockBytes;
  const std::uint64_t from = std::max(begin, action.offset);
  const std::uint64_t to = std::min(begin + kBlockBytes, action.offset + action.length);
  const bool whole = from == begin && to == begin + kBlockBytes;
  if (before.empty() && !whole) return {};
  Contents out;
  const Contents unknown{nullptr};
  for (const Content& old : before.empty() ? unknown : before) {
    auto made = old ? *old : std::vector<std::byte>(kBlockBytes);
    // action.begin points into the memory that moved with the action.
    std::memcpy(made.data() + (from - begin), action.begin + (from - action.offset), to - from);
    out.push_back(std::make_shared<const std::vector<std::byte>>(std::move(made)));
    if (whole) break;
  }
  return out;
}

/// Each write that may or may not have happened doubles the possible contents of a block. Beyond a
/// limit, the model ignores the block until it is written whole.
void FlashWorld::allow_too(Contents& may, const Contents& more) {
  const bool known = !may.empty() && !more.empty() && may.size() + more.size() <= kContentsMax;
  if (!known) return may.clear();
  may.insert(may.end(), more.begin(), more.end());
}

void FlashWorld::settle_write(const Action& action, Errc code) {
  Model& model = models_.at(action.extent);
  if (code != Errc::kOk && code != Errc::kExhausted && !faulty_ && !model.flipped) {
    complain("write: " + std::string(errc_name(code)));
  }
  const bool durable = model.spec.policy == Policy::kDurable;
  if (code == Errc::kOk && durable) {
    model.sure = true;
    ++acknowledged_;
    last_extent_ = action.extent;
    last_block_ = action.offset / kBlockBytes;
  }
  const std::uint64_t last = (action.offset + action.length - 1) / kBlockBytes;
  for (std::uint64_t block = action.offset / kBlockBytes; block <= last; ++block) {
    Contents after = after_write(model.blocks[block], action, block);
    if (code == Errc::kOk) {
      model.blocks[block] = std::move(after);
    } else {
      allow_too(model.blocks[block], after);
    }
  }
}

/// `bytes` are `count` bytes of the block from `first` on.
void FlashWorld::check_block(Model& model, std::uint64_t block, const std::byte* bytes,
                             std::uint64_t first, std::uint64_t count) {
  const Contents& may = model.blocks[block];
  const bool known =
      may.empty() || std::any_of(may.begin(), may.end(), [&](const Content& content) {
        return content && std::memcmp(content->data() + first, bytes, count) == 0;
      });
  if (!known) complain("a block has contents that were never written to it");
}

void FlashWorld::settle_read(const Action& action, const flash::StoreCompletion& completion) {
  Model& model = models_.at(action.extent);
  const std::uint64_t first = action.offset / kBlockBytes;
  const std::uint64_t last = (action.offset + action.length - 1) / kBlockBytes;
  switch (completion.done.code) {
    case Errc::kOk: break;
    case Errc::kNotFound: {
      const std::uint64_t block = completion.fault.block;
      if (block < first || block > last)
        return complain("a fault was reported outside the operation");
      const Contents& may = model.blocks[block];
      if (!may.empty() && std::find(may.begin(), may.end(), nullptr) == may.end()) {
        complain("a written block was not found");
      }
      return;
    }
    case Errc::kCorrupt: {
      ++corrupt_reads_;
      const bool expected = model.flipped && completion.fault.block == model.flipped_block;
      // A failed scratch write leaves its blocks undefined.
      if (!expected && !(faulty_ && model.spec.policy == Policy::kScratch)) {
        complain("corrupt: " + store_->describe(completion.fault));
      }
      return;
    }
    default:
      if (!faulty_) complain("read: " + std::string(errc_name(completion.done.code)));
      return;
  }
  for (std::uint64_t block = first; block <= last; ++block) {
    const std::uint64_t begin = block * kBlockBytes;
    const std::uint64_t from = std::max(begin, action.offset);
    const std::uint64_t to = std::min(begin + kBlockBytes, action.offset + action.length);
    check_block(model, block, action.begin + (from - action.offset), from - begin, to - from);
  }
}

void FlashWorld::forget_after_crash() {
  // Blocks may already have the contents of writes in flight, in the order of submission.
  for (const auto& [op, action] : actions_) {
    const auto found = models_.find(action.extent);
    if (found == models_.end()) continue;
    if (action.kind == Action::Kind::kFree) found->second.sure = false;
    if (action.kind != Action::Kind::kWrite) continue;
    const std::uint64_t last = (action.offset + action.length - 1) / kBlockBytes;
    for (std::uint64_t block = action.offset / kBlockBytes; block <= last; ++block) {
      Contents& may = found->second.blocks[block];
      allow_too(may, after_write(may, action, block));
    }
  }
  actions_.clear();
  std::erase_if(models_,
                [](const auto& entry) { return entry.second.spec.policy == Policy::kScratch; });
}

void FlashWorld::crash(Crash how) {
  if (store_) {
    if (!device_->dead() && how == Crash::kPowerCut) device_->cut();
    if (!device_->dead()) device_->kill();
    // Waits for the operations in flight, so that the store can be destroyed.
    for (int i = 0; i < 50; ++i) pump();
    store_.reset();
  }
  device_ = nullptr;
  forget_after_crash();
}

void FlashWorld::rest() {
  drain();
  store_->seal();
  for (int i = 0; i < 200; ++i) pump();
}

void FlashWorld::close() {
  drain();
  if (const auto closed = store_->close(); !closed) complain("close: " + closed.error().message());
  store_->check_space();
  store_.reset();
  device_ = nullptr;
  forget_after_crash();
}

void FlashWorld::verify_extent(ExtentId id, Model& model) {
  std::vector<std::byte> memory(model.spec.length_bytes + kBlockBytes);
  for (std::uint64_t block = 0; block < model.blocks.size(); ++block) {
    Action action;
    action.extent = id;
    action.offset = block * kBlockBytes;
    action.length = std::min<std::uint64_t>(kBlockBytes, model.spec.length_bytes - action.offset);
    action.memory.resize(kBlockBytes);
    action.begin = action.memory.data();
    const OpId op(next_op_);
    const auto accepted =
        store_->submit(read_op(op, id, action.offset, {action.begin, action.length}));
    if (!accepted) return complain("verify: " + accepted.error().message());
    actions_.emplace(next_op_++, std::move(action));
    flash::StoreCompletion done;
    int turns = 0;
    while (store_->poll(std::span(&done, 1)) == 0 && ++turns < 10000) {
    }
    if (turns >= 10000) return complain("verify: a read never ended");
    // From now on the contents must not change.
    const Action finished = actions_.at(op.value());
    settle(done);
    Contents now;
    for (const Content& may : model.blocks[block]) {
      const bool is =
          done.done.code == Errc::kOk
              ? may && std::memcmp(may->data(), finished.memory.data(), finished.length) == 0
              : may == nullptr;
      if (is) {
        now = {may};
        break;
      }
    }
    if (done.done.code != Errc::kCorrupt) model.blocks[block] = now;
  }
}

void FlashWorld::verify() {
  store_->check_space();
  std::map<ExtentId, flash::ExtentInfo> there;
  for (const flash::ExtentInfo& info : store_->extents()) there.emplace(info.id, info);
  for (const auto& [id, info] : there) {
    const auto known = models_.find(id);
    if (known == models_.end()) {
      complain("a phantom: extent " + std::to_string(id.value()));
    } else if (known->second.spec.label != info.about.label ||
               known->second.spec.length_bytes != info.length_bytes) {
      complain("an extent changed its identity");
    }
  }
  for (auto at = models_.begin(); at != models_.end() && wrong_.empty();) {
    if (there.count(at->first) == 0) {
      if (at->second.sure) complain("extent " + std::to_string(at->first.value()) + " is lost");
      at = models_.erase(at);
      continue;
    }
    at->second.sure = true;
    at->second.ending = false;
    verify_extent(at->first, at->second);
    ++at;
  }
}

/// Flips one bit of this block of an extent; of a random written block if block or extent is not
/// given.
bool FlashWorld::flip_block(ExtentId wanted, std::optional<std::uint64_t> extent_block) {
  HO_CHECK(!store_);
  const auto device = covered(std::make_unique<SimFlash>(disks_, 1, SimFlashFaults()));
  flash::BlockingIo io(*device);
  flash::Findings ignored;
  for (std::uint16_t path = 0; path < disks_.size(); ++path) {
    auto volume = flash::recover(io, flash::PathIndex(path), ignored);
    if (!volume) {
      complain("recover: " + volume.error().message());
      return false;
    }
    for (const auto& [id, shard] : volume->table.shards()) {
      const auto model = models_.find(id);
      const flash::Striping striping(id, static_cast<std::uint16_t>(disks_.size()));
      for (std::uint32_t block = 0; block < shard.blocks(); ++block) {
        const std::uint64_t of_extent = striping.extent_block(flash::PathIndex(path), block);
        if (shard.sums[block] == 0 || model == models_.end()) continue;
        if (extent_block ? id != wanted || of_extent != *extent_block : random_.below(4) != 0) {
          continue;
        }
        const std::uint64_t begin = volume->geometry.data_offset(shard.physical[block]);
        disks_[path]->flip(begin + random_.below(kBlockBytes),
                           static_cast<unsigned>(random_.below(8)));
        model->second.flipped = true;
        model->second.flipped_block = of_extent;
        return true;
      }
    }
  }
  return false;
}

bool FlashWorld::flip_data_bit() { return flip_block(ExtentId(), std::nullopt); }
bool FlashWorld::flip_last_write() { return flip_block(last_extent_, last_block_); }

void FlashWorld::flip_metadata_bit(std::size_t copy) {
  HO_CHECK(!store_);
  SimDisk& disk = *disks_[random_.below(disks_.size())];
  const auto geometry = flash::plan_geometry(disk.size());
  HO_CHECK(geometry.ok());
  const std::uint64_t bytes = kBlockBytes + 2 * geometry->area_bytes;
  const std::uint64_t begin = copy == 0 ? 0 : disk.size() - bytes;
  for (int i = 0; i < 50; ++i) {
    disk.flip(begin + random_.below(bytes), static_cast<unsigned>(random_.below(8)));
  }
}

}  // namespace ho::test
