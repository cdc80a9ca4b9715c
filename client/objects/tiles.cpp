#include "client/objects/tiles.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "common/base/checksum.hpp"

namespace ho::client {

namespace {

constexpr std::uint64_t kManifest = UINT64_MAX;  // no tensor's number

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::uint64_t seed_of(const ObjectPartId& id, std::uint64_t tensor, std::uint64_t chunk) {
  const std::array<std::uint64_t, 6> parts{
      checksum64(bytes_of(id.name)), id.version, id.run, id.part, tensor, chunk};
  return checksum64(std::as_bytes(std::span(parts)));
}

/// Texts are preceded by their lengths, so that no two lists look the same.
void append(std::string& to, const std::string& text) {
  to += std::to_string(text.size()) + ":" + text;
}

}  // namespace

Result<layout::Placement> placement_of(const layout::Mesh& mesh, const ObjectTensor& tensor) {
  if (auto ok = layout::check_shape(tensor.shape); !ok) {
    return ok.error().at(tensor.name + ": shape");
  }
  std::string text = tensor.layout;
  if (text.empty()) {
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) text += i == 0 ? "-" : ";-";
  }
  auto layout = layout::parse_layout(text, mesh);
  if (!layout) return layout.error().at(tensor.name);
  if (!layout->partials.empty()) {
    return Error(Errc::kInvalidArgument,
                 tensor.name + ": a partial value can be neither published nor read; leave out +");
  }
  return layout::Placement{mesh, std::move(*layout)};
}

std::size_t holder_of(const layout::Placement& placement, std::size_t position) {
  const auto at = placement.mesh.coordinates(position);
  std::vector<bool> divides(at.size(), false);
  for (const auto& axes : placement.layout.dimensions) {
    for (const std::uint32_t axis : axes) divides[axis] = true;
  }
  std::size_t out = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    out = out * placement.mesh.axes[i].size + (divides[i] ? at[i] : 0);
  }
  return out;
}

Result<std::size_t> position_of(const layout::Mesh& mesh, std::uint32_t rank) {
  const auto at = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
  if (at != mesh.ranks.end()) return static_cast<std::size_t>(at - mesh.ranks.begin());
  return Error(Errc::kInvalidArgument, "rank " + std::to_string(rank) + " is not in the mesh");
}

ObjectChecksum description_of(const std::string& mesh, const std::vector<ObjectTensor>& tensors,
                              Chunking chunking) {
  std::string all;
  append(all, mesh);
  for (const ObjectTensor& tensor : tensors) {
    append(all, tensor.name);
    append(all, tensor.layout);
    append(all, tensor.dtype);
    append(all, std::to_string(tensor.element_bytes));
    for (const std::uint64_t size : tensor.shape) append(all, std::to_string(size));
  }
  return checksum128(bytes_of(all), static_cast<std::uint64_t>(chunking));
}

std::uint64_t chunk_seed(const ObjectPartId& id, std::size_t tensor, std::uint64_t chunk) {
  return seed_of(id, tensor, chunk);
}

std::uint64_t manifest_seed(const ObjectPartId& id) { return seed_of(id, kManifest, 0); }

}  // namespace ho::client
