#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::cli {

/// A tensor of a file, as its header has it.
struct FileTensor {
  std::string name;                  ///< not "__metadata__", which the format takes for itself
  std::string_view type;             ///< as safetensors_type() calls it
  std::vector<std::uint64_t> shape;  ///< of what the file has; a size may be 0
  std::uint64_t bytes = 0;
};

/// What the format calls a program's type: "BF16" for "bf16" and "bfloat16". @return nothing: it
/// has no such type, or the type has elements of another size.
[[nodiscard]] std::optional<std::string_view> safetensors_type(std::string_view dtype,
                                                               std::uint64_t element_bytes);

/// A new file in the format that huggingface/safetensors describes: the size of a JSON header, the
/// header, the tensors' bytes. Its room on the disk is reserved at once. Its bytes are collected in
/// memory, which takes pages as they are filled; unlike pages of files, any device can register it.
/// One thread.
class SafetensorsFile {
 public:
  /// @param notes  texts for the header's "__metadata__".
  /// @return kAlreadyExists, kExhausted (no room on the disk), kIo, ... with the path.
  [[nodiscard]] static Result<SafetensorsFile> create(
      const std::string& path, const std::vector<FileTensor>& tensors,
      const std::map<std::string, std::string>& notes);
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;
  ~SafetensorsFile();

  /// A tensor's bytes, to be filled before write(). Null if it has none.
  [[nodiscard]] std::byte* data(std::size_t tensor) const;
  /// Writes all to the disk, and waits for it. The memory ends. @return kIo, kExhausted, ... with
  /// the path.
  [[nodiscard]] Result<void> write();

 private:
  SafetensorsFile() = default;

  std::string path_;
  UniqueFd file_;
  std::span<std::byte> bytes_;
  std::vector<std::uint64_t> offsets_;  ///< by tensor, and the end
};

}  // namespace ho::cli
