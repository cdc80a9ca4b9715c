#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/connection.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/striping/rail.hpp"

namespace ho::transport {

class OfiDriver;
class OfiRail;

/// Local memory: each connection registers it for itself.
class OfiMemory final : public LocalMemory {
 public:
  OfiMemory(OfiDriver& driver, std::span<std::byte> memory) : bytes(memory), driver_(driver) {}
  ~OfiMemory() override;
  const std::span<std::byte> bytes;

 private:
  OfiDriver& driver_;
};

/// A region's key by rail.
class OfiRegion final : public RemoteRegion {
 public:
  OfiRegion(std::vector<RemoteKey> by_rail, std::uint64_t length, Rights allowed)
      : RemoteRegion(length, allowed), keys(std::move(by_rail)) {}
  const std::vector<RemoteKey> keys;
};

/// What the rails of one initiator share.
class OfiDriver final : public RailDriver {
 public:
  explicit OfiDriver(OfiOptions options);

  [[nodiscard]] const Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<std::vector<std::string>> rails_of(const std::string& address) override;
  [[nodiscard]] Result<std::unique_ptr<Rail>> connect(const RailSpec& spec) override;
  [[nodiscard]] Result<std::unique_ptr<LocalMemory>> register_memory(
      std::span<std::byte> memory) override;
  [[nodiscard]] Result<std::unique_ptr<RemoteRegion>> open_region(const RegionGrant& grant,
                                                                  std::size_t rails) override;
  /// Something of its goes.
  void forget(const OfiRail& rail) { std::erase(rails_, &rail); }
  void forget(const OfiMemory& memory);

 private:
  const OfiOptions options_;
  Caps caps_;
  std::vector<OfiRail*> rails_;
  std::vector<const OfiMemory*> memories_;
};

/// The connections to one address of a target: the first for small operations, the others for large
/// ones; one more on which keys are tried, since a refused one costs its connection.
class OfiRail final : public Rail {
 public:
  OfiRail(OfiDriver& driver, OfiAddress address, Endpoint::Reach how, std::uint32_t number,
          std::vector<std::unique_ptr<Connection>> lanes);
  ~OfiRail() override { driver_.forget(*this); }

  [[nodiscard]] State state() const override { return state_; }
  [[nodiscard]] Error failure() const override { return *failure_; }
  [[nodiscard]] Result<void> add(RemoteRegion& region, Trial trial, TimePoint deadline) override;
  [[nodiscard]] bool post(RailOp& op) override;
  bool progress(std::vector<RailOp*>& ended) override;
  void close() override;

  [[nodiscard]] Result<void> add_memory(const OfiMemory& memory);
  void remove_memory(const OfiMemory& memory);

 private:
  OfiDriver& driver_;
  const OfiAddress address_;
  const Endpoint::Reach how_;
  const std::uint32_t number_;
  State state_ = State::kConnecting;
  std::optional<Error> failure_;
  std::vector<std::unique_ptr<Connection>> lanes_;
  std::unique_ptr<Connection> trial_;  ///< null: not yet, or a key cost it
};

}  // namespace ho::transport
