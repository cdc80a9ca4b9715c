#include "tools/hyperoffload/objects/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/element_type.hpp"
#include "common/text/json.hpp"

namespace ho::cli {

namespace {

static_assert(std::endian::native == std::endian::little, "the format's byte order");

struct Type {
  std::string_view dtype;  ///< as element_type() calls it
  std::string_view type;
  std::uint64_t element_bytes;
};
constexpr std::array kTypes{Type{"float64", "F64", 8},
                            Type{"float32", "F32", 4},
                            Type{"float16", "F16", 2},
                            Type{"bfloat16", "BF16", 2},
                            Type{"float8_e4m3fn", "F8_E4M3", 1},
                            Type{"float8_e5m2", "F8_E5M2", 1},
                            Type{"int64", "I64", 8},
                            Type{"int32", "I32", 4},
                            Type{"int16", "I16", 2},
                            Type{"int8", "I8", 1},
                            Type{"uint64", "U64", 8},
                            Type{"uint32", "U32", 4},
                            Type{"uint16", "U16", 2},
                            Type{"uint8", "U8", 1},
                            Type{"bool", "BOOL", 1}};

constexpr std::uint64_t kAlign = 64;  // the format wants 8; vector loads like more

std::string header_of(const std::vector<FileTensor>& tensors,
                      const std::map<std::string, std::string>& notes) {
  JsonWriter json;
  json.begin_object().key("__metadata__").begin_object();
  for (const auto& [name, text] : notes) json.field(name, text);
  json.end();
  std::uint64_t at = 0;
  for (const FileTensor& one : tensors) {
    json.key(one.name).begin_object().field("dtype", one.type).key("shape").begin_array();
    for (const std::uint64_t size : one.shape) json.value(size);
    json.end().key("data_offsets").begin_array().value(at).value(at + one.bytes).end().end();
    at += one.bytes;
  }
  std::string text = std::move(json.end()).text();
  // Spaces at its end are allowed.
  text.resize(
      (text.size() + sizeof(std::uint64_t) + kAlign - 1) / kAlign * kAlign - sizeof(std::uint64_t),
      ' ');
  return text;
}

}  // namespace

std::optional<std::string_view> safetensors_type(std::string_view dtype,
                                                 std::uint64_t element_bytes) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& one) {
    return one.dtype == element_type(dtype) && one.element_bytes == element_bytes;
  });
  if (found == kTypes.end()) return std::nullopt;
  return found->type;
}

Result<SafetensorsFile> SafetensorsFile::create(const std::string& path,
                                                const std::vector<FileTensor>& tensors,
                                                const std::map<std::string, std::string>& notes) {
  const std::string header = header_of(tensors, notes);
  const std::uint64_t header_bytes = header.size();
  SafetensorsFile out;
  out.path_ = path;
  out.offsets_.push_back(sizeof(header_bytes) + header_bytes);
  for (const FileTensor& one : tensors) out.offsets_.push_back(out.offsets_.back() + one.bytes);
  const auto size = static_cast<off_t>(out.offsets_.back());
  out.file_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!out.file_.valid()) return errno_error(errno, path);
  // A full disk is better told now. Not every file system can reserve.
  if (::fallocate(out.file_.get(), 0, 0, size) != 0 && errno != EOPNOTSUPP) {
    return errno_error(errno, path);
  }
  void* const memory = ::mmap(nullptr, out.offsets_.back(), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return errno_error(errno, "memory for " + path);
  out.bytes_ = {static_cast<std::byte*>(memory), out.offsets_.back()};
  std::memcpy(out.bytes_.data(), &header_bytes, sizeof(header_bytes));
  std::memcpy(out.bytes_.data() + sizeof(header_bytes), header.data(), header.size());
  return out;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      bytes_(std::exchange(other.bytes_, {})),
      offsets_(std::move(other.offsets_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

std::byte* SafetensorsFile::data(std::size_t tensor) const {
  HO_CHECK(tensor + 1 < offsets_.size() && !bytes_.empty());
  const bool empty = offsets_[tensor] == offsets_[tensor + 1];
  return empty ? nullptr : bytes_.data() + offsets_[tensor];
}

Result<void> SafetensorsFile::write() {
  std::span<const std::byte> left = bytes_;
  while (!left.empty()) {
    const ssize_t done = ::write(file_.get(), left.data(), left.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno_error(errno, path_);
    left = left.subspan(static_cast<std::size_t>(done));
  }
  if (::fsync(file_.get()) != 0) return errno_error(errno, path_);
  file_.reset();
  ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
  return {};
}

}  // namespace ho::cli
