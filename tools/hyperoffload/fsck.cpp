#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/log/examine.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string path;
  bool json = false;
};

void print_words(const std::string& path, const flash::Examination& seen) {
  std::cout << path << ": path " << seen.super.path_index + 1 << " of " << seen.super.path_count
            << ", " << format_bytes(seen.geometry.path_bytes) << ", log " << seen.super.epoch
            << "\n  extents: " << seen.extents << " with "
            << format_bytes(seen.blocks * flash::kBlockBytes) << ", of which "
            << format_bytes(seen.blocks_written * flash::kBlockBytes) << " were written and read\n"
            << "  written to it so far: " << format_bytes(seen.wear.total_bytes) << "\n";
  for (const std::string& finding : seen.findings) std::cout << "  note: " << finding << "\n";
  for (const flash::BadBlock& bad : seen.bad) {
    std::cout << "  DAMAGED: extent " << bad.extent.value() << ", block " << bad.block << " (byte "
              << bad.path_offset << " of the path): " << errc_name(bad.code) << "\n";
  }
  if (seen.bad_blocks > seen.bad.size()) {
    std::cout << "  and " << seen.bad_blocks - seen.bad.size() << " more\n";
  }
  std::cout << (seen.bad_blocks == 0 ? "clean\n"
                                     : std::to_string(seen.bad_blocks) + " damaged blocks\n");
}

void print_json(const std::string& path, const flash::Examination& seen) {
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
  std::cout << out.text() << "\n";
}

int run(const Arguments& arguments) {
  flash::UringOptions options;
  options.paths = {arguments.path};
  options.mode = flash::DeviceMode::kReadOnly;
  auto device = flash::make_uring_device(options);
  if (!device) {
    std::cerr << "hyperoffload fsck: " << device.error().message() << "\n";
    return kExitBadInput;
  }
  const auto seen = flash::examine(**device, flash::PathIndex(0));
  if (!seen) {
    std::cerr << "hyperoffload fsck: " << seen.error().message() << "\n";
    return seen.error().code() == Errc::kCorrupt ? kExitIllegal : kExitBadInput;
  }
  if (arguments.json) {
    print_json(arguments.path, *seen);
  } else {
    print_words(arguments.path, *seen);
  }
  return seen->bad_blocks == 0 ? kExitDone : kExitIllegal;
}

}  // namespace

void add_fsck(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *app.add_subcommand(
      "fsck",
      "Check a flash path that no daemon uses: its log, and every block against its checksum. "
      "Changes nothing. Exit 0: clean, 1: damaged, 2: cannot be read");
  command.add_option("path", arguments->path, "file or block device")->required();
  command.add_flag("--json", arguments->json, "one object on stdout");
  command.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace ho::cli
