#include "daemon/tier/flash/device/cipher/cipher_device.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <utility>

#include "common/base/check.hpp"
#include "common/system/memory_guard.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"

namespace ho::flash {

namespace {

enum class Way : std::uint8_t { kEncrypt, kDecrypt };

/// One direction of a path's cipher.
class Cipher {
 public:
  Cipher(const PathKey& key, Way way) : context_(::EVP_CIPHER_CTX_new()) {
    HO_CHECK(context_ != nullptr);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(key.bytes().data());
    HO_CHECK(::EVP_CipherInit_ex(context_.get(), ::EVP_aes_256_xts(), nullptr, bytes, nullptr,
                                 way == Way::kEncrypt ? 1 : 0) == 1);
  }

  /// Whole blocks; the first has this number on its path. `from` and `to` may be the same. Reads
  /// and writes nothing else, so that it may be abandoned in the middle.
  void run(std::uint64_t block, const std::byte* from, std::byte* to, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += kBlockBytes, ++block) {
      unsigned char tweak[16] = {};
      std::memcpy(tweak, &block, sizeof(block));  // little-endian machines only
      int moved = 0;
      HO_CHECK(::EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, tweak, -1) == 1);
      HO_CHECK(::EVP_CipherUpdate(context_.get(), reinterpret_cast<unsigned char*>(to + at), &moved,
                                  reinterpret_cast<const unsigned char*>(from + at),
                                  static_cast<int>(kBlockBytes)) == 1);
      HO_CHECK(moved == static_cast<int>(kBlockBytes));
    }
  }

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { ::EVP_CIPHER_CTX_free(context); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

struct Ciphers {
  Cipher encrypt;
  Cipher decrypt;
};

class CipherDevice final : public Device {
 public:
  CipherDevice(std::unique_ptr<Device> inner, std::vector<std::optional<PathKey>> keys)
      : memory_(inner->caps().depth_ops * kDeviceOpBytesMax),
        inner_(std::move(inner)),
        paths_(inner_->paths()),
        slots_(inner_->caps().depth_ops) {
    HO_CHECK(keys.size() == paths_.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ciphers_.emplace_back();
      if (!keys[i]) continue;
      paths_[i].key = keys[i]->check();
      ciphers_.back().emplace(Ciphers{{*keys[i], Way::kEncrypt}, {*keys[i], Way::kDecrypt}});
    }
    for (std::size_t i = slots_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
  }

  ~CipherDevice() override {
    // An operation that never ended may still write from there.
    if (free_.size() < slots_.size()) keep_for_good(std::move(memory_));
  }

  const std::vector<DevicePath>& paths() const override { return paths_; }
  const DeviceCaps& caps() const override { return inner_->caps(); }
  Result<void> add_memory(std::span<std::byte> memory) override {
    return inner_->add_memory(memory);
  }
  void remove_memory(std::span<std::byte> memory) override { inner_->remove_memory(memory); }

  Result<void> submit(const DeviceOp& op) override {
    HO_CHECK(op.path.value() < ciphers_.size() && op.memory.size() <= kDeviceOpBytesMax);
    if (free_.empty()) return Error(Errc::kBusy, "queue full");
    const std::uint32_t index = free_.back();
    DeviceOp own = op;
    own.op = OpId(index);
    if (op.kind == DeviceOpKind::kWrite && covered(op)) {
      own.memory = memory_.span().subspan(index * kDeviceOpBytesMax, op.memory.size());
      if (!encrypt(op, own.memory)) return fail(op);
    }
    if (auto begun = inner_->submit(own); !begun) return begun;
    free_.pop_back();
    slots_[index] = op;
    return {};
  }

  std::size_t poll(std::span<Completion> out) override {
    std::size_t count = 0;
    for (; count < out.size() && !failed_.empty(); ++count) {
      out[count] = failed_.front();
      failed_.pop_front();
    }
    const std::size_t more = inner_->poll(out.subspan(count));
    for (Completion& done : out.subspan(count, more)) finish(done);
    return count + more;
  }

  void wait(Duration time_max) override {
    if (failed_.empty()) inner_->wait(time_max);
  }
  void wake() override { inner_->wake(); }

 private:
  [[nodiscard]] bool covered(const DeviceOp& op) const {
    return op.coding == Coding::kSecret && ciphers_[op.path.value()].has_value();
  }

  /// @return false: the memory has disappeared.
  [[nodiscard]] bool encrypt(const DeviceOp& op, std::span<std::byte> to) {
    Cipher& cipher = ciphers_[op.path.value()]->encrypt;
    return guarded(op.memory, [&cipher, &op, to] {
      cipher.run(op.offset_bytes / kBlockBytes, op.memory.data(), to.data(), to.size());
    });
  }

  Result<void> fail(const DeviceOp& op) {
    failed_.push_back({op.op, Errc::kUnavailable, 0});
    return {};
  }

  void finish(Completion& done) {
    const auto index = static_cast<std::uint32_t>(done.op.value());
    HO_CHECK(index < slots_.size());
    const DeviceOp op = std::exchange(slots_[index], {});
    free_.push_back(index);
    done.op = op.op;
    if (done.code != Errc::kOk || op.kind != DeviceOpKind::kRead || !covered(op)) return;
    Cipher& cipher = ciphers_[op.path.value()]->decrypt;
    const bool there = guarded(op.memory, [&cipher, &op] {
      cipher.run(op.offset_bytes / kBlockBytes, op.memory.data(), op.memory.data(),
                 op.memory.size());
    });
    if (!there) done = {op.op, Errc::kUnavailable, 0};
  }

  /// kDeviceOpBytesMax a slot; pages of slots never used cost nothing. Outlives the inner device.
  AlignedMemory memory_;
  std::unique_ptr<Device> inner_;
  std::vector<DevicePath> paths_;
  std::vector<std::optional<Ciphers>> ciphers_;  ///< by path
  std::vector<DeviceOp> slots_;                  ///< by the number of the inner operation
  std::vector<std::uint32_t> free_;
  std::deque<Completion> failed_;  ///< writes that never reached their path
};

}  // namespace

std::unique_ptr<Device> make_cipher_device(std::unique_ptr<Device> inner,
                                           std::vector<std::optional<PathKey>> keys) {
  return std::make_unique<CipherDevice>(std::move(inner), std::move(keys));
}

}  // namespace ho::flash
