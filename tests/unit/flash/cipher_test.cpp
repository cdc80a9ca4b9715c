// Encrypted paths: what is on them, and which keys open them.
#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/device/cipher/cipher_device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/flash/store_rig.hpp"

namespace {

using namespace ho;
using namespace ho::flash;
using test::bytes_of;
using Keys = std::vector<std::optional<PathKey>>;

PathKey key_of(unsigned seed) {
  std::array<std::byte, PathKey::kBytes> bytes{};
  Prng random(seed);
  for (std::byte& one : bytes) one = static_cast<std::byte>(random.below(256));
  return PathKey(bytes);
}

/// A rig over one disk, opened with a key or none.
struct Rig : test::StoreRig {
  Result<void> open_with(std::optional<PathKey> key) {
    store.reset();
    auto simulated = std::make_unique<test::SimFlash>(disks, ++salt, faults);
    sim = simulated.get();
    device = std::move(simulated);
    if (key) device = make_cipher_device(std::move(device), Keys{std::move(key)});
    return open();
  }
  [[nodiscard]] bool holds(std::string_view text) const {
    const auto all = disks[0]->current();
    const auto wanted = std::as_bytes(std::span(text));
    return std::search(all.begin(), all.end(), wanted.begin(), wanted.end()) != all.end();
  }
};

const std::string kPattern = "these are the weights of a model";

std::vector<std::byte> pattern_of(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::byte>(kPattern[i % kPattern.size()]);
  }
  return out;
}

ExtentId write_durable(Rig& rig, std::size_t bytes) {
  ExtentSpec spec;
  spec.length_bytes = bytes;
  spec.policy = Policy::kDurable;
  spec.owner = "uid 61001";
  spec.label = "a job with a name";
  const auto made = rig.store->create(spec);
  REQUIRE(made.ok());
  REQUIRE(rig.write(*made, 0, pattern_of(bytes)).done.code == Errc::kOk);
  return *made;
}

std::string refusal(Rig& rig, std::optional<PathKey> key) {
  const std::vector<std::byte> before(rig.disks[0]->current().begin(),
                                      rig.disks[0]->current().end());
  const auto opened = rig.open_with(std::move(key));
  REQUIRE(!opened);
  CHECK(opened.error().code() == Errc::kConflict);
  const auto after = rig.disks[0]->current();
  CHECK(std::equal(before.begin(), before.end(), after.begin(), after.end()));
  return opened.error().context();
}

}  // namespace

TEST_CASE("cipher: no bytes of jobs or of their names are on the path") {
  constexpr std::size_t kBytes = 192 * kKiB;
  for (const bool encrypted : {false, true}) {
    INFO("encrypted: " << encrypted);
    const auto key = encrypted ? std::optional(key_of(1)) : std::nullopt;
    Rig rig;
    REQUIRE(rig.open_with(key).ok());
    const ExtentId extent = write_durable(rig, kBytes);
    REQUIRE(rig.store->close().ok());
    for (const char* const text :
         {kPattern.c_str(), "uid 61001", "a job with a name", "Hframe01"}) {
      CHECK(rig.holds(text) == !encrypted);
    }
    CHECK(rig.holds("Hflash01"));  // superblocks say what the path is
    // What a kill leaves is read again, and so is what a close leaves.
    for (int start = 0; start < 2; ++start) {
      REQUIRE(rig.open_with(key).ok());
      CHECK(rig.store->paths()[0].encrypted == encrypted);
      std::vector<std::byte> read(kBytes);
      REQUIRE(rig.read(extent, 0, read).done.code == Errc::kOk);
      CHECK(read == pattern_of(kBytes));
      CHECK(rig.store->find(extent)->about.label == "a job with a name");
      if (start == 0) rig.sim->kill();
    }
  }
}

TEST_CASE("cipher: a wrong key, a missing one and one too many are named, and nothing changes") {
  Rig rig;
  REQUIRE(rig.open_with(key_of(1)).ok());
  const ExtentId extent = write_durable(rig, 8 * kKiB);
  REQUIRE(rig.store->close().ok());
  CHECK(refusal(rig, key_of(2)).find("encrypted with another key") != std::string::npos);
  CHECK(refusal(rig, std::nullopt).find("it is encrypted: name its key_file") != std::string::npos);
  REQUIRE(rig.open_with(key_of(1)).ok());
  std::vector<std::byte> read(8 * kKiB);
  REQUIRE(rig.read(extent, 0, read).done.code == Errc::kOk);
  CHECK(read == pattern_of(8 * kKiB));
  Rig plain;
  REQUIRE(plain.open_with(std::nullopt).ok());
  REQUIRE(plain.store->close().ok());
  CHECK(refusal(plain, key_of(1)).find("it is not encrypted, and has a key_file") !=
        std::string::npos);
}

TEST_CASE("cipher: a block is AES-256-XTS of OpenSSL with its number on the path as the tweak") {
  const PathKey key = key_of(3);
  const auto disk = std::make_shared<test::SimDisk>(2 * kMiB);
  const auto device = make_cipher_device(
      std::make_unique<test::SimFlash>(std::vector{disk}, 1, test::SimFlashFaults()), Keys{key});
  AlignedMemory aligned(2 * kBlockBytes);
  const auto memory = aligned.span().first(2 * kBlockBytes);
  const auto plain = pattern_of(2 * kBlockBytes);
  std::copy(plain.begin(), plain.end(), memory.begin());
  const auto is_plain = [&] { return std::equal(plain.begin(), plain.end(), memory.begin()); };
  const auto run = [&](DeviceOpKind kind, std::uint64_t offset) {
    REQUIRE(device->submit({OpId(9), kind, PathIndex(0), offset, memory}).ok());
    Completion done;
    while (device->poll(std::span(&done, 1)) == 0) continue;
    CHECK(done.op == OpId(9));
    REQUIRE(done.code == Errc::kOk);
  };
  run(DeviceOpKind::kWrite, 5 * kBlockBytes);
  CHECK(is_plain());
  for (const std::uint64_t block : {std::uint64_t{5}, std::uint64_t{6}}) {
    std::array<unsigned char, 16> tweak{};
    std::memcpy(tweak.data(), &block, sizeof(block));
    std::vector<unsigned char> expected(kBlockBytes);
    EVP_CIPHER_CTX* const context = ::EVP_CIPHER_CTX_new();
    int moved = 0;
    REQUIRE(::EVP_EncryptInit_ex(context, ::EVP_aes_256_xts(), nullptr,
                                 reinterpret_cast<const unsigned char*>(key.bytes().data()),
                                 tweak.data()) == 1);
    REQUIRE(::EVP_EncryptUpdate(context, expected.data(), &moved,
                                reinterpret_cast<const unsigned char*>(plain.data()),
                                static_cast<int>(kBlockBytes)) == 1);
    ::EVP_CIPHER_CTX_free(context);
    CHECK(std::memcmp(disk->current().data() + block * kBlockBytes, expected.data(), kBlockBytes) ==
          0);
  }
  std::ranges::fill(memory, std::byte{0});
  run(DeviceOpKind::kRead, 5 * kBlockBytes);
  CHECK(is_plain());
  // The same bytes at another place are another block.
  const auto disk_bytes = disk->current();
  std::copy_n(disk_bytes.begin() + 5 * kBlockBytes, kBlockBytes,
              disk_bytes.begin() + 7 * kBlockBytes);
  run(DeviceOpKind::kRead, 6 * kBlockBytes);
  CHECK(std::memcmp(memory.data(), plain.data(), kBlockBytes) == 0);
  CHECK(std::memcmp(memory.data() + kBlockBytes, plain.data(), kBlockBytes) != 0);
}

TEST_CASE("cipher: a changed block is corrupt, and others are as they were") {
  Rig rig;
  REQUIRE(rig.open_with(key_of(4)).ok());
  const ExtentId extent = write_durable(rig, 4 * kBlockBytes);
  REQUIRE(rig.store->close().ok());
  rig.store.reset();
  const auto geometry = plan_geometry(rig.disks[0]->size());
  REQUIRE(geometry.ok());
  rig.disks[0]->flip(geometry->data_offset(1) + 77, 3);
  REQUIRE(rig.open_with(key_of(4)).ok());
  std::vector<std::byte> block(kBlockBytes);
  for (std::uint64_t i = 0; i < 4; ++i) {
    const Errc code = rig.read(extent, i * kBlockBytes, block).done.code;
    CHECK(code == (i == 1 ? Errc::kCorrupt : Errc::kOk));
    if (i != 1) CHECK(block == pattern_of(kBlockBytes));
  }
}

TEST_CASE("cipher: a key file is 64 bytes that others cannot read") {
  const test::TempFolder folder;
  const std::string file = folder.file("key");
  const auto write = [&](std::size_t bytes, mode_t mode) {
    std::ofstream out(file, std::ios::binary);
    for (std::size_t i = 0; i < bytes; ++i) out.put(static_cast<char>(i));
    out.close();
    REQUIRE(::chmod(file.c_str(), mode) == 0);
  };
  CHECK(PathKey::read(file).error().code() == Errc::kNotFound);
  write(64, 0600);
  const auto key = PathKey::read(file);
  REQUIRE(key.ok());
  CHECK(key->bytes()[63] == std::byte{63});
  CHECK(key->check() == PathKey::read(file)->check());
  CHECK(key->check() != key_of(1).check());
  CHECK(key->check() != KeyCheck{});
  write(64, 0640);
  CHECK(PathKey::read(file).ok());
  for (const mode_t mode : {mode_t{0644}, mode_t{0604}, mode_t{0660}}) {
    write(64, mode);
    const auto open_to_others = PathKey::read(file);
    CHECK(open_to_others.error().code() == Errc::kPermissionDenied);
    CHECK(open_to_others.error().context().find("chmod 0600 " + file) != std::string::npos);
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{63}, std::size_t{65}}) {
    write(bytes, 0600);
    CHECK(PathKey::read(file).error().context().find("not 64 bytes") != std::string::npos);
  }
  std::ofstream(file, std::ios::binary) << std::string(64, 'x');
  CHECK(PathKey::read(file).error().context().find("halves are equal") != std::string::npos);
  CHECK(PathKey::read(folder.file("")).error().context().find("not a file") != std::string::npos);
}
