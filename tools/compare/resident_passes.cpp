#include "tools/compare/resident_passes.hpp"

#include <cstring>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::gpt {
Result<std::unique_ptr<ResidentPasses>> ResidentPasses::create(const DecoderOptions& options) {
  auto layout = resident_layout(options);
  if (!layout) return layout.error();
  auto arena = Arena::create(layout->bytes);
  if (!arena) return arena.error();
  std::unique_ptr<ResidentPasses> made(
      new ResidentPasses(options, std::move(layout).value(), std::move(arena).value()));
  const auto any = made->placed({});
  if (!any) return any.error();
  for (const Storage& storage : (*any)->model.graph.storages) {
    if (!storage.persistent) continue;
    const StorageIndex index(storage.id);
    initial_value((*any)->model, index, {(*any)->address[storage.id], storage.bytes});
  }
  return made;
}

Result<ResidentPasses::Placed*> ResidentPasses::placed(const Pass& pass) {
  const auto known = passes_.find(pass);
  if (known != passes_.end()) return &known->second;
  auto model = build_pass(options_, pass);
  if (!model) return model.error();
  Placed made{std::move(model).value(), {}};
  std::uint64_t end = layout_.activations_bytes;
  for (const Storage& storage : made.model.graph.storages) {
    const std::uint64_t at = storage.persistent ? layout_.offset_bytes.at(storage.name) : end;
    if (!storage.persistent) end += align_up(storage.bytes, 64);
    made.address.push_back(arena_->data() + at);
  }
  HO_CHECK(end <= layout_.bytes);
  return &passes_.emplace(pass, std::move(made)).first->second;
}

Result<void> ResidentPasses::run(const Pass& pass, std::span<const std::int32_t> tokens,
                                 StepContext& context) {
  const auto found = placed(pass);
  if (!found) return found.error();
  const Placed& to_run = **found;
  std::memcpy(to_run.address[to_run.model.tokens.value()], tokens.data(), tokens.size_bytes());
  std::vector<void*> operands;
  for (const ModelOp& op : to_run.model.ops) {
    operands.clear();
    for (const StorageIndex s : op.operands) operands.push_back(to_run.address[s.value()]);
    op.kernel(operands, context);
  }
  return {};
}

}  // namespace ho::gpt
