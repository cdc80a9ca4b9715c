#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/seeds.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using test::StagingClient;

constexpr std::uint64_t kPieceBytes = 32 * kKiB;
constexpr std::uint64_t kPieces = 64;

/// What the extent holds, by piece: the version that was acknowledged last, and those asked for
/// since then, any of which may have been taken.
struct Piece {
  std::uint64_t acknowledged = 0;
  std::vector<std::uint64_t> maybe;
};

std::uint64_t seed_of(std::uint64_t piece, std::uint64_t version) {
  return piece * 1'000'003 + version;
}

/// Reads every piece and says which version it has. @return false: one that cannot be.
bool adopt(StagingClient& client, const FlashExtent& extent, std::vector<Piece>& pieces) {
  const auto here = client.memory().first(kPieceBytes);
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    Piece& piece = pieces[i];
    const auto read =
        client.stage(client.spec(StageDirection::kIn, extent, i * kPieceBytes, 0, kPieceBytes));
    if (!read) {
      // Only what was never acknowledged may be missing.
      if (read.error().code() != Errc::kNotFound || piece.acknowledged != 0) return false;
      piece.maybe.clear();
      continue;
    }
    piece.maybe.push_back(piece.acknowledged);
    bool known = false;
    for (const std::uint64_t version : piece.maybe) {
      if (version == 0 || !test::filled(here, seed_of(i, version))) continue;
      piece.acknowledged = version;
      known = true;
      break;
    }
    if (!known) return false;
    piece.maybe.clear();
  }
  return true;
}

/// Kills a daemon under writes again and again, each time after so many were acknowledged as a seed
/// says, and looks after each kill for what it had acknowledged.
void kill_daemons(std::uint64_t rounds) {
  const test::TempFolder folder;
  const std::string path = folder.file("flash");
  test::make_file(path, 16 * kMiB);
  if (const std::string why = test::no_flash_here(path); !why.empty()) {
    test::skip(why);
    return;
  }
  Prng random(test::only_seed().value_or(20261121));
  std::vector<Piece> pieces(kPieces);
  FlashExtent extent;
  std::uint64_t version = 0;
  std::atomic<std::uint64_t> acknowledged{0};
  for (std::uint64_t round = 0; round < rounds; ++round) {
    INFO("round " << round);
    test::DaemonProcess daemon(folder, "kill", {test::with_flash(folder, path), {}, false});
    StagingClient client(test::unix_address(folder));
    if (round == 0) {
      extent = client.allocate(kPieces * kPieceBytes, FlashPolicy::kDurable);
    } else {
      REQUIRE(client.control().flash_open(client.session(), extent, test::soon()).ok());
      REQUIRE(adopt(client, extent, pieces));
    }
    struct Write {
      std::uint64_t piece, version;
      StagingClient::Outcome outcome;
    };
    std::vector<Write> writes;
    std::thread killer([&, enough = acknowledged.load() + random.below(200)] {
      (void)test::eventually(std::chrono::seconds(60), [&] { return acknowledged >= enough; });
      ::kill(daemon.pid(), SIGKILL);
    });
    // 24 slots of the segment take turns, so that no piece of it changes while it is read.
    for (std::uint64_t i = 0; i < 4000; ++i) {
      const std::uint64_t slot = i % 24;
      if (i >= 24) {
        Write& old = writes[i - 24];
        if (!old.outcome.get()) {
          old.version = 0;
          break;
        }
        pieces[old.piece].acknowledged = old.version;
        acknowledged += 1;
        old.version = 0;
      }
      // Each piece once among those in flight: writes of one piece have an order then.
      const std::uint64_t piece = i % kPieces;
      version += 1;
      test::fill(client.memory().subspan(slot * kPieceBytes, kPieceBytes), seed_of(piece, version));
      pieces[piece].maybe.push_back(version);
      writes.push_back({piece, version,
                        client.start(client.spec(StageDirection::kOut, extent, piece * kPieceBytes,
                                                 slot * kPieceBytes, kPieceBytes))});
    }
    for (Write& write : writes) {
      if (write.version == 0 || !write.outcome.valid()) continue;
      if (!write.outcome.get()) continue;
      pieces[write.piece].acknowledged = write.version;
      acknowledged += 1;
    }
    killer.join();
    CHECK(daemon.wait().signal == SIGKILL);
    // A version below the acknowledged one would be a lost write.
    for (Piece& piece : pieces) {
      std::erase_if(piece.maybe, [&](std::uint64_t one) { return one < piece.acknowledged; });
    }
  }
  {
    const test::DaemonProcess last(folder, "last", {test::with_flash(folder, path), {}, false});
    StagingClient client(test::unix_address(folder));
    REQUIRE(client.control().flash_open(client.session(), extent, test::soon()).ok());
    REQUIRE(adopt(client, extent, pieces));
  }
  std::printf("%llu rounds, %llu acknowledged writes\n", static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(acknowledged.load()));
  CHECK(acknowledged > rounds);
}

}  // namespace

TEST_CASE("stage: SIGKILL under stage_out load loses no acknowledged durable write") {
  kill_daemons(5);
}

TEST_CASE("stage: 50 SIGKILLs lose no acknowledged durable write", "[soak]") { kill_daemons(50); }
