#include <catch2/catch.hpp>

#include <fstream>
#include <string>

#include "common/base/prng.hpp"
#include "common/model/check_graph.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho::test {
namespace {

Graph small_graph() {
  Graph graph;
  graph.name = "small \"quoted\" \\ \n name";
  graph.storages = {
      {7, "w", 1024, StorageKind::kWeight, true, false},
      {3, "x", 512, StorageKind::kInput, false, false},
      {9, "a", std::uint64_t{1} << 50U, StorageKind::kActivation, false, true},
      {1, "tmp", 64, StorageKind::kWorkspace, false, false},
  };
  const StorageIndex w(0);
  const StorageIndex x(1);
  const StorageIndex a(2);
  const StorageIndex tmp(3);
  graph.ops = {
      {20, "forward", 1000, {w, x}, {a, tmp}, {}, "forward", false, true},
      {10, "update", std::uint64_t{1} << 60U, {a, w}, {w}, {OpIndex(0)}, "backward", true, false},
  };
  return graph;
}

/// The error text of parsing a JSON graph; empty if it parses.
std::string json_error(const std::string& json) {
  const auto graph = parse_graph(json, GraphEncoding::kJson, "g.json");
  return graph ? "" : graph.error().message();
}

/// A graph with these storages and ops.
std::string json(const std::string& storages, const std::string& ops) {
  return R"({"version":1,"storages":[)" + storages + R"(],"ops":[)" + ops + "]}";
}

const std::string kStorages =
    R"({"id":1,"name":"w","bytes":"64","persistent":true},{"id":2,"name":"a","bytes":"64"},)"
    R"({"id":3,"name":"tmp","bytes":"64","kind":"WORKSPACE"})";
const std::string kTmpOp = R"({"id":99,"writes":[3]})";

/// Checks that the error contains each part.
void check_names(const std::string& error, std::initializer_list<std::string> parts) {
  INFO("error: " << error);
  CHECK(error.find("g.json") != std::string::npos);
  for (const std::string& part : parts) {
    INFO("part: " << part);
    CHECK(error.find(part) != std::string::npos);
  }
}

TEST_CASE("graph: every encoding gives back the same graph") {
  Graph graph = small_graph();
  graph.storages[0].copies = 2;
  graph.ops[0].group = "data";
  graph.ops[0].fixed = true;
  CHECK(fingerprint(graph) != fingerprint(small_graph()));
  for (const auto encoding : {GraphEncoding::kJson, GraphEncoding::kText, GraphEncoding::kBinary}) {
    const auto read = parse_graph(serialize_graph(graph, encoding), encoding, "g");
    REQUIRE(read.ok());
    CHECK(*read == graph);
    CHECK(fingerprint(*read) == fingerprint(graph));
  }
}

TEST_CASE("graph: files are read by their suffix and an unknown suffix is refused") {
  const TempFolder folder;
  for (const char* name : {"g.json", "g.textproto", "g.pb"}) {
    const std::string path = folder.path(name);
    REQUIRE(write_graph_file(small_graph(), path).ok());
    const auto read = read_graph_file(path);
    REQUIRE(read.ok());
    CHECK(*read == small_graph());
  }
  CHECK(read_graph_file(folder.path("g.yaml")).error().code() == Errc::kInvalidArgument);
  CHECK(read_graph_file(folder.path("none.json")).error().code() == Errc::kNotFound);
}

TEST_CASE("graph: JSON may have field names in snake_case and numbers without quotes") {
  const auto graph =
      parse_graph(R"({"version":1,"storages":[{"id":1,"bytes":64,"persistent":true}],)"
                  R"("ops":[{"id":5,"duration_ns":12,"reads":[1]}]})",
                  GraphEncoding::kJson, "g");
  REQUIRE(graph.ok());
  CHECK(graph->ops[0].duration_ns == 12);
}

TEST_CASE("graph: each broken rule is named with file, op or storage, and field") {
  check_names(json_error("{}"), {"version", "0"});
  check_names(json_error(R"({"version":2})"), {"version", "2"});
  check_names(json_error(json("", "")), {"ops"});
  check_names(json_error(json(kStorages + R"(,{"id":2,"bytes":1})", kTmpOp)),
              {"storages", "id 2", "twice"});
  check_names(json_error(json(kStorages, kTmpOp + "," + kTmpOp)), {"ops", "id 99", "twice"});
  check_names(json_error(json(R"({"id":4,"name":"z"})", R"({"id":1})")),
              {"storage 4 (\"z\")", "bytes"});
  check_names(json_error(json(R"({"id":4,"name":"z","bytes":"1125899906842625"})", R"({"id":1})")),
              {"storage 4 (\"z\")", "bytes", "2^50"});
  check_names(json_error(json(kStorages, R"({"id":8,"name":"n","reads":[77]})")),
              {"op 8 (\"n\")", "reads", "77"});
  check_names(json_error(json(kStorages, R"({"id":8,"name":"n","writes":[77]})")),
              {"op 8 (\"n\")", "writes", "77"});
  check_names(json_error(json(kStorages, R"({"id":8,"name":"n","after":[77]})")),
              {"op 8 (\"n\")", "after", "77"});
  check_names(json_error(json(kStorages, R"({"id":8,"reads":[1,1]})")),
              {"op 8", "reads", "storage 1 (\"w\")", "twice"});
  check_names(json_error(json(kStorages, R"({"id":8,"writes":[2,2]})")),
              {"op 8", "writes", "storage 2 (\"a\")", "twice"});
  check_names(json_error(json(kStorages, R"({"id":8,"reads":[2]})")),
              {"op 8", "reads", "storage 2 (\"a\")", "read before an op wrote it"});
  check_names(json_error(json(R"({"id":1,"bytes":1,"kind":99})", R"({"id":8})")),
              {"storage 1", "kind", "99"});
}

TEST_CASE("graph: an OUTPUT is persistent, whether the file says so or not") {
  const auto read = [](const std::string& storage) {
    const auto graph =
        parse_graph(json(storage, R"({"id":1,"writes":[4]})"), GraphEncoding::kJson, "g");
    INFO((graph ? "" : graph.error().message()));
    REQUIRE(graph.ok());
    return *graph;
  };
  const Graph brief = read(R"({"id":4,"bytes":"8","kind":"OUTPUT"})");
  CHECK(brief.storages[0].kind == StorageKind::kOutput);
  CHECK(brief.storages[0].persistent);
  CHECK(fingerprint(brief) ==
        fingerprint(read(R"({"id":4,"bytes":"8","kind":"OUTPUT","persistent":true})")));
}

TEST_CASE("graph: a collective is fixed, whether the file says so or not") {
  const auto read =
      parse_graph(json(kStorages, R"({"id":1,"writes":[2],"group":"data"},)" + kTmpOp),
                  GraphEncoding::kJson, "g");
  REQUIRE(read.ok());
  CHECK(read->ops[0].group == "data");
  CHECK(read->ops[0].fixed);
  CHECK_FALSE(read->ops[1].fixed);
}

TEST_CASE("graph: a WORKSPACE is in exactly one op's writes") {
  CHECK(json_error(json(kStorages, kTmpOp)).empty());
  check_names(json_error(json(kStorages, R"({"id":8})")), {"storage 3 (\"tmp\")", "WORKSPACE"});
  check_names(json_error(json(kStorages, kTmpOp + R"(,{"id":8,"writes":[3]})")),
              {"op 8", "writes", "storage 3 (\"tmp\")"});
  check_names(json_error(json(kStorages, kTmpOp + R"(,{"id":8,"reads":[3]})")),
              {"op 8", "reads", "storage 3 (\"tmp\")"});
}

TEST_CASE("graph: `after` agrees with program order, and cycles are called cycles") {
  const auto ops = [](const std::string& first, const std::string& second) {
    return json(kStorages, kTmpOp + "," + first + "," + second);
  };
  CHECK(json_error(ops(R"({"id":1,"writes":[2]})", R"({"id":2,"after":[1]})")).empty());
  check_names(json_error(ops(R"({"id":1,"after":[1]})", R"({"id":2})")),
              {"op 1", "after", "cycle"});
  check_names(json_error(ops(R"({"id":1,"after":[2]})", R"({"id":2})")),
              {"op 1", "after", "op 2", "later op"});
  check_names(json_error(ops(R"({"id":1,"after":[2]})", R"({"id":2,"after":[1]})")),
              {"op 1", "after", "op 2", "cycle"});
  // Through data: read after write, write after read, write after write.
  check_names(json_error(ops(R"({"id":1,"after":[2],"writes":[2]})", R"({"id":2,"reads":[2]})")),
              {"op 1", "after", "op 2", "cycle"});
  check_names(json_error(ops(R"({"id":1,"after":[2],"reads":[1]})", R"({"id":2,"writes":[1]})")),
              {"op 1", "after", "op 2", "cycle"});
  check_names(json_error(ops(R"({"id":1,"after":[2],"writes":[2]})", R"({"id":2,"writes":[2]})")),
              {"op 1", "after", "op 2", "cycle"});
}

TEST_CASE("graph: values that are not a number, too large, or unknown are refused") {
  const auto op = [](const std::string& fields) {
    return json_error(json(kStorages, kTmpOp + R"(,{"id":8,)" + fields + "}"));
  };
  for (const char* fields :
       {R"("durationNs":-1)", R"("durationNs":"-1")", R"("durationNs":"NaN")",
        R"("durationNs":1.5)", R"("durationNs":"18446744073709551616")", R"("durationNs":1e30)",
        R"("reads":[4294967296])", R"("surprise":1)", R"("name":5,)"}) {
    INFO(fields);
    CHECK(!op(fields).empty());
  }
  // Each duration fits; their sum does not.
  const std::string half = R"("durationNs":"4611686018427387904"})";
  CHECK(json_error(json(kStorages, kTmpOp + R"(,{"id":8,)" + half)).empty());
  check_names(json_error(json(kStorages, kTmpOp + R"(,{"id":8,)" + half + R"(,{"id":9,)" + half)),
              {"op 9", "duration_ns", "sum"});
}

TEST_CASE("graph: hostile text is an error, quickly") {
  const std::string deep(1'000'000, '[');
  CHECK(!json_error(deep).empty());
  CHECK(!json_error(R"({"version":1,"ops":)" + deep).empty());
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += "ops{";
  CHECK(!parse_graph(nested, GraphEncoding::kText, "g").ok());
  // Five million empty ops in ten megabytes.
  std::string many;
  for (int i = 0; i < 5'000'000; ++i) many += std::string("\x22\x00", 2);
  const auto counted = parse_graph(many, GraphEncoding::kBinary, "g");
  REQUIRE(!counted.ok());
  CHECK(counted.error().code() == Errc::kOutOfRange);
}

TEST_CASE("graph: truncated or damaged bytes give an error and nothing worse") {
  for (const auto encoding : {GraphEncoding::kJson, GraphEncoding::kText, GraphEncoding::kBinary}) {
    const std::string bytes = serialize_graph(small_graph(), encoding);
    std::size_t refused = 0;
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      refused += parse_graph(bytes.substr(0, cut), encoding, "g").ok() ? 0 : 1;
      std::string damaged = bytes;
      damaged[cut] = static_cast<char>(damaged[cut] ^ (1 << (cut % 8)));
      refused += parse_graph(damaged, encoding, "g").ok() ? 0 : 1;
    }
    CHECK(refused > bytes.size());
  }
}

}  // namespace
}  // namespace ho::test
