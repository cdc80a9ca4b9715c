#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/gpt/gpt_program.hpp"
#include "tests/integration/gpt/json.hpp"
#include "tests/support/patience.hpp"

namespace ho::test {
namespace {

std::vector<double> list(const Json& object, const std::string& field) {
  std::vector<double> values;
  for (const Json& item : object.at(field).items) values.push_back(item.number);
  return values;
}

/// Trains the tiny model for a few steps and checks what must hold under every policy.
Json train(const std::string& policy, const std::string& pool, const std::string& transport,
           const std::string& memory = "40%") {
  Compare gpt(with_tiny_model({"one", "--policy", policy, "--pool", pool, "--transport", transport,
                               "--device-memory", memory, "--steps", "12", "-o", "json"}));
  const int code = gpt.wait();
  INFO(policy << " over " << transport << ": " << gpt.err());
  REQUIRE(code == 0);
  Json result = Json::parse(gpt.out());
  REQUIRE(result.at("policy").text == policy);
  REQUIRE(list(result, "step_ms").size() == 12);
  REQUIRE(number(result, "step_ms_median") > 0);
  REQUIRE(number(result, "stall_ms_median") <= number(result, "step_ms_median"));
  REQUIRE(number(result, "peak_device_bytes") <= number(result, "arena_bytes"));
  const std::vector<double> losses = list(result, "losses");
  REQUIRE(losses.size() == 12);
  REQUIRE(losses.back() < losses.front());
  return result;
}

TEST_CASE("gpt: every policy and transport trains to the same bits") {
  TwoNodes nodes;
  const std::string pool = nodes.address(0);
  const Json resident = train("resident", pool, "auto");
  const std::vector<double> losses = list(resident, "losses");
  REQUIRE(number(resident, "prefetch_bytes") == 0);
  REQUIRE(number(resident, "stall_ms_median") == 0);
  for (const char* const policy : {"planned", "on-demand-lru"}) {
    for (const char* const transport : {"local", "tcp"}) {
      const Json run = train(policy, pool, transport);
      INFO(policy << " over " << transport);
      REQUIRE(run.at("transport").text == transport);
      REQUIRE(list(run, "losses") == losses);
      REQUIRE(number(run, "prefetch_bytes") > 0);
      REQUIRE(number(run, "store_bytes") > 0);
      REQUIRE(number(run, "arena_bytes") < 0.5 * number(resident, "arena_bytes"));
    }
  }
}

TEST_CASE("gpt: the example trains to the resident bits, also on a limited link") {
  TwoNodes nodes;
  const Json resident = train("resident", nodes.address(0), "auto");
  for (const double link_bytes_per_s : {1e12, 100e6}) {
    Gpt gpt(with_tiny_model({"--pool", nodes.address(0), "--device-memory", "40%", "--link",
                             std::to_string(link_bytes_per_s), "--steps", "12", "-o", "json"}));
    const int code = gpt.wait();
    INFO(gpt.err());
    REQUIRE(code == 0);
    const Json run = Json::parse(gpt.out());
    CHECK(list(run, "losses") == list(resident, "losses"));
    CHECK(number(run, "store_bytes") > 0);
    CHECK(number(run, "peak_device_bytes") < 0.5 * number(resident, "arena_bytes"));
    // The last step also prefetches, for a step that never runs.
    const std::vector<double> step_ms = list(run, "step_ms");
    REQUIRE(step_ms.size() == 12);
    const double least_ms = 10 * number(run, "prefetch_bytes") / link_bytes_per_s * 1e3;
    CHECK(least_ms > 0);
    CHECK(std::accumulate(step_ms.begin(), step_ms.end(), 0.0) > least_ms);
  }
}

TEST_CASE("gpt: the comparison writes its files and finds the losses equal") {
  TwoNodes nodes;
  TempFolder folder;
  const std::string dir = folder.file("out");
  Compare gpt(with_tiny_model({"all", "--out", dir, "--pool", nodes.address(0), "--blocks", "3"}));
  const int code = gpt.wait();
  INFO(gpt.err());
  REQUIRE(code == 0);
  const std::string table = gpt.out();
  REQUIRE(table.find("planned 40 %") != std::string::npos);
  REQUIRE(table.find("losses bit-identical: yes") != std::string::npos);
  const Json summary = Json::parse(read_text(dir + "/summary.json"));
  REQUIRE(summary.at("bit_identical").truth);
  std::vector<std::string> labels;
  for (const Json& run : summary.at("runs").items) {
    labels.push_back(run.at("label").text);
    const bool resident = labels.size() == 1;  // runs twice, before and after the others
    REQUIRE(list(run, "step_ms").size() == (resident ? 12 : 6));
    const bool limited = labels.back().find("-limited") != std::string::npos;
    REQUIRE((number(run, "link_bytes_per_s") > 0) == limited);
  }
  REQUIRE(labels == std::vector<std::string>{"resident", "planned-60", "planned-40", "lru-60",
                                             "planned-60-limited", "planned-40-limited",
                                             "lru-60-limited"});
  REQUIRE(number(summary.at("limited_link"), "peaks_per_step") == Approx(0.95));
  const std::vector<double> planned = list(summary.at("runs").items[1], "step_ms");
  const std::vector<double> lru = list(summary.at("runs").items[3], "step_ms");
  const auto [planned_min, planned_max] = std::minmax_element(planned.begin(), planned.end());
  const auto [lru_min, lru_max] = std::minmax_element(lru.begin(), lru.end());
  REQUIRE(number(summary, "planned_over_lru") >= *planned_min / *lru_max);
  REQUIRE(number(summary, "planned_over_lru") <= *planned_max / *lru_min);
  REQUIRE(gpt.err().find("left out: planned-40-flash: the pool has no flash") != std::string::npos);
  REQUIRE(read_text(dir + "/report.html").find("<html") != std::string::npos);
  REQUIRE_FALSE(Json::parse(read_text(dir + "/trace.json")).at("traceEvents").items.empty());
}

TEST_CASE("gpt: a budget below one op's operands is refused with the op's name") {
  TwoNodes nodes;
  Gpt gpt(with_tiny_model({"--device-memory", "64K", "--pool", nodes.address(0)}));
  REQUIRE(gpt.wait() == 3);
  REQUIRE(gpt.err().find("op head.adam needs") != std::string::npos);
}

TEST_CASE("gpt: a budget above the model's size does not enlarge the arena") {
  TwoNodes nodes;
  Gpt gpt(with_tiny_model(
      {"--device-memory", "32TiB", "--steps", "2", "--pool", nodes.address(0), "-o", "json"}));
  const int code = gpt.wait();
  INFO(gpt.err());
  REQUIRE(code == 0);
  REQUIRE(number(Json::parse(gpt.out()), "peak_device_bytes") < 64 << 20);
}

TEST_CASE("gpt: a model larger than the machine's memory is refused") {
  Compare gpt({"one", "--policy", "resident", "--layers", "64", "--dim", "32768", "--heads", "8"});
  REQUIRE(gpt.wait() == 4);
  INFO(gpt.err());
  REQUIRE(gpt.err().find("available; take a smaller model") != std::string::npos);
}

TEST_CASE("gpt: with --wait a job begins once another has given memory back") {
  TwoNodes nodes;
  const std::string pool = nodes.address(0);
  const PoolHandle other = connect_pool(pool, "auto", "other");
  ho_allocation* all = nullptr;
  REQUIRE(ho_allocate(other.get(), 64U << 20U, &all) == HO_OK);
  Gpt impatient(with_tiny_model({"--pool", pool, "--steps", "2"}));
  CHECK(impatient.wait() == 4);
  CHECK(impatient.err().find("exhausted: ") != std::string::npos);
  const auto waiting = [](const Gpt& gpt) {
    return eventually(std::chrono::seconds(60), [&] {
      return gpt.err().find("waiting for memory: exhausted: ") != std::string::npos;
    });
  };
  Gpt stopped(with_tiny_model({"--pool", pool, "--steps", "2", "--wait", "1000s"}));
  REQUIRE(waiting(stopped));
  stopped.send(SIGINT);
  CHECK(stopped.wait() == 130);
  Gpt patient(with_tiny_model({"--pool", pool, "--steps", "2", "--wait", "1000s"}));
  REQUIRE(waiting(patient));
  ho_free(other.get(), all);
  const int code = patient.wait();
  INFO(patient.err());
  CHECK(code == 0);
}

TEST_CASE("gpt: wrong usage exits with 2") {
  REQUIRE(Gpt({"--no-such-option"}).wait() == 2);
  REQUIRE(Gpt({"--heads", "7"}).wait() == 2);
  REQUIRE(Gpt({"--text", "/nonexistent"}).wait() == 2);
  REQUIRE(Gpt({"--link", "0"}).wait() == 2);
  REQUIRE(Compare({"one", "--policy", "lru"}).wait() == 2);
}

TEST_CASE("gpt: a pool that is not there exits with 4") {
  TempFolder folder;
  Gpt gpt(with_tiny_model({"--pool", "unix:" + folder.file("nobody.sock")}));
  REQUIRE(gpt.wait() == 4);
}

TEST_CASE("gpt: Ctrl-C ends the job and gives its memory back") {
  TwoNodes nodes;  // the long lease rules out that its end frees the memory
  Gpt gpt(with_tiny_model({"--steps", "1000000", "--pool", nodes.address(0)}));
  REQUIRE(eventually(std::chrono::seconds(120),
                     [&] { return gpt.err().find("step 3:") != std::string::npos; }));
  gpt.send(SIGINT);
  REQUIRE(gpt.wait() == 130);
  REQUIRE(eventually(std::chrono::seconds(60),
                     [&] { return nodes.granted_bytes(0) == 0 && nodes.granted_bytes(1) == 0; }));
}

/// Finds the name of a storage in the text: one word, as build_model() makes it.
bool names_a_storage(const std::string& text) {
  return std::regex_search(
      text, std::regex("(layer[0-9]+|embedding|head|final_norm)[a-z0-9_.]*"
                       "(weight|adam_m|adam_v|out|d_input|d_weight)\\b|\\b(tokens|targets)\\b"));
}

TEST_CASE("gpt: a killed daemon ends the training within 2 s, naming node and tensor", "[time]") {
  for (const char* const policy : {"planned", "on-demand-lru"}) {
    for (const char* const transport : {"local", "tcp"}) {
      TwoNodes nodes;  // segments of 2 MiB, so that the model needs several on each node
      Compare gpt({"one",      "--layers", "4",           "--dim",   "128",
                   "--heads",  "2",        "--seq",       "32",      "--batch",
                   "2",        "--steps",  "1000000",     "--pool",  nodes.address(0),
                   "--policy", policy,     "--transport", transport, "--device-memory",
                   "40%"});
      INFO(policy << " over " << transport);
      REQUIRE(eventually(std::chrono::seconds(120),
                         [&] { return gpt.err().find("step 3:") != std::string::npos; }));
      REQUIRE(nodes.granted_bytes(1) > 2U << 20U);
      nodes.daemon(1).send(SIGKILL);
      const bool told = eventually(within(std::chrono::seconds(2)), [&] {
        return gpt.err().find("hyperoffload-compare one: ") != std::string::npos;
      });
      const int code = gpt.wait();
      const std::string err = gpt.err();
      const std::string line =
          err.substr(std::min(err.find("hyperoffload-compare one: "), err.size()));
      INFO(line);
      CHECK(told);
      CHECK(code == 4);
      CHECK(line.find("node 1 (n1") != std::string::npos);
      CHECK(names_a_storage(line));
    }
  }
}

TEST_CASE("gpt: an emitted graph has measured times, whatever the policy") {
  TempFolder folder;
  const std::string hardware = folder.file("hardware.json");
  std::ofstream(hardware) << R"({"name": "test", "localDdr": {"capacityBytes": "1073741824",
    "read": {"bytesPerS": "4000000000", "latencyNs": "5000"},
    "write": {"bytesPerS": "4000000000", "latencyNs": "5000"}}})";
  // At once: no pool is asked.
  Compare unknown(with_tiny_model({"one", "--policy", "resident", "--pool", "unix:/nowhere",
                                   "--emit-graph", folder.file("graph.txt")}));
  CHECK(unknown.wait() == 2);
  CHECK(unknown.err().find(".textproto") != std::string::npos);
  for (const char* const policy : {"resident", "planned"}) {
    INFO(policy);
    TwoNodes nodes;
    const std::string graph = folder.file(std::string(policy) + ".json");
    const std::string plan = folder.file(std::string(policy) + ".hos");
    Compare gpt(with_tiny_model({"one", "--policy", policy, "--pool", nodes.address(0), "--steps",
                                 "2", "--emit-graph", graph}));
    REQUIRE(gpt.wait() == 0);
    const Json emitted = Json::parse(read_text(graph));
    for (const Json& op : emitted.at("ops").items) {
      REQUIRE(std::stoull(op.at("durationNs").text) > 0);
    }
    Program analyze(HO_CLI_PROGRAM, {"analyze", graph, "--hardware", hardware, "--device-memory",
                                     "60%", "--out", plan});
    const int analyzed = analyze.wait();
    INFO(analyze.err());
    REQUIRE(analyzed == 0);
    Program verify(HO_CLI_PROGRAM, {"verify", plan, "--graph", graph});
    const int verified = verify.wait();
    INFO(verify.err());
    REQUIRE(verified == 0);
  }
}

}  // namespace
}  // namespace ho::test
