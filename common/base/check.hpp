#pragma once

namespace ho {

/// Prints where a programmer's assumption failed and aborts. Never returns.
[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace ho

/// Always on. States what must hold unless our own code is wrong; input from outside gets an Error
/// instead.
#define HO_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::ho::check_failed(#condition, __FILE__, __LINE__))
