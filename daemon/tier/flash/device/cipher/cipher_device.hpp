#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "daemon/tier/flash/device/cipher/path_key.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

/// A device whose paths are encrypted on `inner`, each with its own key: every block of 4 KiB with
/// AES-256-XTS, except those of operations with Coding::kPlain. Writes are encrypted into memory of
/// the device, which takes up to 1 MiB for each operation in flight; reads are decrypted in place.
/// About a microsecond of the owner's processor time for a block.
///
/// Memory that disappears meanwhile ends its operation with kUnavailable. This needs
/// install_memory_guard() on the owner's thread.
/// @param keys  by path; nullopt: the path is plain.
[[nodiscard]] std::unique_ptr<Device> make_cipher_device(std::unique_ptr<Device> inner,
                                                         std::vector<std::optional<PathKey>> keys);

}  // namespace ho::flash
