#include "proto/control/object_manifest.hpp"

#include <control.pb.h>

#include <limits>
#include <utility>

#include "common/base/check.hpp"

namespace ho {

namespace {

namespace pb = hyperoffload::v1;

constexpr std::uint32_t kManifestElementBytesMax = 1024;

}  // namespace

std::string write_manifest(const ObjectManifest& manifest) {
  HO_CHECK(manifest.tiles.size() == manifest.tensors.size());
  pb::ObjectManifest out;
  out.set_mesh(manifest.mesh);
  out.set_part(manifest.part);
  out.set_chunking(static_cast<std::uint32_t>(manifest.chunking));
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ObjectTensor& tensor = manifest.tensors[i];
    auto* const to = out.add_tensors();
    to->set_name(tensor.name);
    to->set_layout(tensor.layout);
    for (const std::uint64_t size : tensor.shape) to->add_shape(size);
    to->set_element_bytes(tensor.element_bytes);
    to->set_dtype(tensor.dtype);
    to->set_offset(manifest.tiles[i].offset_bytes);
    for (const ObjectChecksum& checksum : manifest.tiles[i].checksums) {
      to->add_checksums(checksum[0]);
      to->add_checksums(checksum[1]);
    }
  }
  return out.SerializeAsString();
}

Result<ObjectManifest> read_manifest(std::span<const std::byte> bytes) {
  const Error wrong(Errc::kCorrupt, "an object's manifest cannot be read");
  pb::ObjectManifest from;
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) return wrong;
  if (!from.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return wrong;
  if (from.chunking() != static_cast<std::uint32_t>(Chunking::kRows) &&
      from.chunking() != static_cast<std::uint32_t>(Chunking::kGrid)) {
    return Error(Errc::kUnsupported,
                 "published by a later version of HyperOffload; read it with that one");
  }
  ObjectManifest out;
  out.mesh = from.mesh();
  out.part = from.part();
  out.chunking = static_cast<Chunking>(from.chunking());
  for (const pb::ObjectTensor& tensor : from.tensors()) {
    if (tensor.element_bytes() == 0 || tensor.element_bytes() > kManifestElementBytesMax)
      return wrong;
    if (tensor.checksums_size() % 2 != 0) return wrong;
    out.tensors.push_back({tensor.name(),
                           tensor.layout(),
                           {tensor.shape().begin(), tensor.shape().end()},
                           tensor.element_bytes(),
                           tensor.dtype()});
    ObjectTile tile;
    tile.offset_bytes = tensor.offset();
    for (int i = 0; i < tensor.checksums_size(); i += 2) {
      tile.checksums.push_back({tensor.checksums(i), tensor.checksums(i + 1)});
    }
    out.tiles.push_back(std::move(tile));
  }
  return out;
}

}  // namespace ho
