#include "tools/importers/pytorch/storage_lives.hpp"

#include <algorithm>

namespace ho::importers {

namespace {

constexpr std::uint32_t bit(Phase phase) { return 1U << static_cast<std::uint32_t>(phase); }

constexpr std::uint32_t kOptimizerOnly = bit(Phase::kOptimizer) | bit(Phase::kZeroGrad);

}  // namespace

std::string phase_name(Phase phase) {
  switch (phase) {
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kOptimizer: return "optimizer";
    case Phase::kZeroGrad: return "zero_grad";
  }
  return "";
}

std::optional<std::uint32_t> StorageLives::current(std::uint64_t storage_id) const {
  const auto at = current_.find(storage_id);
  if (at == current_.end()) return std::nullopt;
  return at->second;
}

std::uint32_t StorageLives::use(const TensorRef& tensor, std::uint64_t extent_bytes,
                                std::uint64_t now, Draft& draft) {
  if (const auto known = current(tensor.storage)) {
    Life& life = lives_[*known];
    // A view may repeat elements, so its element count does not bound the storage.
    if (life.before_step && life.views.count(tensor.tensor) == 0) {
      life.bytes = std::max(life.bytes, extent_bytes);
    }
    return *known;
  }
  const std::uint32_t number =
      begin(tensor, extent_bytes, now, "storage#" + std::to_string(tensor.storage), draft);
  lives_[number].before_step = true;
  return number;
}

std::uint32_t StorageLives::begin(const TensorRef& tensor, std::uint64_t bytes, std::uint64_t now,
                                  const std::string& name, Draft& draft) {
  const auto number = static_cast<std::uint32_t>(lives_.size());
  const auto [at, fresh] = current_.emplace(tensor.storage, number);
  if (!fresh) {
    lives_[at->second].replaced = true;
    at->second = number;
  }
  Life life;
  life.bytes = bytes;
  life.element_bytes = tensor.element_bytes;
  life.born = now;
  Storage storage;
  storage.name = name;
  life.storage = draft.add_storage(std::move(storage));
  lives_.push_back(std::move(life));
  return number;
}

void StorageLives::note_read(std::uint32_t number, std::uint64_t now, Phase phase) {
  Life& life = lives_.at(number);
  if (life.last_read == 0 && life.last_write == 0) life.read_first = true;
  life.last_read = now;
  life.read_phases |= bit(phase);
}

void StorageLives::note_write(std::uint32_t number, std::uint64_t now, Phase phase) {
  Life& life = lives_.at(number);
  life.last_write = now;
  life.write_phases |= bit(phase);
}

void StorageLives::give_kind_before(const Life& life, Storage& storage) const {
  const std::uint32_t phases = life.read_phases | life.write_phases;
  const bool rests = !life.replaced;
  if (!rests) {
    storage.kind = StorageKind::kInput;  // freed within the step
  } else if (life.gradient || (phases & bit(Phase::kZeroGrad)) != 0) {
    storage.kind = StorageKind::kGradient;
    storage.persistent = life.read_first;
  } else if ((phases & ~kOptimizerOnly) == 0) {
    storage.kind = StorageKind::kOptimizerState;
    storage.persistent = true;
  } else if ((life.write_phases & bit(Phase::kOptimizer)) != 0 || life.weight_argument ||
             is_like_a_gradient(life)) {
    storage.kind = StorageKind::kWeight;
    storage.persistent = true;
  } else if (!life.read_first) {
    storage.kind = StorageKind::kActivation;  // its old value is never read
  } else if (life.write_phases != 0) {
    storage.kind = has_backward_ ? StorageKind::kWeight : StorageKind::kKvCache;
    storage.persistent = true;
  } else if (has_backward_ || !life.later_argument) {
    storage.kind = StorageKind::kInput;
  } else {
    storage.kind = StorageKind::kWeight;
    storage.persistent = true;
  }
}

void StorageLives::give_kind_within(const Life& life, Storage& storage, Draft& draft) const {
  const std::uint32_t phases = life.read_phases | life.write_phases;
  const bool like_a_weight = is_like_a_gradient(life);
  if (life.zeroed_by_optimizer && !life.replaced && like_a_weight &&
      (phases & ~kOptimizerOnly) == 0) {
    // The first step of the optimizer creates its state; every later step finds it.
    storage.kind = StorageKind::kOptimizerState;
    storage.persistent = true;
    for (const std::uint32_t op : life.setters) {
      if (draft.ops()[op].writes.size() == 1) draft.drop_op(op);
    }
  } else if (life.accumulated || ((life.read_phases & bit(Phase::kOptimizer)) != 0 &&
                                  (life.write_phases & bit(Phase::kBackward)) != 0)) {
    storage.kind = StorageKind::kGradient;
  } else {
    storage.kind = StorageKind::kActivation;
  }
}

void StorageLives::give_kinds(Draft& draft) {
  for (const Life& life : lives_) {
    if (life.accumulated || life.gradient) gradients_.emplace(life.bytes, life.element_bytes);
    has_backward_ = has_backward_ || (life.write_phases & bit(Phase::kBackward)) != 0;
  }
  for (const Life& life : lives_) {
    Storage& storage = draft.storage(life.storage);
    // Accessed only by calls that are not ops: sizes, views.
    const bool accessed = life.last_read != 0 || life.last_write != 0;
    if (life.before_step && accessed) give_kind_before(life, storage);
    if (!life.before_step) give_kind_within(life, storage, draft);
    storage.bytes = life.bytes;
  }
}

}  // namespace ho::importers
