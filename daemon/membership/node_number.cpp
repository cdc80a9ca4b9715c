#include "daemon/membership/node_number.hpp"

#include <systemd/sd-id128.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>

#include "common/base/clock.hpp"
#include "common/base/log.hpp"
#include "daemon/membership/phone_book.hpp"
#include "proto/files/file.hpp"

namespace ho::daemon {

namespace {

/// For etcd to come up beside us; after that the service manager starts us again.
constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kPause = std::chrono::milliseconds(200);
constexpr std::uint64_t kFileBytesMax = 256;

/// Made by `systemd-id128 new`: our own key for deriving ids from a machine's.
constexpr sd_id128_t kApplication =
    SD_ID128_ARRAY(53, 76, 15, 44, cb, 15, 4e, 75, 96, 7f, ea, ce, 48, 75, ed, 23);

/// The file has "MACHINE NODE\n". @return nullopt: another machine's, as on a copied disk.
Result<std::optional<NodeId>> read_number(const std::string& file, const std::string& machine) {
  const auto text = read_whole_file(file, kFileBytesMax);
  if (!text && text.error().code() == Errc::kNotFound) return std::optional<NodeId>();
  if (!text) return text.error().at("id_file");
  const std::size_t space = std::min(text->find(' '), text->size());
  std::uint16_t number = 0;
  const std::string digits = text->substr(std::min(space + 1, text->size()));
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (parsed.ec != std::errc() || number > kNodeIdMax) {
    return Error(Errc::kCorrupt, "id_file: " + file + " is not \"MACHINE NODE\"; remove it");
  }
  if (text->substr(0, space) == machine) return std::optional<NodeId>(NodeId(number));
  log(LogLevel::kWarning, "id_file belongs to another machine", {{"file", file}});
  return std::optional<NodeId>();
}

}  // namespace

Result<std::string> machine_name(const EtcdSettings& settings) {
  if (!settings.machine_id.empty()) return settings.machine_id;
  sd_id128_t id{};
  if (const int error = ::sd_id128_get_machine_app_specific(kApplication, &id); error < 0) {
    return errno_error(-error, "etcd: machine_id is not set, and /etc/machine-id cannot be used");
  }
  std::array<char, SD_ID128_STRING_MAX> text{};
  return std::string(::sd_id128_to_string(id, text.data()));
}

Result<NodeId> find_node_number(const EtcdSettings& settings) {
  const auto machine = machine_name(settings);
  if (!machine) return machine.error();
  const auto known = read_number(settings.id_file, *machine);
  if (!known) return known.error();
  if (*known) return **known;
  EtcdClient etcd(settings);
  PhoneBook book(etcd, settings.prefix, *machine);
  const SteadyClock clock;
  const TimePoint end = clock.now() + kPatience;
  auto node = book.take_number();
  while (!node && clock.now() < end) {
    std::this_thread::sleep_for(kPause);
    node = book.take_number();
  }
  if (!node) return node.error().at("this node's number comes from etcd");
  const std::string text = *machine + " " + std::to_string(node->value()) + "\n";
  if (auto written = write_whole_file(settings.id_file, text); !written) {
    return written.error().at("id_file");
  }
  return *node;
}

}  // namespace ho::daemon
