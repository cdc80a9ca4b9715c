#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace ho {

/// Every way an operation can fail, in one closed list. Foreign codes (errno, fi_errno, ...) become
/// one of these in the file of the driver that met them.
enum class Errc : std::uint8_t {
  kOk = 0,
  kInvalidArgument,   ///< the caller's input is wrong; nothing was started
  kNotFound,          ///< the named object does not exist (any more)
  kAlreadyExists,     ///< the name is taken
  kOutOfRange,        ///< offset + length leaves the object
  kPermissionDenied,  ///< wrong or revoked key, missing right, wrong token
  kBusy,              ///< a queue is full; poll and retry
  kExhausted,         ///< not enough memory, space or quota for the request
  kUnavailable,       ///< the peer is gone or unreachable
  kDeadline,          ///< not finished in time
  kCanceled,          ///< ended because its owner was closed
  kCorrupt,           ///< bytes do not match their checksum or format
  kUnsupported,       ///< known, but not in this build, version or machine
  kConflict,          ///< the object's state does not allow it
  kIo,                ///< the operating system failed a call
};

/// Stable lower-case name of a code, for logs and JSON ("unavailable").
[[nodiscard]] std::string_view errc_name(Errc code);

/// A failure: a code for programs and a sentence for people. A value; never carries kOk.
class [[nodiscard]] Error {
 public:
  Error(Errc code, std::string context) : code_(code), context_(std::move(context)) {}

  [[nodiscard]] Errc code() const { return code_; }
  [[nodiscard]] const std::string& context() const { return context_; }
  /// "unavailable: node 2 closed the control connection"
  [[nodiscard]] std::string message() const;
  /// The same error with `where` put before its context: "where: context".
  [[nodiscard]] Error at(std::string_view where) const;

 private:
  Errc code_;
  std::string context_;
};

/// An Error from an errno value: maps the number to an Errc and appends strerror to `what`.
[[nodiscard]] Error errno_error(int error_number, std::string_view what);

}  // namespace ho
