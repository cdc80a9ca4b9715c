#include <string>
#include <utility>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "daemon/tier/flash/device/cipher/cipher_device.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/log/examine.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

std::string to_text(const std::string& path, const flash::Examination& seen, Format format) {
  Facts facts(path + (seen.bad_blocks == 0 ? ": clean" : ": DAMAGED"));
  facts.add("path", std::to_string(seen.super.path_index + 1) + " of " +
                        std::to_string(seen.super.path_count) + ", " +
                        format_bytes(seen.geometry.path_bytes) + ", log " +
                        std::to_string(seen.super.epoch));
  facts.add("extents", std::to_string(seen.extents) + " with " +
                           format_bytes(seen.blocks * flash::kBlockBytes));
  facts.add("checked", format_bytes(seen.blocks_written * flash::kBlockBytes) +
                           ", all that was written to them");
  facts.add("wear", format_bytes(seen.wear.total_bytes) + " written so far");
  for (const std::string& finding : seen.findings) facts.add("note", finding);
  for (const flash::BadBlock& bad : seen.bad) {
    facts.add("damaged", "extent " + std::to_string(bad.extent.value()) + ", block " +
                             std::to_string(bad.block) + " (byte " +
                             std::to_string(bad.path_offset) +
                             " of the path): " + std::string(errc_name(bad.code)));
  }
  if (seen.bad_blocks > seen.bad.size()) {
    facts.add("damaged", "and " + std::to_string(seen.bad_blocks - seen.bad.size()) + " more");
  }
  return facts.text(format);
}

std::string to_json(const std::string& path, const flash::Examination& seen) {
  JsonWriter out;
  out.begin_object()
      .field("path", path)
      .field("path_index", seen.super.path_index)
      .field("path_count", seen.super.path_count)
      .field("path_bytes", seen.geometry.path_bytes)
      .field("extents", seen.extents)
      .field("extent_bytes", seen.blocks * flash::kBlockBytes)
      .field("read_bytes", seen.blocks_written * flash::kBlockBytes)
      .field("written_bytes_total", seen.wear.total_bytes)
      .field("damaged_blocks", seen.bad_blocks);
  out.key("damaged").begin_array();
  for (const flash::BadBlock& bad : seen.bad) {
    out.begin_object()
        .field("extent", bad.extent.value())
        .field("block", bad.block)
        .field("path_offset", bad.path_offset)
        .field("code", errc_name(bad.code))
        .end();
  }
  out.end().key("notes").begin_array();
  for (const std::string& finding : seen.findings) out.value(finding);
  out.end().end();
  return std::move(out).text();
}

struct FsckOptions {
  std::string path;
  std::string key_file;  ///< empty: the path is plain
};

int run_fsck(Console& console, const FsckOptions& given) {
  const std::string& path = given.path;
  flash::UringOptions options;
  options.paths = {path};
  options.mode = flash::DeviceMode::kReadOnly;
  auto device = flash::make_uring_device(options);
  if (!device) return console.refuse(device.error());
  if (!given.key_file.empty()) {
    auto key = flash::PathKey::read(given.key_file);
    if (!key) return console.refuse(key.error());
    device = flash::make_cipher_device(std::move(*device), {*key});
  }
  const auto seen = flash::examine(**device, flash::PathIndex(0));
  if (!seen) {
    const bool damaged = seen.error().code() == Errc::kCorrupt;
    return console.complain(seen.error(), damaged ? kExitNo : kExitBadInput);
  }
  console.print(console.json() ? to_json(path, *seen) : to_text(path, *seen, console.format()));
  if (seen->bad_blocks == 0) return kExitDone;
  return console.answer_no(path + ": " + std::to_string(seen->bad_blocks) + " damaged blocks");
}

}  // namespace

void add_fsck(Program& program) {
  auto [command, options] = add_command<FsckOptions>(
      program, program.root(), "fsck", "Check a flash path that no daemon uses", run_fsck);
  command.add_option("PATH", options.path, "a file or block device")->required();
  command.add_option("--key-file", options.key_file, "the key of an encrypted path")
      ->type_name("FILE");
  set_manual(command,
             {"Reads the path's log and every written block, and compares each block with its "
              "checksum. Changes nothing.",
              {"hyperoffload fsck /var/lib/hyperoffload/flash"},
              {{kExitDone, "clean"}, {kExitNo, "damaged"}}});
}

}  // namespace ho::cli
