#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tools/compare/lru_cache.hpp"
#include "tools/compare/pool.hpp"
#include "tools/compare/residence.hpp"
#include "tools/examples/gpt/arena.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// The reactive offloader we compare against, built as well as one can be that does not know the
/// future: fetch on miss; evict the least recently used window; write back only what is dirty; drop
/// dead values without a write; and, while an op computes, a thread of its own makes room for the
/// next op's operands and fetches them, and when that is done writes back what would go next, so
/// that later fetches find clean victims and need not wait for write-backs.
///
/// The mover thread owns the cache and the pool's transfers; the job's thread hands it one request
/// at a time through a mutex (two threads, a request per op: a lock is simpler than a queue, and
/// costs a microsecond against milliseconds).
/// Refers to the model, the pool and the arena, which outlive it.
class Lru final : public Residence {
 public:
  /// Allocates a home for every storage and registers the arena.
  /// @return kOutOfRange where one op's operands alone exceed the arena.
  [[nodiscard]] static Result<std::unique_ptr<Lru>> create(const Model& model,
                                                           hyperoffload::Pool& pool,
                                                           const Arena& arena);
  ~Lru() override;

  [[nodiscard]] std::uint32_t position_count() const override;
  [[nodiscard]] OpIndex op_at(std::uint32_t position) const override { return OpIndex(position); }
  [[nodiscard]] Result<void> fill(StorageIndex storage, std::span<const std::byte> value) override;
  [[nodiscard]] Result<void> begin_step() override { return {}; }
  [[nodiscard]] Result<void> before(std::uint32_t position) override;
  [[nodiscard]] void* operand(std::uint32_t position, StorageIndex storage) override;
  [[nodiscard]] Result<void> after(std::uint32_t position) override;
  [[nodiscard]] Result<void> end_step() override { return {}; }
  [[nodiscard]] Result<Usage> usage() const override;

 private:
  enum class Wish : std::uint8_t {
    kFill,         ///< write a value home
    kNow,          ///< make `op` ready; no kernel is running
    kAhead,        ///< make `op` ready beside the kernel of `running`
    kAheadOfStep,  ///< as kAhead for the next step's first op, whose inputs are not there yet
    kStop,
  };
  struct Request {
    Wish wish = Wish::kStop;
    std::uint32_t op = 0;
    std::uint32_t running = 0;
    StorageIndex storage;
    std::span<const std::byte> value;
  };
  /// A put still reading the arena's bytes [begin, end).
  struct Reading {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t ticket = 0;
    StorageIndex storage;
  };
  struct Fetching {
    std::uint64_t ticket = 0;
    StorageIndex storage;
  };
  /// A dirty storage of which the first `done_bytes` are home.
  struct Cleaning {
    StorageIndex storage;
    std::uint64_t version = 0;
    std::uint64_t done_bytes = 0;
  };

  Lru(const Model& model, hyperoffload::Pool& pool, const Arena& arena);
  [[nodiscard]] Result<void> open();

  // The job's thread.
  void post(const Request& request);
  [[nodiscard]] Result<void> await_idle();

  // The mover's thread.
  void serve();
  void carry_out(const Request& request);
  void write_home(StorageIndex storage, std::span<const std::byte> value);
  void drop_dead(std::uint32_t finished_op);
  [[nodiscard]] bool clean_some();
  [[nodiscard]] Request next_request();
  [[nodiscard]] bool place_missing(const Request& request);
  void prepare(const Request& request);
  void make_room();
  void fetch(StorageIndex storage);
  void start_writes(const std::vector<LruCache::Eviction>& evictions);
  void await_reads_of(std::uint64_t begin, std::uint64_t end);
  void await_transfers();
  void await(std::uint64_t ticket, StorageIndex storage);
  [[nodiscard]] std::uint64_t bytes_of(StorageIndex storage) const;

  const Model& model_;
  hyperoffload::Pool& pool_;
  const Arena& arena_;
  std::vector<std::uint64_t> home_bytes_;              // offset per storage
  std::vector<std::vector<StorageIndex>> dies_after_;  // per op
  std::unique_ptr<hyperoffload::Allocation> home_;
  std::unique_ptr<Arena> bounce_;  // values on their way home; never an operand
  bool registered_ = false;

  LruCache cache_;  // mover's, like those below
  std::optional<Cleaning> cleaning_;
  std::vector<Reading> reading_;
  std::vector<Fetching> fetching_;
  StorageIndex moving_;  // what the last call to the pool was about: an error names it

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Request> request_;  // under mutex_, like all below
  std::optional<Error> failure_;
  std::optional<std::uint32_t> ready_op_;
  std::vector<std::uint64_t> ready_offsets_;  // per operand of ready_op_
  Usage usage_;

  std::vector<void*> current_;  // the job's: addresses of the running op's operands
  std::thread mover_;
};

}  // namespace ho::gpt
