#include "common/transport/tcp/connection.hpp"

#include <cstring>

#ifdef __SANITIZE_THREAD__
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

namespace ho::transport::tcp {
namespace {

#ifdef __SANITIZE_THREAD__
void ignore_begin() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
void ignore_end() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#else
void ignore_begin() {}
void ignore_end() {}
#endif

/// Hides accesses from the thread sanitizer. Other threads access segments too, as the one for
/// flash; jobs order these accesses, in other processes, where the sanitizer does not see it.
class OrderedByPeers {
 public:
  OrderedByPeers() { ignore_begin(); }
  ~OrderedByPeers() { ignore_end(); }
  OrderedByPeers(const OrderedByPeers&) = delete;
  OrderedByPeers& operator=(const OrderedByPeers&) = delete;
};

template <typename Frame>
Frame read_frame(std::span<const std::byte, kFrameBytes> head) {
  static_assert(sizeof(Frame) == kFrameBytes);
  Frame frame;
  std::memcpy(&frame, head.data(), sizeof frame);
  return frame;
}

bool overlaps(std::span<const std::byte> a, const std::byte* data, std::uint64_t length) {
  return length > 0 && data < a.data() + a.size() && a.data() < data + length;
}

}  // namespace

Connection::Progress Connection::receive(std::span<std::byte> staging, std::size_t put_bytes_max,
                                         TimePoint now, HelloCheck& check) {
  const OrderedByPeers order;
  now_ = now;
  if (!stream_->established()) return {0, establish(check)};
  // No more is read than can be answered.
  const bool room = session_ == nullptr || out_.size() + staging.size() / kFrameBytes < kAnswersMax;
  if (!room || !stream_->readable()) return {};
  const net::Moved got = in_.receive(
      *stream_, staging, put_bytes_max,
      [&](std::span<const std::byte, kFrameBytes> head) { return take_head(head, check); },
      [&] {
        answer(put_answer_, put_, {});
        return true;
      });
  if (got.bytes > 0) moved_ = now;
  if (got.ended) end();
  return {got.bytes, got.bytes > 0};
}

Connection::Progress Connection::send(std::size_t bytes_max, TimePoint now, HelloCheck& check) {
  const OrderedByPeers order;
  const std::size_t unsent = stream_->unsent();
  const net::Moved sent = flush(bytes_max, check);
  const bool moved = sent.bytes > 0 || stream_->unsent() < unsent;
  if (moved) moved_ = now;
  if (sent.ended) end();
  return {sent.bytes, moved};
}

/// Sends answers, and counts those that have gone out.
net::Moved Connection::flush(std::size_t chunk_bytes, HelloCheck& check) {
  const std::size_t before = out_.size();
  const net::Moved sent = out_.flush(*stream_, chunk_bytes);
  if (out_.size() == before) return sent;
  // Once for all of them: the round's time is from before they were read.
  const TimePoint now = SteadyClock().now();
  for (std::size_t i = before; i > out_.size(); --i) {
    if (served(0).op) check.answered(served(0), now);
    first_served_ = (first_served_ + 1) % served_.size();
  }
  return sent;
}

/// Goes on with the handshake of TLS. @return whether there is more to do at once.
bool Connection::establish(HelloCheck& check) {
  if (!check.may_shake()) return true;
  switch (stream_->establish()) {
    case net::Stream::Progress::kNotYet: return false;
    case net::Stream::Progress::kEstablished: return true;
    case net::Stream::Progress::kEnded: break;
  }
  check.refused("TLS handshake", *this);
  end();
  return true;
}

bool Connection::take_head(std::span<const std::byte, kFrameBytes> head, HelloCheck& check) {
  if (session_ == nullptr) return greet(read_frame<Hello>(head), check);
  return begin(read_frame<Request>(head), check);
}

bool Connection::greet(const Hello& hello, HelloCheck& check) {
  if (!well_formed(hello) || hello.rail != rail_) {
    check.refused("not a hello", *this);
    return false;
  }
  session_ = check.admit(hello, stream_->peer());
  if (session_ == nullptr) {
    // Sent if the socket takes it: a client that asked in good faith learns why it ends.
    Answer denied{kMagic, Status::kDenied, 0, 0};
    iovec part{&denied, sizeof denied};
    (void)stream_->write({&part, 1});
    return false;
  }
  ++session_->connections;
  generation_ = hello.generation;
  lane_ = hello.lane;
  out_ = Outbox<Answer>(kAnswersMax);
  served_.resize(kAnswersMax);
  answer({}, {}, {});
  return true;
}

bool Connection::begin(const Request& request, HelloCheck& check) {
  const Admission admission = session_->segments.admit(request);
  if (admission.refusal != nullptr) check.refused(admission.refusal, *this);
  if (admission.verdict == Admission::Verdict::kBroken) return false;
  const bool granted = admission.verdict == Admission::Verdict::kGranted;
  Answer reply{kMagic, granted ? Status::kOk : Status::kDenied, request.id, 0};
  const Served to{request.op, now_, request.length, !granted};
  if (request.op == OpCode::kPut) {
    put_answer_ = reply;
    put_ = to;
    in_.expect(granted ? admission.memory.data() : nullptr, request.length);
    return true;
  }
  reply.length = admission.memory.size();
  answer(reply, to, admission.memory);
  return true;
}

void Connection::let_go(std::span<const std::byte> memory) {
  if (ended()) return;
  const std::span<std::byte> coming = in_.place();
  if (overlaps(memory, coming.data(), coming.size())) {
    in_.drop_rest();
    put_answer_.status = Status::kDenied;
    put_.denied = true;
  }
  for (std::size_t i = 0; i < out_.size(); ++i) {
    auto& frame = out_.at(i);
    if (!overlaps(memory, frame.data, frame.length)) continue;
    if (i == 0 && out_.begun()) return end();
    frame.head.status = Status::kDenied;
    served(i).denied = true;
    frame.head.length = 0;
    frame.data = nullptr;
    frame.length = 0;
  }
}

void Connection::end() {
  if (ended()) return;
  stream_.reset();
  if (session_ != nullptr) --session_->connections;
}

}  // namespace ho::transport::tcp
