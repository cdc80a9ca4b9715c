#include "tools/importers/bytes/unpack.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "tools/importers/import.hpp"

namespace ho::importers {

namespace {

Error too_large() {
  return Error(Errc::kOutOfRange,
               "more than " + std::to_string(kInputBytesMax) + " bytes unpacked are not read");
}

/// Owns zlib's state.
class Inflater {
 public:
  Inflater() { ready_ = ::inflateInit2(&stream_, kGzipWindow) == Z_OK; }
  ~Inflater() {
    if (ready_) ::inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  [[nodiscard]] Result<std::string> run(std::string_view packed) {
    if (!ready_) return Error(Errc::kExhausted, "zlib failed to initialize");
    // zlib takes a pointer to non-const but does not write there.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    std::string out;
    for (;;) {
      stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
      stream_.avail_out = static_cast<uInt>(chunk_.size());
      const int code = ::inflate(&stream_, Z_NO_FLUSH);
      if (code != Z_OK && code != Z_STREAM_END) {
        return Error(Errc::kCorrupt, "the gzip data is damaged or truncated");
      }
      const std::size_t got = chunk_.size() - stream_.avail_out;
      if (out.size() + got > kInputBytesMax) return too_large();
      out.append(chunk_.data(), got);
      if (code != Z_STREAM_END) continue;
      // Parallel packers write several members, one after the other.
      const bool more = stream_.avail_in > 2 && stream_.next_in[0] == 0x1f;
      if (!more || ::inflateReset(&stream_) != Z_OK) return out;
    }
  }

 private:
  static constexpr int kGzipWindow =
      15 + 16;  // zlib.h: adding 16 selects gzip's header and trailer
  z_stream stream_{};
  bool ready_ = false;
  std::array<char, 64 * 1024> chunk_{};
};

// POSIX ustar: headers and contents in blocks of 512 bytes.
constexpr std::size_t kBlockBytes = 512;

bool is_tar(std::string_view bytes) {
  constexpr std::size_t kMagicOffset = 257;
  return bytes.size() >= kBlockBytes && bytes.substr(kMagicOffset, 5) == "ustar";
}

Result<std::string_view> first_file(std::string_view archive) {
  constexpr std::size_t kSizeOffset = 124;
  constexpr std::size_t kSizeDigits = 11;
  constexpr std::size_t kTypeOffset = 156;
  while (is_tar(archive)) {
    std::uint64_t size = 0;
    const char* const digits = archive.data() + kSizeOffset;
    const auto [end, error] = std::from_chars(digits, digits + kSizeDigits, size, 8);
    archive.remove_prefix(kBlockBytes);
    if (error != std::errc() || end == digits || size > archive.size()) break;
    const char type = digits[kTypeOffset - kSizeOffset];
    if ((type == '0' || type == '\0') && size > 0) return archive.substr(0, size);
    const std::uint64_t blocks = (size + kBlockBytes - 1) / kBlockBytes;
    archive.remove_prefix(std::min<std::uint64_t>(blocks * kBlockBytes, archive.size()));
  }
  return Error(Errc::kCorrupt, "the tar archive contains no complete regular file");
}

}  // namespace

Result<std::string> unpack(std::string bytes) {
  if (bytes.size() > kInputBytesMax) return too_large();
  if (bytes.size() > 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b') {
    auto inflated = Inflater().run(bytes);
    if (!inflated) return inflated.error();
    bytes = *std::move(inflated);
  }
  if (!is_tar(bytes)) return bytes;
  const auto file = first_file(bytes);
  if (!file) return file.error();
  // In place: a copy would need twice the memory.
  bytes.resize(static_cast<std::size_t>(file->data() + file->size() - bytes.data()));
  bytes.erase(0, bytes.size() - file->size());
  return bytes;
}

}  // namespace ho::importers
