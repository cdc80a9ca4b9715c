#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tools/compare/lru_cache.hpp"
#include "tools/compare/pool.hpp"
#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/generation.hpp"

namespace ho::gpt {

/// How far ahead of the op that runs values are fetched.
enum class Ahead : std::uint8_t {
  kNothing,  ///< on demand: an op waits for what is not there
  kLayer,    ///< streaming: all that is left of this layer and the next layer's, as room allows
};

/// Generates without a plan: weights and KV blocks are fetched when an op needs them, or ahead of
/// it, and the window of those used longest ago makes room; only what was written goes back.
/// Activations always have their place. Calls to the library throw hyperoffload::Error. Refers to
/// the pool, which outlives it. One thread.
class CachedPasses final : public PassRunner {
 public:
  /// @return as build_pass(); kOutOfRange where one op's operands do not fit; kExhausted where the
  /// machine does not have the memory.
  [[nodiscard]] static Result<std::unique_ptr<CachedPasses>> create(const DecoderOptions& options,
                                                                    hyperoffload::Pool& pool,
                                                                    std::uint64_t device_bytes,
                                                                    Ahead ahead);
  ~CachedPasses() override;

  [[nodiscard]] Result<void> run(const Pass& pass, std::span<const std::int32_t> tokens,
                                 StepContext& context) override;
  [[nodiscard]] PassUsage usage() const override;

 private:
  struct PassOp {
    std::vector<StorageIndex> needs;  ///< operands that outlive the pass, by graph_
    std::uint32_t layer = 0;          ///< ops of one layer are neighbours
  };
  struct Known {
    Model model;
    std::vector<std::byte*> activation;  ///< by the model's storage; null: outlives the pass
    std::vector<StorageIndex> kept;      ///< by the model's storage: its index in graph_
    std::vector<PassOp> ops;
  };

  CachedPasses(const DecoderOptions& options, hyperoffload::Pool& pool, Ahead ahead, Graph graph,
               std::uint64_t activations_bytes, std::unique_ptr<Arena> arena);
  [[nodiscard]] Result<Known*> known(const Pass& pass);
  [[nodiscard]] Result<void> open();
  [[nodiscard]] bool place(StorageIndex storage, const std::vector<StorageIndex>& reads);
  [[nodiscard]] std::byte* address(StorageIndex storage) const;
  void store(const std::vector<LruCache::Eviction>& evictions);
  void await(StorageIndex storage);
  void drop_ahead();
  void make_room();
  void acquire(const Known& pass, std::size_t op);
  void fetch_ahead(const Known& pass, std::size_t op);

  const DecoderOptions options_;
  hyperoffload::Pool& pool_;
  const Ahead ahead_how_;
  const Graph graph_;  ///< weights and all KV blocks; no ops
  const std::uint64_t activations_bytes_;
  const std::unique_ptr<Arena> arena_;
  LruCache cache_;                         ///< the arena behind the activations
  std::vector<std::uint64_t> home_bytes_;  ///< by storage of graph_
  std::map<std::string, StorageIndex> by_name_;
  std::unique_ptr<hyperoffload::Allocation> home_;
  bool registered_ = false;
  std::map<Pass, Known> passes_;
  std::map<StorageIndex, std::uint64_t> fetching_;  ///< tickets
  std::vector<StorageIndex> ahead_;                 ///< fetched and not used yet
  PassUsage usage_;
};

}  // namespace ho::gpt
