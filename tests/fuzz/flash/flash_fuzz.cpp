#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/check.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace {

using namespace ho;
using namespace ho::flash;

/// An accepted superblock can be written and read back.
void superblock(std::span<const std::byte> bytes) {
  std::vector<std::byte> block(kBlockBytes);
  std::copy_n(bytes.begin(), std::min(bytes.size(), block.size()), block.begin());
  const auto super = decode_superblock(std::span<const std::byte, kBlockBytes>(block));
  if (!super) return;
  std::vector<std::byte> again(kBlockBytes);
  encode_superblock(*super, std::span<std::byte, kBlockBytes>(again));
  HO_CHECK(decode_superblock(std::span<const std::byte, kBlockBytes>(again)).ok());
}

/// Applies records to a table. Either it refuses them, or its snapshot gives the same table again.
void records(std::span<const std::byte> bytes) {
  Table table(0, 1, 4096);
  RecordReader reader(bytes);
  for (;;) {
    const auto record = reader.next();
    if (!record) return;
    if (!*record) break;
    if (!table.apply(**record)) return;
  }
  if (!table.finish()) return;
  Table again(0, 1, 4096);
  SnapshotCursor cursor;
  for (bool more = true; more;) {
    std::vector<std::byte> frame(4096);
    RecordWriter out(frame);
    more = cursor.put(table, out);
    HO_CHECK(!more || out.bytes() > 0);
    const auto written = std::span<const std::byte>(frame).first(out.bytes());
    RecordReader back(written);
    for (auto record = back.next(); record->has_value(); record = back.next()) {
      HO_CHECK(again.apply(**record).ok());
    }
  }
  HO_CHECK(again.finish().ok() && again.shards().size() == table.shards().size());
  for (const auto& [id, shard] : table.shards()) {
    const Shard* const copy = again.find(id);
    HO_CHECK(copy != nullptr && copy->physical == shard.physical && copy->sums == shard.sums);
  }
}

}  // namespace

/// Parses parts of a flash path. The first byte selects the part.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] % 3 == 0) superblock(bytes);
  if (data[0] % 3 == 1) static_cast<void>(open_frame(bytes));
  if (data[0] % 3 == 2) records(bytes);
  return 0;
}
