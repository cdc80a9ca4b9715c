#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "common/base/result.hpp"
#include "common/cli/console.hpp"
#include "common/layout/layout.hpp"
#include "common/layout/mesh.hpp"
#include "proto/files/convert.hpp"
#include "tools/hyperoffload/command.hpp"

namespace hyperoffload {
class Error;
class Subscriber;
}  // namespace hyperoffload

// What the commands have in common that read a published object under another layout.
namespace ho::cli {

/// An object, and the layout under which ranks have it.
struct ObjectArguments : PoolOptions {
  std::string name;
  std::optional<std::uint64_t> version;
  std::string mesh;
  std::vector<std::string> layouts;
  std::string tensors;
  std::vector<std::string> only;
  std::string secret_file;
};

/// What the arguments name, read.
struct ObjectInput {
  layout::Mesh mesh;
  std::vector<TensorMove> by_name;
  std::string secret;
};

/// A tensor of the object.
struct LaidTensor {
  std::string name;
  layout::Shape shape;
  std::uint64_t element_bytes = 0;
  std::string dtype;   ///< its program's
  std::string layout;  ///< empty: each rank has all of it
};

/// Adds NAME, --version, --layout, --tensors, --only and --secret-file.
/// @param layout, tensors  what the help says of these.
void add_object_options(CLI::App& command, ObjectArguments& args, const std::string& layout,
                        const std::string& tensors);

/// @return kInvalidArgument, kNotFound, ... with the option or the file.
[[nodiscard]] Result<ObjectInput> read_object_input(const ObjectArguments& args);

/// How long to wait for a version, as the library takes it.
[[nodiscard]] std::uint32_t timeout_ms(const ObjectArguments& args);
/// What one read of all that a reader wants fetches, by the version that is open.
[[nodiscard]] std::uint64_t fetched_bytes_of(const hyperoffload::Subscriber& reader);
/// The tensors of the open version, with their layouts in the object.
[[nodiscard]] Result<std::vector<LaidTensor>> tensors_of(const hyperoffload::Subscriber& reader);
/// Leaves out the tensors that no pattern of --only fits. Without patterns, all stay.
[[nodiscard]] Result<void> keep_only(const std::vector<std::string>& patterns,
                                     std::vector<LaidTensor>& tensors);
/// Sets each tensor's layout: the file's, else the one with as many dimensions; else it stays.
[[nodiscard]] Result<void> set_layouts(const ObjectArguments& args,
                                       const std::vector<TensorMove>& by_name,
                                       std::vector<LaidTensor>& tensors);
/// The sizes of a tensor's part at each position of the mesh.
[[nodiscard]] Result<std::vector<layout::Shape>> parts_of(const layout::Mesh& mesh,
                                                          const LaidTensor& tensor);
/// The bytes of a part of these sizes.
[[nodiscard]] std::uint64_t bytes_of(const LaidTensor& tensor, const layout::Shape& part);

/// What the library has thrown, by this thread's last call.
[[nodiscard]] Error error_of(const hyperoffload::Error& error);
/// Says why an object cannot be had. @param otherwise  how the command ends where the answer is not
/// "no", and the arguments are not to blame.
int complain_about_object(Console& console, const ObjectArguments& args, const Error& error,
                          Exit otherwise);

}  // namespace ho::cli
