#include <tensors.pb.h>

#include <unordered_set>

#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "proto/files/message.hpp"

namespace ho {

Result<std::vector<TensorMove>> read_tensors_file(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  hyperoffload::v1::TensorList message;
  if (auto parsed = wire::parse(*bytes, *encoding, message); !parsed) {
    return parsed.error().at(path);
  }
  const auto bad = [&](const std::string& why) {
    return Error(Errc::kInvalidArgument, why).at(path);
  };
  if (message.tensors().empty()) return bad("it lists no tensors");
  std::vector<TensorMove> tensors;
  tensors.reserve(static_cast<std::size_t>(message.tensors_size()));
  std::unordered_set<std::string_view> names;
  for (const auto& each : message.tensors()) {
    const std::string what =
        "tensor " + std::to_string(tensors.size()) + " (\"" + each.name() + "\")";
    if (each.name().empty()) return bad(what + ": name is missing");
    if (!names.insert(each.name()).second) return bad(what + ": the name occurs twice");
    if (each.element_bytes() == 0 || each.element_bytes() > kElementBytesMax) {
      return bad(what + ": element_bytes must be 1 to " + std::to_string(kElementBytesMax));
    }
    TensorMove& one = tensors.emplace_back(TensorMove{each.name(),
                                                      {each.shape().begin(), each.shape().end()},
                                                      each.element_bytes(),
                                                      each.from(),
                                                      each.to()});
    if (!one.shape.empty()) continue;
    // A scalar is published as one element, whole on each rank.
    one.shape = {1};
    for (std::string* const layout : {&one.from, &one.to}) {
      if (layout->empty()) *layout = "-";
    }
  }
  return tensors;
}

}  // namespace ho
