// What a daemon keeps for administrators, asked of a real one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "daemon/control/events.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {

namespace {

std::vector<EventInfo> of_kind(const EventsPage& page, EventKind kind) {
  std::vector<EventInfo> out;
  std::copy_if(page.events.begin(), page.events.end(), std::back_inserter(out),
               [&](const EventInfo& event) { return event.kind == kind; });
  return out;
}

EventsPage ask(ControlClient& client, std::uint64_t after = 0) {
  auto page = client.events(after, soon());
  REQUIRE(page.ok());
  return std::move(*page);
}

}  // namespace

TEST_CASE("events: sessions, grants, refusals and acts are there in order, with who and what") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("train", soon());
  REQUIRE(session.ok());
  REQUIRE(client->grant(*session, {4 * kMiB, "local"}, soon()).ok());
  Session stolen = *session;
  stolen.token[0] = static_cast<char>(stolen.token[0] ^ 1);
  CHECK(client->renew_lease(stolen, soon()).error().code() == Errc::kPermissionDenied);
  REQUIRE(client->evict(session->id, soon()).ok());

  const EventsPage page = ask(*client);
  CHECK(page.lost == 0);
  REQUIRE_FALSE(page.events.empty());
  CHECK(page.last == page.events.back().number);
  std::vector<std::string> words;
  for (const EventInfo& event : page.events) {
    words.push_back(std::string(kEventKindNames.at(static_cast<std::size_t>(event.kind))) + ": " +
                    event.what);
  }
  CHECK(words == std::vector<std::string>{
                     "state: serving", "session: session opened", "grant: granted",
                     "refusal: renew_lease: permission-denied", "act: session evicted"});
  CHECK(page.events[1].session == session->id);
  CHECK(page.events[1].detail.find("name=train") != std::string::npos);
  CHECK(page.events[2].detail.find("4.00 MiB") != std::string::npos);
  for (std::size_t i = 1; i < page.events.size(); ++i) {
    CHECK(page.events[i].number == page.events[i - 1].number + 1);
    CHECK(page.events[i].who.find("unix uid=") == 0);
  }
  // The log has what administrators did too.
  CHECK(daemon.err().find("session evicted session=") != std::string::npos);
  CHECK(ask(*client, page.last).events.empty());
}

TEST_CASE("events: a flood of refusals pushes out none of what administrators did") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("train", soon());
  REQUIRE(session.ok());
  REQUIRE(client->evict(session->id, soon()).ok());
  const std::size_t flood = daemon::Events::kKeptPerKind + 300;
  for (std::size_t i = 0; i < flood; ++i) {
    REQUIRE_FALSE(client->evict(SessionId(999'999), soon()).ok());
  }
  const EventsPage page = ask(*client);
  CHECK(page.lost == 300);
  CHECK(of_kind(page, EventKind::kAct).size() == 1);
  CHECK(of_kind(page, EventKind::kSession).size() == 1);
  const auto refused = of_kind(page, EventKind::kRefusal);
  REQUIRE(refused.size() == daemon::Events::kKeptPerKind);
  CHECK(refused.back().number == page.last);
  // One line in the log for all of them.
  const std::string log = daemon.err();
  const auto first = log.find("evict: not-found");
  CHECK(first != std::string::npos);
  CHECK(log.find("evict: not-found", first + 1) == std::string::npos);
  // From the middle of what is lost: only what comes after it counts.
  CHECK(ask(*client, page.last - 10).events.size() == 10);
  CHECK(ask(*client, page.last - 10).lost == 0);
}

TEST_CASE("events: requests for flash or blocks that a node does not have are not refusals") {
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("serve", soon());
  REQUIRE(session.ok());
  const BlocksTenantSpec tenant{"chat", {}, "m"};
  CHECK(client->flash_extents(soon()).error().code() == Errc::kUnsupported);
  CHECK(client->blocks_open(*session, tenant, soon()).error().code() == Errc::kUnsupported);
  CHECK(of_kind(ask(*client), EventKind::kRefusal).empty());
  CHECK(client->status(soon())->refusals.empty());
  CHECK(daemon.err().find("kind=refusal") == std::string::npos);
}

}  // namespace ho::test
