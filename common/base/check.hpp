#pragma once

namespace ho {

/// Prints the failed condition and its place to stderr, then aborts. Never returns.
[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace ho

/// Aborts unless `condition` holds. Compiled into every build. For conditions that only a bug in
/// this project can break; wrong input gets an Error instead.
#define HO_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::ho::check_failed(#condition, __FILE__, __LINE__))
