#include "daemon/membership/membership.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "common/system/signals.hpp"

namespace ho::daemon {

namespace {

/// A daemon that does not renew it is off the list.
constexpr std::chrono::seconds kLease{5};
/// Changes are to be seen within two seconds, and the lease is to be renewed at least by thirds.
constexpr Duration kPeriod = std::chrono::seconds(1);
/// For daemons to sign in again after etcd's data were wiped.
constexpr Duration kGrace = 3 * Duration(kLease);

}  // namespace

Membership::Membership(Options options, const Clock& clock, Tell tell)
    : options_(std::move(options)),
      clock_(clock),
      tell_(std::move(tell)),
      etcd_(options_.etcd),
      book_(etcd_, options_.etcd.prefix, options_.machine),
      table_(kGrace) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "ho-members");
}

Membership::~Membership() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  etcd_.cancel();
  bell_.notify_one();
  thread_.join();
  for (const Change& change : changes_) {
    if (change.answer) change.answer(Error(Errc::kCanceled, "the daemon ends"));
  }
}

void Membership::withdraw() {
  const std::lock_guard lock(mutex_);
  withdrawn_ = true;
  bell_.notify_one();
}

void Membership::claim(Claim claim, Claimed answer) {
  {
    const std::lock_guard lock(mutex_);
    if (changes_.size() < kClaimsWaitingMax) {
      changes_.push_back({std::move(claim), std::move(answer)});
      bell_.notify_one();
      return;
    }
  }
  answer(Error(Errc::kBusy, "too many names wait for etcd"));
}

void Membership::unclaim(Claim claim) {
  const std::lock_guard lock(mutex_);
  changes_.push_back({std::move(claim), nullptr});
  bell_.notify_one();
}

Result<void> Membership::take(const Claim& claim) {
  if (!lease_) return Error(Errc::kUnavailable, "this daemon is not listed in etcd now");
  if (auto taken = book_.claim(claim, *lease_); !taken) return taken;
  claims_[claim.name] = claim.value;
  return {};
}

/// Makes the changes that wait, but does not put off the next look, or the end.
void Membership::change_claims(TimePoint until) {
  while (clock_.now() < until) {
    Change change;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ || changes_.empty()) return;
      change = std::move(changes_.front());
      changes_.pop_front();
    }
    if (change.answer) {
      change.answer(take(change.claim));
    } else if (claims_.erase(change.claim.name) > 0 && lease_) {
      // Where this fails, the end of the lease does it.
      static_cast<void>(book_.unclaim(change.claim));
    }
  }
}

void Membership::run() {
  bool signed_out = false;
  for (TimePoint next = clock_.now();;) {
    change_claims(next);
    const TimePoint now = clock_.now();
    bool withdrawn = false;
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      withdrawn = withdrawn_;
      stopping = stopping_;
    }
    if (withdrawn && !signed_out && lease_) {
      // Where this fails, the end of the lease does it.
      static_cast<void>(book_.sign_out(options_.self.info.node));
      lease_.reset();
    }
    const bool signed_out_before = std::exchange(signed_out, withdrawn);
    if (stopping) return;
    if (now < next && withdrawn == signed_out_before) {
      wait(next, withdrawn);
      continue;
    }
    Result<void> outcome;
    if (!withdrawn && !replaced_) outcome = stay_listed();
    if (const auto looked = look(now); !looked && outcome) outcome = looked;
    table_.tick(now);
    note(outcome, now);
    tell_(view(now));
    next = now + kPeriod;
    wait(next, withdrawn);
  }
}

/// Returns early at the end, for claims, or when it is withdrawn, which it was or was not so far.
void Membership::wait(TimePoint until, bool was_withdrawn) {
  std::unique_lock lock(mutex_);
  bell_.wait_for(lock, std::max<Duration>(until - clock_.now(), Duration::zero()),
                 [&] { return stopping_ || withdrawn_ != was_withdrawn || !changes_.empty(); });
}

/// Renews the lease, or signs in.
Result<void> Membership::stay_listed() {
  if (lease_) {
    auto renewed = etcd_.renew(*lease_);
    if (renewed || renewed.error().code() != Errc::kNotFound) return renewed;
    lease_.reset();
  }
  return sign_in();
}

Result<void> Membership::sign_in() {
  const auto lease = etcd_.grant(kLease);
  if (!lease) return lease.error();
  auto listed = book_.sign_in(options_.self, *lease);
  if (!listed && listed.error().code() == Errc::kNotFound) {
    if (auto kept = book_.keep_number(options_.self.info.node); !kept) return kept;
    listed = book_.sign_in(options_.self, *lease);
  }
  if (!listed) return listed;
  lease_ = *lease;
  table_.expect_news();
  // Under the new lease, before the old one ends. A name that another one has by now is lost.
  std::erase_if(claims_, [&](const auto& one) {
    const auto kept = book_.claim({one.first, one.second}, *lease_);
    return !kept && kept.error().code() == Errc::kAlreadyExists;
  });
  return {};
}

/// Reads the book if its version is another one.
Result<void> Membership::look(TimePoint now) {
  const auto glance = book_.glance(options_.self.info.node);
  if (!glance) return glance.error();
  if (lease_ && !glance->self) {
    lease_.reset();  // somebody took it away: sign in again
  } else if (lease_ && glance->self->instance != options_.self.instance) {
    replaced_ = true;
    lease_.reset();
  }
  if (replaced_ && !glance->self) replaced_ = false;  // the other one has gone
  if (table_.is_news(glance->version)) {
    auto page = book_.read();
    if (!page) return page.error();
    table_.read(page->version, std::move(page->members), now);
  }
  if (!replaced_) return {};
  return Error(Errc::kConflict, "another daemon runs as node " +
                                    std::to_string(options_.self.info.node.value()) +
                                    " with this machine's id: a copy of this machine?");
}

void Membership::note(const Result<void>& outcome, TimePoint now) {
  if (outcome) return table_.mend();
  if (outcome.error().code() != Errc::kCanceled) table_.fail(outcome.error(), now);
}

Membership::View Membership::view(TimePoint now) const {
  View out;
  out.others = table_.others(options_.self.info.node);
  out.status.kind = "etcd";
  out.status.members = static_cast<std::uint32_t>(out.others.size() + 1);
  out.status.trouble = table_.trouble();
  if (!out.status.trouble.empty()) {
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - table_.trouble_since());
    out.status.trouble_ms = static_cast<std::uint64_t>(ms.count());
  }
  return out;
}

}  // namespace ho::daemon
