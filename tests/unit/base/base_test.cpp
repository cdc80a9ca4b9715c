#include <unistd.h>

#include <catch2/catch.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/checksum.hpp"
#include "common/base/error.hpp"
#include "common/base/log.hpp"
#include "common/base/prng.hpp"
#include "common/base/result.hpp"
#include "common/base/strong.hpp"
#include "common/base/units.hpp"
#include "common/system/unique_fd.hpp"
#include "common/text/split_text.hpp"
#include "tests/support/stderr_capture.hpp"

namespace ho::test {
namespace {

TEST_CASE("error: every code has its own name") {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(Errc::kIo); ++code) {
    names.insert(errc_name(static_cast<Errc>(code)));
  }
  CHECK(names.size() == static_cast<std::size_t>(Errc::kIo) + 1);
  CHECK(names.count("unknown") == 0);
}

TEST_CASE("log: a line stays one line of plain characters, whatever the values") {
  std::string line;
  {
    const StderrCapture captured;
    log(LogLevel::kError, "test", {{"peer", "a\nb\x1b[2J\r\"\\"}, {"plain", "x"}});
    line = captured.text();
  }
  CHECK(line.find("test peer=\"a\\nb\\x1b[2J\\x0d\\\"\\\\\" plain=x\n") != std::string::npos);
}

TEST_CASE("error: context grows outwards and the code stays") {
  const Error error = Error(Errc::kCorrupt, "bad checksum").at("step.hos");
  CHECK(error.code() == Errc::kCorrupt);
  CHECK(error.message() == "corrupt: step.hos: bad checksum");
}

TEST_CASE("error: errno values become codes with the system's text") {
  CHECK(errno_error(ENOENT, "x").code() == Errc::kNotFound);
  CHECK(errno_error(ENOSPC, "x").code() == Errc::kExhausted);
  CHECK(errno_error(ECONNRESET, "x").code() == Errc::kUnavailable);
  CHECK(errno_error(EXDEV, "x").code() == Errc::kIo);
  CHECK(errno_error(ENOENT, "file").context() == "file: No such file or directory");
}

TEST_CASE("result: holds a value or an error") {
  const Result<int> value = 5;
  REQUIRE(value.ok());
  CHECK(*value == 5);
  const Result<int> failed = Error(Errc::kBusy, "full");
  REQUIRE(!failed);
  CHECK(failed.error().code() == Errc::kBusy);
  const Result<void> done;
  CHECK(done.ok());
}

TEST_CASE("split_text: empty parts count, and a text without separators is one part") {
  using Parts = std::vector<std::string_view>;
  CHECK(split_text("a,,b", ',') == Parts{"a", "", "b"});
  CHECK(split_text("a,", ',') == Parts{"a", ""});
  CHECK(split_text("", ',') == Parts{""});
  CHECK(split_text("ab", ',') == Parts{"ab"});
}

TEST_CASE("units: sizes are parsed in binary units and refused if they do not fit") {
  CHECK(parse_bytes("4096") == 4096U);
  CHECK(parse_bytes("64K") == 64 * kKiB);
  CHECK(parse_bytes("64KiB") == 64 * kKiB);
  CHECK(parse_bytes("1.5gib") == kGiB + kGiB / 2);
  CHECK(parse_bytes("0.25M") == kMiB / 4);
  CHECK(parse_bytes("7B") == 7U);
  CHECK(parse_bytes("1PiB") == 1024 * 1024 * kGiB);
  CHECK(parse_bytes("16384PiB") == std::nullopt);
  for (const char* text : {"", "K", "-1", "1X", "1KK", "1.", "1.K", " 1", "1 K", "99999999999999T",
                           "18446744073709551616"}) {
    INFO(text);
    CHECK(!parse_bytes(text));
  }
}

TEST_CASE("units: sizes and durations are printed with three digits") {
  CHECK(format_bytes(17) == "17 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(10 * kMiB) == "10.0 MiB");
  CHECK(format_bytes(200 * kGiB) == "200 GiB");
  CHECK(format_duration_ns(780) == "780 ns");
  CHECK(format_duration_ns(45'600'000) == "45.6 ms");
}

TEST_CASE("units: rates are read in decimal units, or in binary ones that say so") {
  CHECK(parse_rate("400MB/s", "B/s") == 400e6);
  CHECK(parse_rate("400mb/s", "B/s") == 400e6);
  CHECK(parse_rate("1.5G", "B/s") == 1.5e9);
  CHECK(parse_rate("2MiB/s", "B/s") == 2.0 * double(kMiB));
  CHECK(parse_rate("4e8", "B/s") == 4e8);
  CHECK(parse_rate("7B/s", "B/s") == 7.0);
  CHECK(parse_rate("312TFLOP/s", "FLOP/s") == 312e12);
  for (const char* text :
       {"", "B/s", "0", "-1", "1X", "1KK", "1 MB/s", "1MB", "nan", "inf", "1e400"}) {
    INFO(text);
    CHECK(!parse_rate(text, "B/s"));
  }
  CHECK(format_rate(400e6, "B/s") == "400 MB/s");
  CHECK(format_rate(999, "B/s") == "999 B/s");
  CHECK(format_rate(1500, "B/s") == "1.50 kB/s");
}

TEST_CASE("units: times are seconds unless they name a unit") {
  CHECK(parse_duration_ns("2") == 2'000'000'000U);
  CHECK(parse_duration_ns("0.5s") == 500'000'000U);
  CHECK(parse_duration_ns("500ms") == 500'000'000U);
  CHECK(parse_duration_ns("20us") == 20'000U);
  CHECK(parse_duration_ns("7ns") == 7U);
  CHECK(parse_duration_ns("2min") == 120'000'000'000U);
  CHECK(parse_duration_ns("0") == 0U);
  for (const char* text : {"", "s", "-1", "1h", "1 s", "nan", "1e30"}) {
    INFO(text);
    CHECK(!parse_duration_ns(text));
  }
}

TEST_CASE("units: sums and alignment") {
  CHECK(checked_add(1, 2) == 3U);
  CHECK(!checked_add(UINT64_MAX, 1));
  CHECK(align_up(0, 64) == 0);
  CHECK(align_up(1, 64) == 64);
  CHECK(align_up(64, 64) == 64);
}

TEST_CASE("checksum: pieces give the checksum of the whole, and one bit changes it") {
  std::array<std::byte, 300> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  ChecksumStream stream;
  stream.update(std::span(bytes).first(1));
  stream.update(std::span(bytes).subspan(1, 256));
  stream.update(std::span(bytes).subspan(257));
  const std::uint64_t whole = checksum64(bytes);
  CHECK(stream.digest() == whole);
  bytes[150] ^= std::byte{1};
  CHECK(checksum64(bytes) != whole);
}

TEST_CASE("prng: the same seed gives the same numbers, on every machine") {
  Prng a(42);
  Prng b(42);
  Prng c(43);
  const std::uint64_t first = a.next();
  CHECK(first == b.next());
  CHECK(first != c.next());
  // xoshiro256** seeded by splitmix64(42), recorded so that any change shows.
  CHECK(first == 1546998764402558742U);
  for (int i = 0; i < 1000; ++i) {
    CHECK(a.below(10) < 10);
    const double unit = a.unit();
    CHECK((unit >= 0 && unit < 1));
  }
}

TEST_CASE("unique_fd: closes once, and a moved-from object is empty") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  UniqueFd moved(std::move(write_end));
  CHECK(!write_end.valid());
  moved.reset();
  char byte = 0;
  CHECK(::read(read_end.get(), &byte, 1) == 0);  // end of file: the only writer is closed
}

}  // namespace
}  // namespace ho::test
