#include "common/base/error.hpp"

#include <cerrno>
#include <system_error>

namespace ho {

std::string_view errc_name(Errc code) {
  switch (code) {
    case Errc::kOk: return "ok";
    case Errc::kInvalidArgument: return "invalid-argument";
    case Errc::kNotFound: return "not-found";
    case Errc::kAlreadyExists: return "already-exists";
    case Errc::kOutOfRange: return "out-of-range";
    case Errc::kPermissionDenied: return "permission-denied";
    case Errc::kBusy: return "busy";
    case Errc::kExhausted: return "exhausted";
    case Errc::kUnavailable: return "unavailable";
    case Errc::kDeadline: return "deadline";
    case Errc::kCanceled: return "canceled";
    case Errc::kCorrupt: return "corrupt";
    case Errc::kUnsupported: return "unsupported";
    case Errc::kConflict: return "conflict";
    case Errc::kIo: return "io";
  }
  return "unknown";
}

std::string Error::message() const { return std::string(errc_name(code_)) + ": " + context_; }

Error Error::at(std::string_view where) const {
  return Error(code_, std::string(where) + ": " + context_);
}

namespace {

Errc from_errno(int error_number) {
  switch (error_number) {
    case EINVAL: return Errc::kInvalidArgument;
    case ENOENT: return Errc::kNotFound;
    case EEXIST:
    case EADDRINUSE: return Errc::kAlreadyExists;
    case EACCES:
    case EPERM: return Errc::kPermissionDenied;
    case EAGAIN: return Errc::kBusy;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE: return Errc::kExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case ENETUNREACH: return Errc::kUnavailable;
    case ETIMEDOUT: return Errc::kDeadline;
    case ECANCELED: return Errc::kCanceled;
    case ENOSYS:
    case EOPNOTSUPP: return Errc::kUnsupported;
    default: return Errc::kIo;
  }
}

}  // namespace

Error errno_error(int error_number, std::string_view what) {
  return Error(from_errno(error_number),
               std::string(what) + ": " + std::generic_category().message(error_number));
}

}  // namespace ho
