#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/pool/bell_thread.hpp"
#include "client/pool/sessions.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// Pool memory that no runtime moves.
class Leaver {
 public:
  virtual ~Leaver() = default;

  enum class Left : std::uint8_t {
    kNothing,  ///< nothing of it lies on a drained node
    kMoved,    ///< a part has moved; more may follow
    kUsed,     ///< the job, or a reader, uses what lies there
  };
  /// Moves a part of it off a drained node: a segment, or all versions of a publisher. The thread
  /// of Leavers.
  /// @return kExhausted: the other nodes have no room; the pool's failure. Then it is as it was.
  [[nodiscard]] virtual Result<Left> leave_drained() = 0;
};

/// Moves a pool's leavers off drained nodes, one part after another, on a thread of its own.
///
/// Threads: any. Remove a leaver before it is destroyed.
class Leavers {
 public:
  struct Options {
    std::shared_ptr<Bell> notices;        ///< rings when `notice` has changed
    std::function<Notice()> notice;       ///< as Sessions::notice()
    std::function<void()> use_new_nodes;  ///< looks for nodes that have come
  };
  explicit Leavers(Options options) : options_(std::move(options)) {}
  Leavers(const Leavers&) = delete;
  Leavers& operator=(const Leavers&) = delete;

  void add(Leaver& leaver);
  /// Waits for a part of this one that moves.
  void remove(Leaver& leaver);

 private:
  [[nodiscard]] Duration look();
  /// What a look has found.
  struct Look {
    bool moved = false;        ///< a part
    bool stays = false;        ///< something is there
    std::optional<Error> why;  ///< none has moved
  };
  [[nodiscard]] Look leave_one();

  const Options options_;
  std::mutex mutex_;  ///< any thread adds and removes, rarely; for the next two
  std::vector<Leaver*> all_;
  Leaver* moving_ = nullptr;  ///< a part of it moves
  std::condition_variable part_ended_;
  bool stays_ = false;                ///< something was there at the last look; the thread's own
  std::uint64_t parts_ = 0;           ///< moved since the last line about it; the thread's own
  std::uint64_t told_ = 0;            ///< Notice::changes when a line said that some stays
  std::optional<BellThread> thread_;  ///< from the first leaver on; ends first
};

}  // namespace ho::client
