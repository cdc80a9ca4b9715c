#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/objects/publisher.hpp"
#include "client/objects/relay_plan.hpp"
#include "client/objects/subscriber.hpp"
#include "client/pool/pool.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// Reads versions together with the other ranks that need the same tiles: each reads a part from
/// the publisher, publishes it, and reads the rest from the others. Tensors go in groups, so that
/// the publisher's link and those between the ranks work at the same time.
///
///   for each group, a few at a time:  own part from the publisher -> for each step: publish what
///                                     this rank has -> acquire what all ranks of the step have ->
///                                     read the others' parts
///
/// All ranks want the same tensors in the same order, since groups are made of them.
///
/// The ranks read the same versions in the same order. A rank that others wait for in vain costs
/// them the wait, and they read the whole from the publisher. Relays are objects like any other,
/// with checksums of their own.
///
/// Threads: as the subscriber. Both outlive it, subscriber and pool.
class Relays {
 public:
  struct Options {
    std::string relay;           ///< as parse_relay() reads it
    std::uint64_t run = 0;       ///< the same for all ranks of a program, and no other's
    std::uint32_t versions = 2;  ///< of this rank's parts, kept
  };
  /// @param whole  reads the versions, where the others do not help.
  /// @return kInvalidArgument: an axis that the mesh lacks, no run, no versions or too many, a name
  /// that is too long, or two wanted tensors of one name.
  [[nodiscard]] static Result<std::unique_ptr<Relays>> create(Pool& pool, Subscriber& whole,
                                                              const Options& options);
  Relays(const Relays&) = delete;
  Relays& operator=(const Relays&) = delete;
  ~Relays() = default;

  /// As whole.read(), of the version that it has open.
  [[nodiscard]] Result<void> read();

  /// How many reads took the rest from other ranks, and how many did not.
  [[nodiscard]] std::uint64_t relayed() const { return relayed_; }
  [[nodiscard]] std::uint64_t direct() const { return direct_; }
  /// What a relayed read fetches from the publisher; 0 before the first.
  [[nodiscard]] std::uint64_t fetched_bytes() const;

 private:
  /// An object of the ranks of a step.
  struct Step {
    std::unique_ptr<Publisher> publisher;
    std::unique_ptr<Subscriber> subscriber;
  };
  /// Tensors that go together.
  struct Group {
    std::unique_ptr<Subscriber> first;  ///< this rank's own part
    std::vector<Step> steps;            ///< in which this rank shares tiles
  };

  Relays(Pool& pool, Subscriber& whole, const Options& options) noexcept
      : pool_(pool), whole_(whole), options_(options) {}
  [[nodiscard]] Result<void> prepare();
  [[nodiscard]] Result<Group> make_group(std::size_t begin, std::span<const ObjectTensor> tensors,
                                         std::uint64_t link_bytes_per_s);
  [[nodiscard]] Result<void> read(Subscriber& from, Duration timeout,
                                  std::optional<std::uint64_t> identity = {});
  [[nodiscard]] Result<Step> make_step(const RelayStep& plan, std::size_t number, std::size_t begin,
                                       std::uint64_t link_bytes_per_s);
  [[nodiscard]] Result<void> try_read();
  [[nodiscard]] Result<void> share(Group& group, bool again);
  [[nodiscard]] Result<void> publish(Step& step, bool again);

  Pool& pool_;
  Subscriber& whole_;
  const Options options_;
  SteadyClock clock_;
  std::uint64_t plan_ = 0;      ///< the subscriber's, that what follows is for; 0: none
  std::uint64_t version_ = 0;   ///< that was read last, and may be published; 0: none
  std::uint64_t identity_ = 0;  ///< likewise
  std::vector<Group> groups_;
  std::uint64_t relayed_ = 0;
  std::uint64_t direct_ = 0;
  std::uint32_t missed_ = 0;  ///< direct reads in a row
};

}  // namespace ho::client
