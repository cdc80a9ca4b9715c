#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "client/transfer/bell.hpp"
#include "client/transfer/command_ring.hpp"

using ho::client::Bell;
using ho::client::CommandRing;

TEST_CASE("command ring: keeps order, refuses when full, and is reusable") {
  CommandRing<int> ring(4);
  int value = 0;
  CHECK_FALSE(ring.pop(value));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) CHECK(ring.push(i));
    CHECK_FALSE(ring.push(9));
    for (int i = 0; i < 4; ++i) {
      REQUIRE(ring.pop(value));
      CHECK(value == i);
    }
    CHECK_FALSE(ring.pop(value));
  }
}

TEST_CASE(
    "command ring: values of several threads all arrive, none twice, each thread's in order") {
  constexpr int kThreads = 3;
  constexpr int kValues = 2000;
  CommandRing<int> ring(16);
  Bell bell;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kValues; ++i) {
        while (!ring.push(t * kValues + i)) std::this_thread::yield();
        bell.ring();
      }
    });
  }
  int next[kThreads] = {};
  int wrong = 0;
  for (int seen = 0; seen < kThreads * kValues;) {
    const auto token = bell.token();
    int value = 0;
    if (!ring.pop(value)) {
      bell.wait(token, ho::Duration(-1));  // the test hangs and times out if a ring were lost
      continue;
    }
    const int thread = value / kValues;
    wrong += value % kValues != next[thread] ? 1 : 0;
    next[thread] = value % kValues + 1;
    seen += 1;
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
