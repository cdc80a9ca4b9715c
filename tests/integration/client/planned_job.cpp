#include "tests/integration/client/planned_job.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "proto/convert.hpp"

namespace ho::test {
namespace {

using schedule::Access;

void fill(std::span<std::byte> into, std::uint64_t seed) {
  Prng stream(seed);
  for (std::size_t i = 0; i < into.size(); i += 8) {
    const std::uint64_t word = stream.next();
    std::memcpy(into.data() + i, &word, std::min<std::size_t>(8, into.size() - i));
  }
}

}  // namespace

PlannedJob::PlannedJob(ho_pool* pool, const schedule::Schedule& schedule, std::uint64_t seed)
    : schedule_(schedule), seed_(seed) {
  const std::size_t bytes = align_up(schedule.arena_bytes, 4096);
  arena_ = std::aligned_alloc(4096, bytes);
  HO_CHECK(arena_ != nullptr);
  std::memset(arena_, 0xa5, bytes);
  const std::string encoded = encode_schedule(schedule);
  (void)keep(ho_load(pool, encoded.data(), encoded.size(), arena_, bytes, &runtime_));
  for (std::size_t i = 0; i < schedule.storages.size(); ++i) {
    model_.emplace_back(schedule.storages[i].bytes);
    fill(model_.back(), seed + i);
  }
}

PlannedJob::~PlannedJob() {
  ho_unload(runtime_);
  std::free(arena_);
}

ho_status PlannedJob::keep(ho_status status) {
  if (status != HO_OK && error_.empty()) {
    error_ = std::string(ho_status_name(status)) + ": " + ho_last_error();
  }
  return status;
}

ho_status PlannedJob::supply(bool inputs) {
  for (std::size_t i = 0; i < schedule_.storages.size(); ++i) {
    const Storage& storage = schedule_.storages[i];
    const bool input = !storage.persistent && storage.kind == StorageKind::kInput;
    if (inputs ? !input : !storage.persistent) continue;
    if (input) fill(model_[i], seed_ + 1000 * step_ + i);
    const auto status = keep(ho_write(runtime_, storage.id, model_[i].data(), model_[i].size()));
    if (status != HO_OK) return status;
  }
  return HO_OK;
}

ho_status PlannedJob::begin_step() {
  if (step_ == 0) {
    if (const auto status = supply(false); status != HO_OK) return status;
  }
  if (const auto status = supply(true); status != HO_OK) return status;
  return keep(ho_step_begin(runtime_));
}

ho_status PlannedJob::run(std::uint64_t steps) {
  if (runtime_ == nullptr) return HO_INVALID_ARGUMENT;
  for (std::uint64_t i = 0; i < steps; ++i, ++step_) {
    if (const auto status = begin_step(); status != HO_OK) return status;
    for (std::uint32_t p = 0; p < ho_position_count(runtime_); ++p) {
      if (const auto status = keep(ho_before(runtime_, p)); status != HO_OK) return status;
      run_op(p);
      if (const auto status = keep(ho_after(runtime_, p)); status != HO_OK) return status;
    }
    if (const auto status = keep(ho_step_end(runtime_)); status != HO_OK) return status;
  }
  return HO_OK;
}

void PlannedJob::run_op(std::uint32_t position) {
  std::uint64_t seed = (std::uint64_t{position} << 32U) + step_;
  const auto at = [&](std::uint32_t storage) {
    auto* const bytes =
        static_cast<std::byte*>(ho_operand(runtime_, position, schedule_.storages[storage].id));
    return std::span<std::byte>(bytes, model_[storage].size());
  };
  for (const auto& operand : schedule_.positions[position].operands) {
    const std::uint32_t storage = operand.storage.value();
    if (operand.access == Access::kWrite) continue;
    const auto here = at(storage);
    if (here.data() == nullptr || !std::equal(here.begin(), here.end(), model_[storage].begin())) {
      if (wrong_.empty()) {
        wrong_ = schedule_.storages[storage].name + " at position " + std::to_string(position) +
                 " of step " + std::to_string(step_);
      }
    }
    seed ^= checksum64(model_[storage]) + storage;
  }
  for (const auto& operand : schedule_.positions[position].operands) {
    if (operand.access == Access::kRead) continue;
    const std::uint32_t storage = operand.storage.value();
    fill(model_[storage], seed + storage);
    const auto here = at(storage);
    if (here.data() != nullptr)
      std::copy(model_[storage].begin(), model_[storage].end(), here.begin());
  }
}

ho_status PlannedJob::finish_and_compare() {
  if (const auto status = keep(ho_finish(runtime_)); status != HO_OK) return status;
  for (std::size_t i = 0; i < schedule_.storages.size(); ++i) {
    if (!schedule_.storages[i].persistent) continue;
    std::vector<std::byte> value(model_[i].size());
    const auto status =
        keep(ho_read(runtime_, schedule_.storages[i].id, value.data(), value.size()));
    if (status != HO_OK) return status;
    if (value != model_[i] && wrong_.empty()) wrong_ = schedule_.storages[i].name + " at the end";
  }
  return HO_OK;
}

}  // namespace ho::test
