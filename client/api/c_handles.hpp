#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "client/blocks/blocks.hpp"
#include "client/include/hyperoffload/blocks.h"
#include "client/include/hyperoffload/hyperoffload.h"
#include "client/pool/plain_memory.hpp"
#include "client/pool/pool.hpp"
#include "client/runtime/runtime.hpp"
#include "common/base/clock.hpp"
#include "common/base/log.hpp"
#include "common/model/check_graph.hpp"
#include "common/text/utf8.hpp"

// The types behind the C ABI's handles, and how its functions report failures. For c_api*.cpp only.

struct ho_pool {
  std::unique_ptr<ho::client::Pool> pool;
  std::chrono::milliseconds wait{0};  ///< as ho_connect_options has it
  /// Guards the counts of objects that must end before the pool. A mutex, since any thread may open
  /// and close runtimes and allocations, and does so rarely.
  mutable std::mutex mutex;
  std::map<std::uintptr_t, std::uintptr_t> arenas;  ///< arenas of open runtimes: end by begin
  std::size_t runtimes = 0;
  std::size_t allocations = 0;
  std::size_t objects = 0;                  ///< open publishers and subscribers
  std::vector<ho::client::Blocks*> blocks;  ///< open block stores
  /// Registered memory by first address. Changed by the one thread that registers, read by any.
  struct Registered {
    std::size_t bytes = 0;
    ho::client::LocalHandles handles;
    std::size_t objects = 0;  ///< tensors of open publishers and subscribers in it
  };
  std::map<std::uintptr_t, Registered> registered;
  /// The drivers' handles of memory within one registration; nullopt: no registration has all of
  /// it.
  [[nodiscard]] std::optional<ho::client::LocalHandles> handles_of(const void* memory,
                                                                   std::size_t bytes) const {
    const std::lock_guard guard(mutex);
    const auto at = registration_of(memory, bytes);
    if (at == registered.end()) return std::nullopt;
    return at->second.handles;
  }
  /// The registration that has all of the memory, or registered.end(). Call it with the mutex held.
  [[nodiscard]] std::map<std::uintptr_t, Registered>::const_iterator registration_of(
      const void* memory, std::size_t bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto after = registered.upper_bound(address);
    if (after == registered.begin()) return registered.end();
    const auto at = std::prev(after);
    const std::size_t begin = address - at->first;
    const bool inside = begin <= at->second.bytes && bytes <= at->second.bytes - begin;
    return inside ? at : registered.end();
  }
};
struct ho_allocation {
  ho_pool* pool = nullptr;
  std::unique_ptr<ho::client::PlainMemory> memory;
};
struct ho_blocks {
  ho_pool* pool = nullptr;
  std::string space;
  std::vector<std::uint64_t> sizes;
  std::shared_ptr<ho::client::Blocks> blocks;
};
struct ho_flash {
  const ho_pool* pool = nullptr;  ///< compared only: it may have ended before
  ho::client::FlashArena flash;
};
struct ho_plan {
  ho::client::Plan* plan = nullptr;  ///< the runtime's
  ho_runtime* runtime = nullptr;
};
struct ho_runtime {
  std::unique_ptr<ho::client::Runtime> runtime;
  ho_pool* pool = nullptr;
  std::uintptr_t arena = 0;  ///< its begin; 0: none
  std::vector<std::unique_ptr<ho_plan>> plans;
};

namespace ho::client::c_api {

inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

inline ho_status fail(const Error& error) {
  last_error() = error.context();
  return static_cast<ho_status>(error.code());
}

inline ho_status fail(ho_status status, const char* what) {
  last_error() = what;
  return status;
}

/// Runs one call's work and turns its outcome, or an exception of the standard library, into a
/// status.
template <typename Work>
ho_status guarded(Work&& work) noexcept {
  try {
    const Result<void> outcome = work();
    return outcome ? HO_OK : fail(outcome.error());
  } catch (const std::bad_alloc&) {
    return fail(HO_EXHAUSTED, "out of memory");
  } catch (const std::exception& caught) {
    return fail(HO_IO, caught.what());
  }
}

/// The same for a call that has no status: what fails in it is logged, nothing else can be done.
template <typename Work>
void guarded_end(const char* call, Work&& work) noexcept {
  try {
    work();
  } catch (const std::exception& caught) {
    ho::log(ho::LogLevel::kError, "a call ended early",
            {{"call", call}, {"reason", caught.what()}});
  }
}

/// What HYPEROFFLOAD_LOG says; nothing where it is not set. @return kInvalidArgument: not a level.
[[nodiscard]] Result<std::optional<LogLevel>> log_level_of_environment();

/// As Pool::may_fit(), for calls that all nodes may serve.
inline bool may_fit_anywhere(const ho_pool& pool, const Pool::Need& need) {
  return pool.pool->may_fit(need, pool.pool->nodes_of(Nearness::kAny));
}

/// Repeats a call that finds no memory, for as long as the job's options say. The call leaves
/// nothing behind when it fails.
/// @param fits  whether the pool may ever have it, asked before the first wait.
template <typename Call, typename Fits>
auto wait_for_memory(const ho_pool& pool, Call&& call, Fits&& fits) -> decltype(call()) {
  constexpr std::chrono::milliseconds kAskAgain{200};
  const SteadyClock clock;
  const TimePoint end = clock.now() + pool.wait;
  for (bool told = false;; told = true) {
    auto done = call();
    const TimePoint now = clock.now();
    if (done || done.error().code() != Errc::kExhausted || now >= end) return done;
    if (!told && !fits()) return done;
    if (!told) {
      log(LogLevel::kInfo, "waiting for memory", {{"why", done.error().context()}});
    }
    std::this_thread::sleep_for(std::min<Duration>(kAskAgain, end - now));
  }
}

/// The same for a call that any node may serve: before it fails, it is repeated with nodes that
/// have come since, or are back. It looks for these about once a second.
template <typename Call, typename Fits>
auto wait_for_any_node(const ho_pool& pool, Call&& call, Fits&& fits) -> decltype(call()) {
  constexpr std::chrono::seconds kLookAgain{1};
  const SteadyClock clock;
  TimePoint look_at = clock.now();
  const auto with_new_nodes = [&] {
    const std::size_t nodes = pool.pool->nodes().size();
    auto done = call();
    if (done || clock.now() < look_at) return done;
    const Errc code = done.error().code();
    const bool lost = code == Errc::kUnavailable;
    // kUnsupported: no node has flash.
    if (!lost && code != Errc::kExhausted && code != Errc::kNotFound &&
        code != Errc::kUnsupported) {
      return done;
    }
    // Where the pool is only full, nodes that were tried in vain may rest.
    pool.pool->use_new_nodes(lost ? TriedNodes::kAgain : TriedNodes::kRest);
    look_at = clock.now() + kLookAgain;
    if (pool.pool->nodes().size() > nodes) done = call();
    return done;
  };
  return wait_for_memory(pool, with_new_nodes, fits);
}

/// A text that a request to a node has as such: a daemon closes the connection of a job whose
/// request has other bytes there. NULL is "". @return kInvalidArgument with the field's name.
inline Result<std::string> utf8_text(const char* given, const char* field, std::size_t bytes_max) {
  std::string text = given == nullptr ? "" : given;
  if (utf8_prefix(text, bytes_max) == text) return text;
  return Error(Errc::kInvalidArgument, std::string(field) + " is not up to " +
                                           std::to_string(bytes_max) + " bytes of UTF-8");
}

/// Nodes, segments and extents are numbers that mean others in another pool.
template <typename Handle>
Result<void> check_owner(const ho_pool* pool, const Handle& handle) {
  if (handle.pool == pool) return {};
  constexpr bool kFlash = std::is_same_v<Handle, ho_flash>;
  return Error(Errc::kInvalidArgument,
               std::string(kFlash ? "the flash" : "the allocation") + " is another pool's");
}

inline Error null_argument() { return Error(Errc::kInvalidArgument, "a null argument"); }

/// Refuses sizes that no memory has, before sums with them overflow.
inline Result<void> check_memory(const void* base, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (bytes <= kBytesMax && bytes <= UINTPTR_MAX - begin) return {};
  return Error(Errc::kInvalidArgument,
               std::to_string(bytes) + " bytes are more than 2^50, or than the address space has");
}

/// No header gives a struct that begins with its size a size that it refuses.
template <typename Struct>
Result<void> check_size(const Struct& given) {
  const std::size_t bytes = given.struct_bytes;
  if (bytes > sizeof(bytes) && bytes % alignof(Struct) == 0) return {};
  return Error(Errc::kInvalidArgument, "struct_bytes is not set to the struct's size");
}

/// What the caller's header knew of such a struct; fields beyond are zero.
template <typename Struct>
Result<Struct> take_in(const Struct& given) {
  if (auto fine = check_size(given); !fine) return fine.error();
  Struct known{};
  std::memcpy(&known, &given, std::min(given.struct_bytes, sizeof(known)));
  return known;
}

/// Copies what the caller's header knew of such a struct.
template <typename Struct>
Result<void> give_out(Struct filled, Struct* out) {
  if (auto fine = check_size(*out); !fine) return fine;
  filled.struct_bytes = std::min(out->struct_bytes, sizeof(filled));
  std::memcpy(out, &filled, filled.struct_bytes);
  return {};
}

}  // namespace ho::client::c_api
