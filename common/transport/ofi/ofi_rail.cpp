#include "common/transport/ofi/ofi_rail.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/provider_names.hpp"
#include "common/transport/striping/initiator.hpp"

namespace ho::transport {
namespace {

constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 30U;

}  // namespace

OfiMemory::~OfiMemory() { driver_.forget(*this); }

OfiDriver::OfiDriver(OfiOptions options) : options_(std::move(options)) {
  caps_.name = "ofi";
  caps_.op_bytes_max = kOpBytesMax;
  caps_.depth_ops_max = options_.depth_ops_max;
  caps_.needs_peer_progress = true;
}

Result<std::vector<std::string>> OfiDriver::rails_of(const std::string& address) {
  const auto rails = decode_addresses(address);
  if (!rails) return rails.error();
  std::vector<std::string> each;
  for (const OfiAddress& rail : *rails) each.push_back(encode_address(rail));
  return each;
}

Result<std::unique_ptr<Rail>> OfiDriver::connect(const RailSpec& spec) {
  if (!spec.may_block) {
    return Error(Errc::kUnsupported, "a rail of ofi is connected at the start alone");
  }
  auto address = decode_address(spec.address);
  if (!address) return address.error();
  const auto provider =
      provider_towards(address->provider, options_.provider, options_.allow_emulation);
  if (!provider) return provider.error();
  address->provider = *provider;
  Endpoint::Reach how{Connection::kOpsMax + 1, options_.domain, {}};
  if (!options_.source_address.empty()) {
    auto source = source_name(options_.source_address, address->format);
    if (!source) return source.error();
    how.source = std::move(*source);
  }
  std::vector<std::unique_ptr<Connection>> lanes;
  while (lanes.size() < 1 + options_.connections) {
    auto lane = Connection::begin(*address, how);
    if (!lane) return lane.error();
    lanes.push_back(std::move(*lane));
  }
  auto rail = std::make_unique<OfiRail>(*this, std::move(*address), std::move(how), spec.number,
                                        std::move(lanes));
  for (const OfiMemory* const memory : memories_) {
    if (auto added = rail->add_memory(*memory); !added) return added.error();
  }
  rails_.push_back(rail.get());
  return std::unique_ptr<Rail>(std::move(rail));
}

Result<std::unique_ptr<LocalMemory>> OfiDriver::register_memory(std::span<std::byte> memory) {
  auto made = std::make_unique<OfiMemory>(*this, memory);
  for (OfiRail* const rail : rails_) {
    if (auto added = rail->add_memory(*made); !added) return added.error();
  }
  memories_.push_back(made.get());
  return std::unique_ptr<LocalMemory>(std::move(made));
}

void OfiDriver::forget(const OfiMemory& memory) {
  std::erase(memories_, &memory);
  for (OfiRail* const rail : rails_) rail->remove_memory(memory);
}

Result<std::unique_ptr<RemoteRegion>> OfiDriver::open_region(const RegionGrant& grant,
                                                             std::size_t rails) {
  auto keys = decode_keys(grant.key, rails);
  if (!keys) return keys.error();
  for (const RemoteKey& key : *keys) {
    if (key.length_bytes >= grant.length_bytes) continue;
    return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
  }
  const Rights rights = grant.rights == Rights::kRead ? Rights::kRead : keys->front().rights;
  return std::unique_ptr<RemoteRegion>(
      std::make_unique<OfiRegion>(std::move(*keys), grant.length_bytes, rights));
}

OfiRail::OfiRail(OfiDriver& driver, OfiAddress address, Endpoint::Reach how, std::uint32_t number,
                 std::vector<std::unique_ptr<Connection>> lanes)
    : driver_(driver),
      address_(std::move(address)),
      how_(std::move(how)),
      number_(number),
      lanes_(std::move(lanes)) {}

Result<void> OfiRail::add(RemoteRegion& region, Trial trial, TimePoint deadline) {
  if (trial == Trial::kNo) return {};
  if (trial_ == nullptr) {
    auto made = Connection::begin(address_, how_);
    if (!made) return made.error();
    trial_ = std::move(*made);
  }
  auto tried = trial_->try_key(static_cast<const OfiRegion&>(region).keys[number_], deadline);
  if (!tried) trial_.reset();
  return tried;
}

Result<void> OfiRail::add_memory(const OfiMemory& memory) {
  for (const auto& lane : lanes_) {
    if (auto added = lane->add_memory(&memory, memory.bytes); !added) return added;
  }
  return {};
}

void OfiRail::remove_memory(const OfiMemory& memory) {
  for (const auto& lane : lanes_) lane->remove_memory(&memory);
}

bool OfiRail::post(RailOp& op) {
  HO_CHECK(state_ == State::kOpen);
  Connection& lane =
      op.kind() == LaneKind::kSmall
          ? *lanes_.front()
          : **std::min_element(lanes_.begin() + 1, lanes_.end(), [](const auto& a, const auto& b) {
              return a->bytes() < b->bytes();
            });
  return lane.post(op, static_cast<const OfiRegion&>(*op.region).keys[number_]);
}

bool OfiRail::progress(std::vector<RailOp*>& ended) {
  if (state_ == State::kClosing) {
    for (const auto& lane : lanes_) lane->give_back(ended);
    trial_.reset();
    state_ = State::kClosed;
    return true;
  }
  if (state_ != State::kConnecting && state_ != State::kOpen) return false;
  bool moved = false;
  for (const auto& lane : lanes_) moved = lane->progress(ended) || moved;
  const auto failed = std::find_if(lanes_.begin(), lanes_.end(),
                                   [](const auto& lane) { return lane->failure().has_value(); });
  if (failed != lanes_.end()) {
    failure_ = (*failed)->failure();
    state_ = State::kFailed;
  } else if (state_ == State::kConnecting &&
             std::all_of(lanes_.begin(), lanes_.end(),
                         [](const auto& lane) { return lane->open(); })) {
    state_ = State::kOpen;
  }
  return moved;
}

void OfiRail::close() {
  if (state_ != State::kClosed) state_ = State::kClosing;
}

Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options,
                                                      const Clock& clock) {
  const bool sane = options.depth_ops_max > 0 && options.connections > 0 &&
                    options.connections <= OfiOptions::kConnectionsMax;
  if (!sane) return Error(Errc::kInvalidArgument, "an ofi option is zero or too large");
  return std::unique_ptr<Transport>(
      std::make_unique<Initiator>(std::make_unique<OfiDriver>(options),
                                  InitiatorOptions{.depth_ops_max = options.depth_ops_max}, clock));
}

}  // namespace ho::transport
