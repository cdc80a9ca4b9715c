#include <catch2/catch.hpp>

#include <zlib.h>

#include "tests/unit/importers/traces.hpp"
#include "tools/importers/bytes/literal_cursor.hpp"
#include "tools/importers/bytes/unpack.hpp"
#include "tools/importers/bytes/wire_cursor.hpp"
#include "tools/importers/draft.hpp"
#include "tools/importers/pytorch/operator_rules.hpp"

namespace ho::test {
namespace {

using importers::LiteralCursor;
using importers::WireCursor;

std::string gzip(std::string text) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(text.size() + 1024, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string tar_header(const std::string& name, std::size_t size, char type) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  char digits[12];
  std::snprintf(digits, sizeof digits, "%011zo", size);
  header.replace(124, 11, digits);
  header[156] = type;
  header.replace(257, 5, "ustar");
  return header;
}

TEST_CASE("literals: JSON and Python's repr are both read") {
  LiteralCursor in(R"( [1, 'it\'s', "\u0041\n", (None, True, -inf), {"k": [2.5e3]}] x)");
  const auto value = in.value();
  REQUIRE(value.ok());
  CHECK(value->back() == ']');
  CHECK(*in.word() == "x");
  CHECK(in.at_end());
  CHECK(*LiteralCursor(R"('it\'s')").string() == "it's");
  CHECK(*LiteralCursor(R"("\u0041\n\x42")").string() == "A\nB");
  CHECK(*importers::to_number("2.5e3") == 2500);
  CHECK(*importers::to_count("18446744073709551615") == UINT64_MAX);
  CHECK_FALSE(importers::to_count("18446744073709551616"));
  CHECK_FALSE(importers::to_count("-1"));
  CHECK_FALSE(importers::to_count("1.5"));
  CHECK_FALSE(importers::to_number("1x"));
}

TEST_CASE("literals: what is nested without end or not closed is refused") {
  CHECK_FALSE(LiteralCursor(std::string(1'000'000, '[')).value().ok());
  CHECK_FALSE(LiteralCursor(std::string(1'000'000, '(') + "]").value().ok());
  for (const std::string text : {"", "[", "[1", "[1,", "'abc", "\"\\", "[)", "]", ",", "{\"a\":"}) {
    CHECK_FALSE(LiteralCursor(text).value().ok());
  }
  CHECK_FALSE(LiteralCursor("\"\\u12\"").string().ok());
  CHECK_FALSE(LiteralCursor("\"" + std::string(3U << 20U, 'x') + "\"").string().ok());
}

TEST_CASE("wire: fields come back as they were written, and cut ones are broken") {
  const std::string bytes =
      WireWriter().number(1, UINT64_MAX).bytes(2, "text").number(300, 0).text();
  WireCursor in(bytes);
  REQUIRE(in.next());
  CHECK(in.number() == UINT64_MAX);
  REQUIRE(in.next());
  CHECK(in.bytes() == "text");
  REQUIRE(in.next());
  CHECK(in.field() == 300);
  CHECK_FALSE(in.next());
  CHECK_FALSE(in.broken());
  WireCursor cut(std::string_view(bytes).substr(0, bytes.size() - 1));
  while (cut.next()) continue;
  CHECK(cut.broken());
  for (const std::string_view bad :
       {std::string_view("\x00\x01", 2), std::string_view("\x0b\x01"),
        std::string_view("\x12\xff\xff\xff\xff\x7f"),
        std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")}) {
    WireCursor broken(bad);
    CHECK_FALSE(broken.next());
    CHECK(broken.broken());
  }
}

TEST_CASE("unpack: gzip and the first file of a tar archive are taken out") {
  const std::string text = "{\"nodes\": []}";
  CHECK(*importers::unpack(text) == text);
  CHECK(*importers::unpack(gzip(text)) == text);
  CHECK(*importers::unpack(gzip("one, ") + gzip("two")) == "one, two");
  std::string archive =
      tar_header("folder/", 0, '5') + tar_header("a.json", text.size(), '0') + text;
  archive.resize(512 * 4);
  CHECK(*importers::unpack(archive) == text);
  CHECK(*importers::unpack(gzip(archive)) == text);
  const std::string packed = gzip(archive);
  for (std::size_t length = 3; length < packed.size(); ++length) {
    CHECK_FALSE(importers::unpack(packed.substr(0, length)).ok());
  }
  CHECK_FALSE(importers::unpack(tar_header("a", std::size_t{1} << 32U, '0')).ok());
  CHECK_FALSE(importers::unpack(tar_header("a", 0, '5')).ok());
}

TEST_CASE("names: control characters and broken UTF-8 never leave an importer") {
  CHECK(importers::clean_name("a\x1b[2J\n\x7f") == "a?[2J??");
  CHECK(importers::clean_name("gr\xc3\xb6\xc3\x9f") == "gr\xc3\xb6\xc3\x9f");
  CHECK(importers::clean_name("\xc3(\xff\xed\xa0\x80\xc0\xaf") == "?(??????");
  CHECK(importers::clean_name(std::string(1000, 'x')).size() == 200);
}

TEST_CASE("operators: the signature says what is written and what is a weight") {
  using Flags = std::vector<bool>;
  CHECK(importers::written_arguments("aten::add_(Tensor(a!) self, Tensor other, *, Scalar alpha=1) "
                                     "-> Tensor(a!)") == Flags{true, false, false});
  CHECK(importers::written_arguments("aten::f(Tensor[] a, (int, int) b, Tensor(b!)[] c) -> ()") ==
        Flags{false, false, true});
  CHECK(importers::written_arguments("broken(((").empty());
  CHECK(importers::weight_arguments("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) "
                                    "-> Tensor") == Flags{false, true, true});
}

TEST_CASE("operators: FLOPs come from the shapes") {
  importers::TraceNode node;
  node.name = "aten::addmm";
  node.shapes = "[[30], [10, 20], [20, 30], [], []]";
  CHECK(importers::flops_of(node) == 2.0 * 10 * 20 * 30);
  node.name = "aten::bmm";
  node.shapes = "[[4, 10, 20], [4, 20, 30]]";
  CHECK(importers::flops_of(node) == 2.0 * 4 * 10 * 20 * 30);
  node.name = "aten::linear";
  node.shapes = "[[8, 20], [30, 20], [30]]";
  CHECK(importers::flops_of(node) == 2.0 * 8 * 20 * 30);
  node.name = "aten::convolution";
  node.shapes = "[[1, 3, 32, 32], [16, 3, 5, 5]]";
  node.outputs.resize(1);
  node.outputs.front().elements = 16 * 28 * 28;
  CHECK(importers::flops_of(node) == 2.0 * 16 * 28 * 28 * 3 * 5 * 5);
  node.name = "aten::add";
  CHECK(importers::flops_of(node) == 0);
  for (const std::string_view bad : {"", "[", "[[-1, 2], 3]", "[[[[]]]]", "x"}) {
    node.name = "aten::mm";
    node.shapes = bad;
    CHECK(importers::flops_of(node) == 0);
  }
}

}  // namespace
}  // namespace ho::test
