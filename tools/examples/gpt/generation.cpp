#include "tools/examples/gpt/generation.hpp"

#include <algorithm>
#include <cmath>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/prng.hpp"

namespace ho::gpt {
namespace {

constexpr std::uint32_t kNoStart = UINT32_MAX;

/// A sequence and its place in a group.
struct Slot {
  std::optional<std::size_t> prompt;   ///< its index; nothing: the place is free
  std::vector<std::int32_t> sequence;  ///< the prompt and what was generated
};

class Generator {
 public:
  Generator(const GenerationOptions& options, std::span<const Prompt> prompts, PassRunner& runner,
            const std::function<bool()>& stopped)
      : options_(options),
        prompts_(prompts),
        runner_(runner),
        stopped_(stopped),
        batch_(options.decoder.model.batch),
        groups_(options.decoder.groups, Group(batch_)),
        logits_(std::size_t{batch_} * kVocabulary) {
    generation_.tokens.resize(prompts.size());
  }

  Result<Generation> run() {
    while (live_ > 0 || next_ < prompts_.size()) {
      for (std::uint32_t g = 0; g < groups_.size(); ++g) {
        if (auto ok = take_turn(g); !ok) return ok.error();
      }
    }
    return std::move(generation_);
  }

 private:
  /// Sequences that share a KV cache, row by row.
  struct Group {
    explicit Group(std::size_t batch) : slots(batch), starts(batch, kNoStart) {}
    std::vector<Slot> slots;
    std::vector<std::uint32_t> starts;  ///< per slot: row of its first token
    std::uint32_t rows = 0;             ///< in use
    std::size_t live = 0;
  };

  Result<void> take_turn(std::uint32_t g) {
    Group& group = groups_[g];
    if (group.live == 0) {
      if (auto ok = begin_anew(g); !ok) return ok;
    }
    for (std::uint32_t i = 0; i < options_.slice_tokens && group.live > 0; ++i) {
      for (std::size_t s = 0; s < batch_; ++s) admit_into(group, s);
      if (auto ok = decode(g); !ok) return ok;
    }
    return {};
  }

  void admit(Group& group, std::size_t s, std::uint32_t start) {
    group.slots[s] = {next_, prompts_[next_]};
    group.starts[s] = start;
    group.live += 1;
    live_ += 1;
    next_ += 1;
  }

  /// Gives a free place to the next prompt, beside sequences that go on.
  void admit_into(Group& group, std::size_t s) {
    if (group.slots[s].prompt || next_ == prompts_.size()) return;
    const std::size_t needs = prompts_[next_].size() + options_.new_tokens - 1;
    if (group.rows + needs > options_.decoder.model.seq) return;
    admit(group, s, group.rows);
  }

  /// Fills an empty group from row 0 on.
  Result<void> begin_anew(std::uint32_t g) {
    Group& group = groups_[g];
    group.rows = 0;
    const std::size_t first = next_;
    while (next_ < prompts_.size() && group.live < batch_) admit(group, group.live, 0);
    for (std::size_t i = first; i < next_; ++i) {
      group.rows = std::max(group.rows, static_cast<std::uint32_t>(prompts_[i].size()));
    }
    for (std::size_t s = 0; s < group.live; ++s) {
      group.starts[s] = group.rows - static_cast<std::uint32_t>(group.slots[s].sequence.size());
    }
    const std::uint32_t block_rows = options_.decoder.block_rows;
    for (std::uint32_t begin = 0; begin < group.rows; begin += block_rows) {
      const std::uint32_t rows = std::min(block_rows, group.rows - begin);
      if (auto ok = pass(g, Phase::kPrefill, begin, rows); !ok) return ok;
    }
    if (group.live > 0) sample(group);
    return {};
  }

  Result<void> decode(std::uint32_t g) {
    Group& group = groups_[g];
    if (auto ok = pass(g, Phase::kDecode, group.rows, 1); !ok) return ok;
    group.rows += 1;
    sample(group);
    return {};
  }

  /// Runs rows [begin, begin + rows) of a group through the model.
  Result<void> pass(std::uint32_t g, Phase phase, std::uint32_t begin, std::uint32_t rows) {
    if (stopped_()) return Error(Errc::kCanceled, "stopped by a signal");
    const TimePoint start = clock_.now();
    const Group& group = groups_[g];
    const std::uint32_t block_rows = options_.decoder.block_rows;
    const std::size_t width = phase == Phase::kPrefill ? block_rows : 1;
    std::vector<std::int32_t> tokens(batch_ * width, 0);
    for (std::size_t s = 0; s < batch_; ++s) {
      if (!group.slots[s].prompt) continue;
      const std::vector<std::int32_t>& sequence = group.slots[s].sequence;
      for (std::size_t t = 0; t < rows; ++t) {
        const std::size_t row = begin + t;
        if (row >= group.starts[s]) tokens[s * width + t] = sequence.at(row - group.starts[s]);
      }
    }
    StepContext context;
    context.begin = begin;
    context.rows = rows;
    context.starts = group.starts;
    context.logits = logits_;
    if (auto ok = runner_.run({phase, g, begin / block_rows + 1}, tokens, context); !ok) return ok;
    auto& times = phase == Phase::kPrefill ? generation_.prefill_ms : generation_.decode_ms;
    times.push_back(double((clock_.now() - start).count()) * 1e-6);
    return {};
  }

  /// Takes the next token of each sequence whose tokens have all been fed, and removes sequences
  /// that have ended.
  void sample(Group& group) {
    for (std::size_t s = 0; s < batch_; ++s) {
      Slot& slot = group.slots[s];
      if (!slot.prompt || group.rows - group.starts[s] < slot.sequence.size()) continue;
      const std::int32_t token = choose(slot, {&logits_[s * kVocabulary], kVocabulary});
      slot.sequence.push_back(token);
      std::vector<std::int32_t>& made = generation_.tokens[*slot.prompt];
      made.push_back(token);
      if (made.size() < options_.new_tokens && token != options_.stop) continue;
      slot = Slot{};
      group.starts[s] = kNoStart;
      group.live -= 1;
      live_ -= 1;
    }
  }

  [[nodiscard]] std::int32_t choose(const Slot& slot, std::span<const float> logits) const {
    const auto best = std::max_element(logits.begin(), logits.end());
    if (options_.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
    Prng prng((options_.decoder.model.seed * 1000003U + *slot.prompt) * 1000003U +
              slot.sequence.size());
    std::vector<double> sums;
    double sum = 0;
    for (const float logit : logits) {
      sum += std::exp(double{logit - *best} / options_.temperature);
      sums.push_back(sum);
    }
    const auto drawn = std::upper_bound(sums.begin(), sums.end() - 1, prng.unit() * sum);
    return static_cast<std::int32_t>(drawn - sums.begin());
  }

  const SteadyClock clock_;
  const GenerationOptions& options_;
  const std::span<const Prompt> prompts_;
  PassRunner& runner_;
  const std::function<bool()>& stopped_;
  const std::size_t batch_;
  std::vector<Group> groups_;
  std::vector<float> logits_;
  std::size_t next_ = 0;  ///< prompt that waits
  std::size_t live_ = 0;
  Generation generation_;
};

}  // namespace

std::uint32_t longest_prompt(std::span<const Prompt> prompts) {
  std::size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.size());
  return static_cast<std::uint32_t>(longest);
}

std::uint32_t cache_rows(std::span<const Prompt> prompts, std::uint32_t new_tokens,
                         std::uint32_t block_rows) {
  return (longest_prompt(prompts) + new_tokens - 1 + block_rows - 1) / block_rows * block_rows;
}

Result<Generation> generate(const GenerationOptions& options, std::span<const Prompt> prompts,
                            PassRunner& runner, const std::function<bool()>& stopped) {
  for (const Prompt& prompt : prompts) {
    HO_CHECK(!prompt.empty());
    HO_CHECK(prompt.size() + options.new_tokens - 1 <= options.decoder.model.seq);
  }
  return Generator(options, prompts, runner, stopped).run();
}

}  // namespace ho::gpt
