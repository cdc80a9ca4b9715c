#include <signal.h>

#include <array>
#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/gpt/gpt_program.hpp"
#include "tests/integration/gpt/json.hpp"

namespace ho::test {
namespace {

using Words = std::vector<std::string>;

/// A small model whose KV cache is larger than its weights.
Words with_small_decoder(Words words) {
  words.insert(words.begin(), "generate");
  for (const char* const word : {"--layers", "2", "--dim", "64", "--heads", "2", "--block", "32"}) {
    words.emplace_back(word);
  }
  return words;
}

std::string write_prompts(const TempFolder& folder) {
  const std::string path = folder.file("prompts");
  std::ofstream file(path);
  for (const int length : {300, 170, 1, 290, 64, 33}) {
    for (int i = 0; i < length; ++i) file << char('a' + (i * i + length) % 26);
    file << '\n';
  }
  return path;
}

template <typename Program>
Json result_of(Words words) {
  words.insert(words.end(), {"-o", "json"});
  Program program(with_small_decoder(std::move(words)));
  const int code = program.wait();
  INFO(program.err());
  REQUIRE(code == 0);
  return Json::parse(program.out());
}

Json generated(Words words) { return result_of<Gpt>(std::move(words)); }

std::vector<std::vector<double>> tokens_of(const Json& result) {
  std::vector<std::vector<double>> tokens;
  for (const Json& sequence : result.at("tokens").items) {
    tokens.emplace_back();
    for (const Json& token : sequence.items) tokens.back().push_back(token.number);
  }
  return tokens;
}

/// The tokens of a run with everything resident, and of the other ways of the comparison.
std::vector<std::vector<double>> resident_tokens(Words words) {
  words.insert(words.end(), {"--rounds", "1"});
  const Json result = result_of<Compare>(std::move(words));
  REQUIRE(result.at("tokens_identical").truth);
  REQUIRE(result.at("runs").items[0].at("label").text == "resident");
  return tokens_of(result);
}

}  // namespace

TEST_CASE("generate: a planned run makes the tokens of a resident one") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U});
  TempFolder folder;
  const std::string prompts = write_prompts(folder);
  const auto tokens =
      resident_tokens({"--prompts", prompts, "--tokens", "100", "--pool", nodes.address(0)});
  REQUIRE(tokens.size() == 6);
  for (const auto& sequence : tokens) REQUIRE(sequence.size() == 100);
  const std::vector<Words> ways = {
      {"--device-memory", "60%"},
      {"--device-memory", "25%"},
      {"--device-memory", "25%", "--transport", "tcp"},
      {"--device-memory", "25%", "--link", "500MB/s"},
      {"--device-memory", "60%", "--batch", "1", "--groups", "4"},
      {"--device-memory", "45%", "--batch", "2", "--groups", "2", "--slice", "7"}};
  for (const Words& way : ways) {
    Words words = {"--prompts", prompts, "--tokens", "100", "--pool", nodes.address(0)};
    words.insert(words.end(), way.begin(), way.end());
    const Json run = generated(words);
    INFO(way[1] << " " << way.back());
    CHECK(tokens_of(run) == tokens);
    CHECK(number(run, "prefetch_bytes") > 0);
    const double share = std::stod(way[1]) / 100;
    CHECK(number(run, "peak_device_bytes") <= share * number(run, "resident_bytes"));
  }
}

TEST_CASE("generate: a sealed block is stored, and an append stores no more than its own block") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U});
  const double tokens = 320;
  const Json run = generated(
      {"--prompt", "x", "--tokens", "320", "--pool", nodes.address(0), "--device-memory", "60%"});
  // 10 blocks of 2 layers; the last ones stay open. A plan may evict an open block if the measured
  // times hide that. All blocks in each pass would be 50 MB.
  const double pass_bytes = 2 * 2 * 32 * 64 * sizeof(float);
  CHECK(number(run, "plans") == 11);
  CHECK(number(run, "store_bytes") >= 9 * pass_bytes);
  CHECK(number(run, "store_bytes") <= (10 + tokens) * pass_bytes);
}

TEST_CASE("generate: all ways of the comparison give the same tokens within their budgets") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U});
  TempFolder folder;
  for (const char* const memory : {"60%", "30%"}) {
    Words words = with_small_decoder(
        {"--prompts", write_prompts(folder), "--tokens", "60", "--batch", "2", "--groups", "2",
         "--rounds", "2", "--device-memory", memory, "--pool", nodes.address(0), "-o", "json"});
    Compare compare(words);
    const int code = compare.wait();
    INFO(memory << ": " << compare.err());
    REQUIRE(code == 0);
    const Json result = Json::parse(compare.out());
    CHECK(result.at("tokens_identical").truth);
    const std::vector<Json>& runs = result.at("runs").items;
    REQUIRE(runs.size() == 4);
    for (const Json& run : runs) {
      INFO(run.at("label").text);
      CHECK(number(run, "peak_device_bytes") <= number(run, "device_budget_bytes"));
      CHECK(number(run, "decode_ms_mean") > 0);
      CHECK((number(run, "prefetch_bytes") > 0) == (run.at("label").text != "resident"));
    }
    // A plan leaves in place what it can. LRU misses every layer of a cycle that its cache cannot
    // hold.
    CHECK(number(runs[1], "prefetch_bytes") < number(runs[3], "prefetch_bytes"));
  }
}

TEST_CASE("generate: sampling gives the same tokens by plan, and a stop token ends a sequence") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U});
  TempFolder folder;
  Words words = {"--prompts",       write_prompts(folder),
                 "--tokens",        "60",
                 "--temperature",   "1",
                 "--batch",         "2",
                 "--seed",          "5",
                 "--pool",          nodes.address(0),
                 "--device-memory", "50%"};
  const auto all = resident_tokens(words);
  words.insert(words.end(), {"--stop", std::to_string(static_cast<int>(all[0][9]))});
  const auto stopped = resident_tokens(words);
  CHECK(stopped[0].size() <= 10);
  CHECK(stopped[0].back() == all[0][9]);
  CHECK(tokens_of(generated(words)) == stopped);
}

TEST_CASE("generate: wrong usage exits with 2 and says what to do") {
  Gpt none(with_small_decoder({}));
  REQUIRE(none.wait() == 2);
  CHECK(none.err().find("missing: --prompt or --prompts") != std::string::npos);
  const TempFolder folder;
  const std::string path = folder.file("prompts");
  for (const auto& [text, why] : std::vector<std::array<std::string, 2>>{
           {"", path + ": the file has no prompt"},
           {"\n\n", path + ": the file has no prompt"},
           {"one\n\nthree\n", path + ", line 2: a prompt is empty"}}) {
    std::ofstream(path) << text;
    Gpt prompts(with_small_decoder({"--prompts", path}));
    REQUIRE(prompts.wait() == 2);
    CHECK(prompts.err().find("--prompts " + why) != std::string::npos);
  }
  // Empty lines at the end do not count: the next thing that is wrong is the number of tokens.
  std::ofstream(path) << "xyz\n\n\n";
  Gpt ended(with_small_decoder({"--prompts", path, "--tokens", "65536"}));
  REQUIRE(ended.wait() == 2);
  CHECK(ended.err().find("65568 rows") != std::string::npos);
  Gpt heads({"generate", "--prompt", "x", "--heads", "3"});
  REQUIRE(heads.wait() == 2);
  CHECK(heads.err().find("--heads must divide --dim") != std::string::npos);
  CHECK(Gpt(with_small_decoder({"--prompt", "x", "--batch", "0"})).wait() == 2);
  CHECK(Gpt(with_small_decoder({"--prompts", "/nonexistent"})).wait() == 2);
  CHECK(Gpt(with_small_decoder({"--prompt", "x", "--stop", "256"})).wait() == 2);
  for (const char* const temperature : {"nan", "inf", "-1"}) {
    CHECK(Gpt(with_small_decoder({"--prompt", "x", "--temperature", temperature})).wait() == 2);
  }
  for (const char* const seed : {"-1", "99999999999999999999"}) {
    CHECK(Gpt(with_small_decoder({"--prompt", "x", "--seed", seed})).wait() == 2);
  }
  Gpt many(with_small_decoder({"--prompt", "xyz", "--tokens", "65536"}));
  REQUIRE(many.wait() == 2);
  CHECK(many.err().find("65568 rows") != std::string::npos);
}

TEST_CASE("generate: a budget below one op's operands is refused with the op's name") {
  TwoNodes nodes;
  Gpt gpt(
      with_small_decoder({"--prompt", "x", "--device-memory", "64K", "--pool", nodes.address(0)}));
  REQUIRE(gpt.wait() == 3);
  INFO(gpt.err());
  REQUIRE(gpt.err().find("op layer0.") != std::string::npos);
}

TEST_CASE("generate: a pool that is not there exits with 4") {
  TempFolder folder;
  REQUIRE(Gpt(with_small_decoder({"--prompt", "x", "--pool", "unix:" + folder.file("nobody.sock")}))
              .wait() == 4);
}

TEST_CASE("generate: Ctrl-C ends the job and gives its memory back") {
  TwoNodes nodes(
      {.ddr_bytes = 256U << 20U});  // the long lease rules out that its end frees the memory
  Gpt gpt({"generate", "--layers", "1", "--dim", "32", "--heads", "2", "--block", "8192",
           "--prompt", "x", "--tokens", "65000", "--device-memory", "60%", "--pool",
           nodes.address(0)});
  REQUIRE(eventually(std::chrono::seconds(60),
                     [&] { return nodes.granted_bytes(0) > 0 && nodes.granted_bytes(1) > 0; }));
  gpt.send(SIGINT);
  REQUIRE(gpt.wait() == 130);
  CHECK(gpt.out().empty());
  REQUIRE(eventually(std::chrono::seconds(60),
                     [&] { return nodes.granted_bytes(0) == 0 && nodes.granted_bytes(1) == 0; }));
}

}  // namespace ho::test
