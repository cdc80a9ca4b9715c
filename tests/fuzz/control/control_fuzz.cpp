#include <control.pb.h>

#include <unistd.h>

#include <asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/local/local_transport.hpp"
#include "daemon/control/service.hpp"
#include "daemon/tier/flash/device/uring/uring_device.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"

namespace {

namespace pb = hyperoffload::v1;

/// The daemon without its sockets, with real memory and the local driver.
struct Daemon {
  Daemon() { ho::set_log_level(ho::LogLevel::kError); }

  static ho::daemon::Pool::Options options() {
    ho::daemon::Pool::Options out;
    out.node_name = "fuzz";
    out.capacity_bytes = 8 * ho::kMiB;  // small, so that each input faults in little memory
    out.segment_bytes = 2 * ho::kMiB;
    out.lease = std::chrono::seconds(10);
    out.sessions_max = 16;
    return out;
  }
  static std::unique_ptr<ho::daemon::DataLoop> make_loop() {
    std::vector<std::unique_ptr<ho::transport::Target>> targets;
    auto local = ho::transport::make_local_target();
    HO_CHECK(local.ok());
    targets.push_back(std::move(*local));
    auto made = ho::daemon::DataLoop::create(std::move(targets));
    HO_CHECK(made.ok());
    return std::move(*made);
  }

  /// A flash loop over a small anonymous file; nullptr if io_uring is unavailable.
  static std::unique_ptr<ho::flash::FlashLoop> make_flash() {
    if (!ho::flash::check_uring()) return nullptr;
    std::string path = "/var/tmp/hyperoffload-fuzz-XXXXXX";  // not /tmp, which may be in memory
    const ho::UniqueFd file(::mkstemp(path.data()));
    HO_CHECK(file.valid() && ::ftruncate(file.get(), 8 * ho::kMiB) == 0);
    ho::flash::FlashLoop::Options options;
    options.make_device = [path] { return ho::flash::make_uring_device({{path}}); };
    options.salt = 1;
    options.new_set[0] = std::byte{1};
    auto made = ho::flash::FlashLoop::start(std::move(options));
    ::unlink(path.c_str());
    return made ? std::move(*made) : nullptr;
  }

  ho::SteadyClock clock;
  asio::io_context io{1};
  ho::daemon::Pool pool{options(), clock.now()};
  std::unique_ptr<ho::daemon::DataLoop> data = make_loop();
  ho::daemon::FdStore store{0};
  ho::daemon::Keeper keeper{store, "a test"};
  ho::daemon::Grants grants{pool, *data, io, ho::daemon::PagePlan{}, keeper};
  std::unique_ptr<ho::flash::FlashLoop> flash = make_flash();
  ho::daemon::Staging staging{pool, grants, flash.get(), io, {"n", {}, ""}};
  ho::daemon::Service service{
      pool, grants, staging, *data, keeper, clock, {"boot", 1, {ho::NodeInfo{}}}};
};

/// Runs the control thread until `done` returns true, for some seconds at most.
void run_until(Daemon& daemon, const std::function<bool()>& done) {
  for (int turn = 0; !done() && turn < 100'000; ++turn) {
    daemon.io.restart();
    if (daemon.io.poll() == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// Handles one request and runs the control thread until it has the answer and nothing is in
/// progress.
/// @return the only answer.
pb::Response ask(Daemon& daemon, const pb::Request& request) {
  const ho::daemon::PeerInfo peer{true, 1, "fuzz", "fuzz", ho::tls::Role::kAdmin};
  pb::Response answer;
  int answers = 0;
  daemon.service.handle(
      request, peer, [&](const pb::Response& response, std::vector<ho::UniqueFd> descriptors) {
        HO_CHECK(response.id() == request.id());
        // The local driver passes one descriptor per segment.
        HO_CHECK(descriptors.size() == static_cast<std::size_t>(response.grant().segments_size()));
        answer = response;
        ++answers;
        return true;
      });
  run_until(daemon, [&] { return answers > 0; });
  HO_CHECK(answers == 1);
  return answer;
}

/// A session with one segment. The input may use its id and token.
struct Session {
  explicit Session(Daemon& daemon) : daemon_(daemon) {
    pb::Request open;
    open.mutable_open_session()->set_name("fuzz");
    opened = ask(daemon, open).open_session();
    HO_CHECK(opened.token().size() == ho::kSessionTokenBytes);
    pb::Request grant;
    grant.mutable_grant()->set_session_id(opened.session_id());
    grant.mutable_grant()->set_token(opened.token());
    grant.mutable_grant()->set_bytes(1);
    grant.mutable_grant()->set_driver("local");
    const pb::Response granted = ask(daemon, grant);
    HO_CHECK(granted.grant().segments_size() == 1);
    segment_id = granted.grant().segments(0).segment_id();
  }
  /// Makes an extent with contents, if there is flash.
  void make_extent() {
    if (daemon_.flash == nullptr) return;
    pb::Request allocate;
    lend(allocate.mutable_flash_allocate());
    allocate.mutable_flash_allocate()->set_bytes(8192);
    allocate.mutable_flash_allocate()->set_policy(pb::FLASH_SCRATCH);
    extent_id = ask(daemon_, allocate).flash_allocate().extent_id();
    HO_CHECK(extent_id > 0);
    pb::Request out;
    lend(out.mutable_stage());
    out.mutable_stage()->set_direction(pb::STAGE_DIRECTION_OUT);
    out.mutable_stage()->set_extent_id(extent_id);
    out.mutable_stage()->set_segment_id(segment_id);
    out.mutable_stage()->set_bytes(4096);
    HO_CHECK(ask(daemon_, out).has_stage());
  }
  /// After any input, closing must leave only durable extents, and these can be freed.
  ~Session() {
    while (!daemon_.pool.sessions().empty()) {  // the input may have opened more sessions
      daemon_.staging.close_session(daemon_.pool.sessions().begin()->first, [] {});
      run_until(daemon_, [&] { return daemon_.grants.idle() && daemon_.staging.idle(); });
    }
    run_until(daemon_, [&] { return daemon_.grants.idle() && daemon_.staging.idle(); });
    HO_CHECK(daemon_.grants.idle() && daemon_.staging.idle());
    HO_CHECK(daemon_.pool.granted_bytes() == 0);
    if (daemon_.flash == nullptr) return;
    pb::Request list;
    list.mutable_flash_extents();
    const pb::Response listed = ask(daemon_, list);
    for (const auto& extent : listed.flash_extents().extents()) {
      HO_CHECK(extent.policy() == pb::FLASH_DURABLE && extent.session_id() == 0);
      pb::Request erase;
      erase.mutable_flash_erase()->set_extent_id(extent.extent_id());
      HO_CHECK(ask(daemon_, erase).has_flash_erase());
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  template <typename Body>
  void lend(Body* body) const {
    body->set_session_id(opened.session_id());
    body->set_token(opened.token());
  }

  pb::OpenSessionResponse opened;
  std::uint64_t segment_id = 0;
  std::uint64_t extent_id = 0;

 private:
  Daemon& daemon_;
};

/// Inserts the session's id, token and segment, since no input would guess the token.
void lend(const Session& session, pb::Request& request) {
  if (request.has_renew_lease()) session.lend(request.mutable_renew_lease());
  if (request.has_close_session()) session.lend(request.mutable_close_session());
  if (request.has_grant()) session.lend(request.mutable_grant());
  if (request.has_flash_allocate()) session.lend(request.mutable_flash_allocate());
  if (request.has_flash_open()) session.lend(request.mutable_flash_open());
  if (request.has_flash_free()) {
    session.lend(request.mutable_flash_free());
    request.mutable_flash_free()->set_extent_id(session.extent_id);
  }
  if (request.has_flash_erase() && request.flash_erase().extent_id() % 2 == 0) {
    request.mutable_flash_erase()->set_extent_id(session.extent_id);
  }
  if (request.has_evict() && request.evict().session_id() % 2 == 0) {
    request.mutable_evict()->set_session_id(session.opened.session_id());
  }
  if (request.has_stage()) {
    session.lend(request.mutable_stage());
    if (request.stage().extent_id() % 2 == 0) {
      request.mutable_stage()->set_extent_id(session.extent_id);
    }
    if (request.stage().segment_id() % 2 == 0) {
      request.mutable_stage()->set_segment_id(session.segment_id);
    }
  }
  if (!request.has_release()) return;
  session.lend(request.mutable_release());
  for (auto& id : *request.mutable_release()->mutable_segment_ids()) {
    if (id % 2 == 0) id = session.segment_id;
  }
}

}  // namespace

/// Uses any bytes as a request, before and after hello, without a session and (odd ids) as the
/// owner of one. Each request must get exactly one answer, with its id.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Daemon daemon;
  pb::Request request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  int answers = 0;
  const auto reply = [&](const pb::Response& response, std::vector<ho::UniqueFd>) {
    HO_CHECK(response.id() == request.id());
    ++answers;
    return true;
  };
  static_cast<void>(daemon.service.hello(request, {true, 1, "fuzz", "fuzz"}, reply));
  HO_CHECK(answers == 1);
  Session session(daemon);
  if (request.has_stage() || request.has_flash_free() || request.has_flash_erase()) {
    session.make_extent();
  }
  if (request.id() % 2 == 1) lend(session, request);
  static_cast<void>(ask(daemon, request));
  return 0;
}
