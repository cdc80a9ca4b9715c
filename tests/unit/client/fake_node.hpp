#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/pool/paths/node_control.hpp"

namespace ho::client {

/// A node on another machine that gives every client a session, served at the address "there".
class FakeNode final : public NodeControl {
 public:
  explicit FakeNode(std::vector<DriverOffer> offers) {
    hello_.boot_id = "another machine";
    hello_.drivers = std::move(offers);
  }
  [[nodiscard]] const HelloReply& hello() const override { return hello_; }
  [[nodiscard]] Result<Session> open_session(const std::string& driver) override {
    asked.push_back(driver);
    if (refusal) return *refusal;
    Session session;
    session.id = SessionId(++opened_);
    session.token = std::string(kSessionTokenBytes, 't');
    session.lease = std::chrono::seconds(10);
    session.address = "there";
    open.insert(session.id);
    return session;
  }
  void close_session(const Session& session) override { open.erase(session.id); }
  [[nodiscard]] transport::FenceRequest fence_of(const Session& /*session*/) override { return {}; }

  std::vector<std::string> asked;  ///< drivers, in order
  std::set<SessionId> open;
  std::optional<Error> refusal;  ///< answers every open_session()

 private:
  HelloReply hello_;
  std::uint64_t opened_ = 0;
};

}  // namespace ho::client
