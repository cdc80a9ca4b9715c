#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ho {

/// All the ways in which an operation can fail. The list is closed: each driver converts foreign
/// codes (errno, fi_errno, ...) to one of these in its own file.
enum class Errc : std::uint8_t {
  kOk = 0,
  kInvalidArgument,   ///< the caller's input is wrong; nothing started
  kNotFound,          ///< the named object does not exist, or no longer exists
  kAlreadyExists,     ///< the name is taken
  kOutOfRange,        ///< offset + length exceeds the object
  kPermissionDenied,  ///< wrong or revoked key, missing right, wrong token
  kBusy,              ///< a queue is full; poll and retry
  kExhausted,         ///< not enough memory, space or quota
  kUnavailable,       ///< the peer is gone or unreachable
  kDeadline,          ///< did not finish in time
  kCanceled,          ///< canceled because its owner was closed
  kCorrupt,           ///< bytes do not match their checksum or format
  kUnsupported,       ///< known, but not supported by this build, version or machine
  kConflict,          ///< not possible in the object's current state
  kIo,                ///< a call to the operating system failed
};

/// Stable lower-case name of a code for logs and JSON, for example "unavailable".
[[nodiscard]] std::string_view errc_name(Errc code);

/// A failure: a code for programs and a sentence for people. A value; its code is never kOk.
class [[nodiscard]] Error {
 public:
  Error(Errc code, std::string context) : code_(code), context_(std::move(context)) {}

  [[nodiscard]] Errc code() const { return code_; }
  [[nodiscard]] const std::string& context() const { return context_; }
  /// "unavailable: node 2 closed the control connection"
  [[nodiscard]] std::string message() const;
  /// The same error with context "where: context".
  [[nodiscard]] Error at(std::string_view where) const;

 private:
  Errc code_;
  std::string context_;
};

/// Shorthand for the two commonest codes.
[[nodiscard]] inline Error bad_input(std::string context) {
  return {Errc::kInvalidArgument, std::move(context)};
}
[[nodiscard]] inline Error conflict(std::string context) {
  return {Errc::kConflict, std::move(context)};
}

/// Makes an Error from an errno value. The context is `what`, followed by the text of strerror().
[[nodiscard]] Error errno_error(int error_number, std::string_view what);

}  // namespace ho
