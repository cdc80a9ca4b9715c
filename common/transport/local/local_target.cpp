#include <string>
#include <unordered_set>

#include "common/system/random.hpp"
#include "common/transport/local/local_transport.hpp"

namespace ho::transport {
namespace {

/// The daemon's side of the local driver. The descriptor is the real right of access; the key only
/// names the exposure.
class LocalTarget final : public Target {
 public:
  [[nodiscard]] const TargetCaps& caps() const override { return caps_; }

  /// A descriptor is all that gives access.
  [[nodiscard]] Result<std::string> admit(const Credentials& /*session*/) override {
    if (shut_) return Error(Errc::kUnavailable, "the target is shut");
    return std::string("local");
  }
  void dismiss(SessionId /*session*/) override {}
  [[nodiscard]] Result<std::string> fence(SessionId /*session*/,
                                          const RailFence& /*rail*/) override {
    return Error(Errc::kUnsupported, "local has no rails");
  }

  [[nodiscard]] Result<Exposure> expose(const ExposeRequest& request) override {
    if (shut_) return Error(Errc::kUnavailable, "the target is shut");
    if (request.memory.empty()) return Error(Errc::kInvalidArgument, "no memory to expose");
    const ExposureId id(next_id_++);
    exposures_.insert(id);
    return Exposure{id, std::to_string(random_u64()), {}};
  }

  [[nodiscard]] Result<void> revoke(ExposureId exposure) override {
    if (exposures_.erase(exposure) == 0) return Error(Errc::kNotFound, "no such exposure");
    return {};
  }

  /// Nobody is connected: initiators end with their mapping, which truncation takes from them.
  void shut() override { shut_ = true; }

  std::size_t progress() override { return 0; }
  [[nodiscard]] int wait_descriptor() const override { return -1; }
  [[nodiscard]] bool arm() override { return true; }

 private:
  const TargetCaps caps_{"local"};
  std::unordered_set<ExposureId> exposures_;
  std::uint64_t next_id_ = 1;
  bool shut_ = false;
};

}  // namespace

Result<std::unique_ptr<Target>> make_local_target() {
  return std::unique_ptr<Target>(std::make_unique<LocalTarget>());
}

}  // namespace ho::transport
