#include "daemon/membership/member_table.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

namespace ho::daemon {
namespace {

using std::chrono::seconds;

constexpr std::uint64_t kCluster = 0xC1;

Member member(std::uint16_t node) {
  Member out;
  out.info = {NodeId(node), "n" + std::to_string(node), {"unix:/run/x.sock"}};
  out.instance = 100U + node;
  return out;
}

std::vector<Member> members(std::initializer_list<std::uint16_t> nodes) {
  std::vector<Member> out;
  for (const std::uint16_t node : nodes) out.push_back(member(node));
  return out;
}

/// "0 2": the others of node 1.
std::string others(const MemberTable& table) {
  std::string out;
  for (const NodeInfo& node : table.others(NodeId(1))) {
    out += (out.empty() ? "" : " ") + std::to_string(node.node.value());
  }
  return out;
}

TEST_CASE("members: a read replaces the list, and a failed one changes nothing") {
  MemberTable table(seconds(15));
  TimePoint now;
  CHECK(table.is_news({kCluster, 0}));
  table.read({kCluster, 10}, members({2, 0, 1}), now);
  CHECK(others(table) == "0 2");
  CHECK(table.others(NodeId(0)).size() == 2);  // itself, too
  table.read({kCluster, 11}, members({1, 2}), now);
  CHECK(others(table) == "2");
  table.fail(Error(Errc::kDeadline, "no answer"), now);
  now += seconds(3600);
  table.tick(now);
  CHECK(others(table) == "2");
}

TEST_CASE("members: one revision says whether there is something to read") {
  MemberTable table(seconds(15));
  table.read({kCluster, 10}, members({1}), TimePoint());
  CHECK_FALSE(table.is_news({kCluster, 10}));
  CHECK(table.is_news({kCluster, 11}));
  CHECK(table.is_news({kCluster, 9}));
  table.expect_news();
  CHECK(table.is_news({kCluster, 10}));
}

TEST_CASE("members: those of a book that was wiped stay until they have had time to sign in") {
  MemberTable table(seconds(15));
  TimePoint now;
  table.read({kCluster, 100}, members({0, 1, 2, 3}), now);
  table.read({kCluster, 4}, members({1}), now);
  CHECK(others(table) == "0 2 3");
  now += seconds(10);
  table.tick(now);
  table.read({kCluster, 5}, members({1, 2}), now);
  CHECK(others(table) == "0 2 3");
  // One that signed in again is an ordinary member: it goes when the book says so.
  table.read({kCluster, 6}, members({1}), now);
  CHECK(others(table) == "0 3");
  now += seconds(5);
  table.tick(now);
  CHECK(others(table).empty());
}

TEST_CASE("members: those of another cluster's book stay too, however often it was changed") {
  MemberTable table(seconds(15));
  TimePoint now;
  table.read({kCluster, 100}, members({0, 1, 2}), now);
  CHECK(table.is_news({kCluster + 1, 100}));
  table.read({kCluster + 1, 200}, members({1}), now);
  CHECK(others(table) == "0 2");
  now += seconds(15);
  table.tick(now);
  CHECK(others(table).empty());
}

TEST_CASE("members: trouble is as old as its first cause") {
  MemberTable table(seconds(15));
  TimePoint now;
  table.fail(Error(Errc::kUnavailable, "refused"), now);
  const TimePoint since = table.trouble_since();
  now += seconds(4);
  table.fail(Error(Errc::kDeadline, "late"), now);
  CHECK(table.trouble() == "deadline: late");
  CHECK(table.trouble_since() == since);
  table.mend();
  CHECK(table.trouble().empty());
}

}  // namespace
}  // namespace ho::daemon
