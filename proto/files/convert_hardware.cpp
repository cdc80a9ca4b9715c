#include <hardware.pb.h>

#include "common/model/check_graph.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/convert_parts.hpp"
#include "proto/files/file.hpp"
#include "proto/files/message.hpp"

namespace ho {

Result<Hardware> parse_hardware(std::string_view bytes, GraphEncoding encoding,
                                const std::string& file) {
  hyperoffload::v1::Hardware message;
  if (auto parsed = wire::parse(bytes, encoding, message); !parsed) return parsed.error().at(file);
  Hardware hardware = wire::from_wire(message);
  if (auto checked = check_hardware(hardware); !checked) return checked.error().at(file);
  return hardware;
}

Result<Hardware> read_hardware_file(const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  const auto bytes = read_whole_file(path, wire::kInputBytesMax);
  if (!bytes) return bytes.error();
  return parse_hardware(*bytes, *encoding, path);
}

namespace {

std::string serialize_hardware(const Hardware& hardware, GraphEncoding encoding) {
  hyperoffload::v1::Hardware message;
  wire::to_wire(hardware, message);
  return wire::serialize(message, encoding);
}

}  // namespace

std::string hardware_to_json(const Hardware& hardware) {
  return serialize_hardware(hardware, GraphEncoding::kJson);
}

Result<void> write_hardware_file(const Hardware& hardware, const std::string& path) {
  const auto encoding = wire::encoding_of(path);
  if (!encoding) return encoding.error();
  return write_whole_file(path, serialize_hardware(hardware, *encoding));
}

}  // namespace ho
