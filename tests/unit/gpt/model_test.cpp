#include "tools/examples/gpt/model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "common/base/prng.hpp"
#include "tools/compare/job.hpp"
#include "tools/compare/resident.hpp"
#include "tools/examples/gpt/kernels.hpp"

namespace ho::gpt {
namespace {

// A file of every Debian machine. This source would not do: some compilers make __FILE__ relative.
const char* const kText = "/usr/share/common-licenses/GPL-3";

ModelOptions tiny() {
  return ModelOptions{.layers = 2, .dim = 16, .heads = 2, .seq = 6, .batch = 2, .seed = 7};
}

/// A model with its tensors in place. Its parameters are random, because the flat initial ones make
/// gradients near zero by symmetry.
struct Bench {
  Model model = build_model(tiny()).value();
  std::unique_ptr<Resident> resident = Resident::create(model).value();

  Bench() {
    use_one_blas_thread();
    Prng prng(3);
    for (const Storage& storage : model.graph.storages) {
      const StorageIndex index(storage.id);
      if (storage.persistent) {
        auto* const values = data(index);
        for (std::size_t i = 0; i < storage.bytes / sizeof(float); ++i) {
          values[i] = storage.kind == StorageKind::kWeight
                          ? static_cast<float>(prng.unit() - 0.5) * 0.6F
                          : 0.0F;
        }
      }
    }
  }

  /// Refills the inputs, as before every step: after their last access other storages use their
  /// bytes.
  void fill_inputs() {
    Prng prng(5);
    for (const StorageIndex index : {model.tokens, model.targets}) {
      auto* const tokens = static_cast<std::int32_t*>(resident->operand(0, index));
      const std::size_t count = model.graph.storages[index.value()].bytes / sizeof(std::int32_t);
      for (std::size_t i = 0; i < count; ++i) {
        tokens[i] = static_cast<std::int32_t>(prng.below(kVocabulary));
      }
    }
  }

  float* data(StorageIndex index) { return static_cast<float*>(resident->operand(0, index)); }

  void run(std::size_t op, StepContext& context) {
    std::vector<void*> pointers;
    for (const StorageIndex s : model.ops[op].operands) {
      pointers.push_back(resident->operand(0, s));
    }
    model.ops[op].kernel(pointers, context);
  }

  float forward_loss() {
    fill_inputs();
    StepContext context = step_context(model, 0);
    for (std::size_t o = 0; o < model.ops.size() && model.graph.ops[o].phase == "forward"; ++o) {
      run(o, context);
    }
    return context.loss;
  }
};

TEST_CASE("gpt: every gradient agrees with finite differences of the loss", "[unit]") {
  Bench bench;
  const Model& model = bench.model;
  bench.forward_loss();
  // Copies each gradient out instead of applying it.
  std::vector<std::vector<float>> gradients;
  std::vector<StorageIndex> weights;
  StepContext context = step_context(model, 0);
  for (std::size_t o = 0; o < model.ops.size(); ++o) {
    const Op& op = model.graph.ops[o];
    if (op.phase == "backward") bench.run(o, context);
    if (op.phase != "optimizer") continue;
    const StorageIndex gradient = model.ops[o].operands[3];
    const float* const values = bench.data(gradient);
    gradients.emplace_back(values,
                           values + model.graph.storages[gradient.value()].bytes / sizeof(float));
    weights.push_back(model.ops[o].operands[0]);
  }
  REQUIRE(weights.size() == 2 + 6 * 2 + 2);
  Prng prng(11);
  for (std::size_t w = 0; w < weights.size(); ++w) {
    INFO(model.graph.storages[weights[w].value()].name);
    // Along the gradient plus noise the loss changes by somewhat more than |gradient|^2, far above
    // the rounding of single precision.
    std::vector<float> direction(gradients[w].size());
    double norm = 0;
    for (const float g : gradients[w]) norm += double{g} * g;
    const double scale = std::sqrt(norm / static_cast<double>(direction.size()));
    double slope = 0;
    double length = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = gradients[w][i] + static_cast<float>(scale * (prng.unit() - 0.5));
      slope += double{direction[i]} * gradients[w][i];
      length += double{direction[i]} * direction[i];
    }
    const auto step = static_cast<float>(2e-2 / std::sqrt(length));
    float* const values = bench.data(weights[w]);
    const std::vector<float> saved(values, values + direction.size());
    for (std::size_t i = 0; i < direction.size(); ++i) values[i] = saved[i] + step * direction[i];
    const double above = bench.forward_loss();
    for (std::size_t i = 0; i < direction.size(); ++i) values[i] = saved[i] - step * direction[i];
    const double below = bench.forward_loss();
    std::copy(saved.begin(), saved.end(), values);
    REQUIRE((above - below) / (2.0 * step) == Approx(slope).epsilon(0.02));
  }
}

TEST_CASE("gpt: the graph's accesses obey the rules of graphs", "[unit]") {
  const Model model = build_model(tiny()).value();
  std::set<std::uint32_t> written;
  for (std::size_t o = 0; o < model.ops.size(); ++o) {
    const Op& op = model.graph.ops[o];
    for (const StorageIndex s : op.reads) {
      const Storage& storage = model.graph.storages[s.value()];
      INFO(op.name << " reads " << storage.name);
      REQUIRE((storage.persistent || storage.kind == StorageKind::kInput ||
               written.count(s.value()) == 1));
      REQUIRE(storage.kind != StorageKind::kWorkspace);
    }
    for (const StorageIndex s : op.writes) {
      if (model.graph.storages[s.value()].kind == StorageKind::kWorkspace) {
        REQUIRE(written.count(s.value()) == 0);
      }
      written.insert(s.value());
    }
    const std::set<StorageIndex> unique(model.ops[o].operands.begin(), model.ops[o].operands.end());
    REQUIRE(unique.size() == model.ops[o].operands.size());
  }
}

TEST_CASE("gpt: storages alive at the same time never share bytes of the resident layout",
          "[unit]") {
  const Model model = build_model(tiny()).value();
  const Layout layout = pack_resident(model.graph);
  for (const ModelOp& op : model.ops) {
    for (const StorageIndex a : op.operands) {
      REQUIRE(layout.offset_bytes[a.value()] % 64 == 0);
      for (const Storage& b : model.graph.storages) {
        const bool same_op = std::find(op.operands.begin(), op.operands.end(),
                                       StorageIndex(b.id)) != op.operands.end();
        if (b.id == a.value() || (!b.persistent && !same_op)) continue;
        const std::uint64_t begin = layout.offset_bytes[a.value()];
        const std::uint64_t end = begin + model.graph.storages[a.value()].bytes;
        const std::uint64_t other = layout.offset_bytes[b.id];
        REQUIRE((end <= other || other + b.bytes <= begin));
      }
    }
  }
}

TEST_CASE("gpt: training on text lowers the loss, equally in two runs", "[unit]") {
  use_one_blas_thread();
  ModelOptions options{.layers = 1, .dim = 32, .heads = 2, .seq = 16, .batch = 8, .seed = 5};
  options.learning_rate = 3e-3F;
  const Model model = build_model(options).value();
  const Text text = Text::read(kText, options.seq).value();
  const std::atomic<bool> stop{false};
  std::vector<float> losses;
  for (int run = 0; run < 2; ++run) {
    auto resident = Resident::create(model).value();
    Job job(model, text, *resident, stop);
    REQUIRE(job.initialise());
    for (std::size_t s = 0; s < 40; ++s) {
      const float loss = job.step().value().loss;
      if (run == 0) {
        losses.push_back(loss);
      } else {
        REQUIRE(loss == losses[s]);
      }
    }
  }
  REQUIRE(losses.front() == Approx(std::log(256.0)).epsilon(0.05));
  REQUIRE(losses.back() < 0.75F * losses.front());
}

TEST_CASE("gpt: a stop request ends a step as canceled", "[unit]") {
  const Model model = build_model(tiny()).value();
  const Text text = Text::read(kText, tiny().seq).value();
  auto resident = Resident::create(model).value();
  std::atomic<bool> stop{false};
  Job job(model, text, *resident, stop);
  REQUIRE(job.initialise());
  stop = true;
  const auto record = job.step();
  REQUIRE_FALSE(record);
  REQUIRE(record.error().code() == Errc::kCanceled);
}

TEST_CASE("gpt: heads that do not divide the dimension are refused", "[unit]") {
  ModelOptions options = tiny();
  options.heads = 3;
  REQUIRE(build_model(options).error().code() == Errc::kInvalidArgument);
}

}  // namespace
}  // namespace ho::gpt
