#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/tier/flash/store/extent_store.hpp"
#include "tests/support/sim_flash.hpp"

namespace ho::test {

/// Runs a flash store on simulated disks under random load. A model tracks which contents each
/// block may have at any time; it keeps the true bytes and never reads from the store.
class FlashWorld {
 public:
  explicit FlashWorld(std::uint64_t seed);

  /// Opens the store with these faults from the first operation on. @return false if the power was
  /// cut, or a fault occurred, while it opened.
  bool open(const SimFlashFaults& faults);
  /// Runs random actions until there were `actions`, or the power was cut.
  void run(std::size_t actions);
  /// Waits for all operations in flight.
  void drain();
  /// Waits for all operations, and until the logs report that all of them are durable.
  void rest();
  enum class Crash { kPowerCut, kKill };
  /// Cuts the power if that has not happened, or kills the process only. Removes from the model
  /// what cannot survive.
  void crash(Crash how = Crash::kPowerCut);
  /// One of the two at random.
  Crash any_crash() { return random_.below(3) == 0 ? Crash::kKill : Crash::kPowerCut; }
  /// Closes the store after all operations are complete.
  void close();
  /// Reads all blocks and compares them with the model. A flipped block may be kCorrupt.
  void verify();
  /// Flips one bit of a written block of a durable extent. @return false if there is none.
  bool flip_data_bit();
  /// Flips one bit in the block of the durable write that was acknowledged last.
  bool flip_last_write();
  /// Flips one bit in one copy of superblocks and logs.
  void flip_metadata_bit(std::size_t copy);

  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] const std::string& open_error() const { return open_error_; }
  [[nodiscard]] std::uint64_t acknowledged() const { return acknowledged_; }
  [[nodiscard]] std::uint64_t corrupt_reads() const { return corrupt_reads_; }
  [[nodiscard]] std::uint64_t failures() const { return failures_; }
  [[nodiscard]] bool dead() const { return device_->dead(); }
  [[nodiscard]] const flash::Findings& findings() const { return findings_; }
  [[nodiscard]] Prng& random() { return random_; }

 private:
  using Content = std::shared_ptr<const std::vector<std::byte>>;  ///< nullptr: never written
  using Contents = std::vector<Content>;                          ///< empty: unknown

  struct Action {
    enum class Kind { kRead, kWrite, kFree } kind = Kind::kRead;
    flash::ExtentId extent;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::vector<std::byte> memory;  ///< with room for misalignment
    std::byte* begin = nullptr;
  };
  struct Model {
    flash::ExtentSpec spec;
    std::vector<Contents> blocks;  ///< possible contents per block; one if certain
    bool sure = false;             ///< it must survive a crash
    bool ending = false;           ///< its free was submitted
    bool flipped = false;
    std::uint64_t flipped_block = 0;
  };

  void act();
  void create();
  void transfer(Action::Kind kind);
  void free_one();
  void end_session();
  void pump();
  void settle(const flash::StoreCompletion& completion);
  void settle_write(const Action& action, Errc code);
  void settle_read(const Action& action, const flash::StoreCompletion& completion);
  void check_block(Model& model, std::uint64_t block, const std::byte* bytes, std::uint64_t first,
                   std::uint64_t count);
  [[nodiscard]] static Contents after_write(const Contents& before, const Action& action,
                                            std::uint64_t block);
  static void allow_too(Contents& may, const Contents& more);
  void verify_extent(flash::ExtentId id, Model& model);
  void forget_after_crash();
  [[nodiscard]] Model* pick();
  [[nodiscard]] bool flip_block(flash::ExtentId id, std::optional<std::uint64_t> extent_block);
  void complain(const std::string& what);
  [[nodiscard]] std::unique_ptr<flash::Device> covered(std::unique_ptr<flash::Device> device) const;

  Prng random_;
  const bool encrypted_;
  std::vector<std::shared_ptr<SimDisk>> disks_;
  SimFlash* device_ = nullptr;  ///< owned by the store
  std::unique_ptr<flash::ExtentStore> store_;
  flash::Findings findings_;
  std::map<flash::ExtentId, Model> models_;
  std::map<std::uint64_t, Action> actions_;  ///< in flight, in order of submission
  std::uint64_t next_op_ = 1;
  std::uint64_t salt_ = 1;
  std::uint64_t session_ = 1;
  std::uint64_t acknowledged_ = 0;
  std::uint64_t corrupt_reads_ = 0;
  std::uint64_t failures_ = 0;
  flash::ExtentId last_extent_;  ///< extent of the durable write that was acknowledged last
  std::uint64_t last_block_ = 0;
  bool faulty_ = false;  ///< operations may fail for reasons that the model does not know
  std::string wrong_;
  std::string open_error_;
};

}  // namespace ho::test
