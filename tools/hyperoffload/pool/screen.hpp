#pragma once

#include <termios.h>

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/unique_fd.hpp"
#include "common/cli/console.hpp"

namespace ho::cli {

/// The terminal while a table is shown again and again: a screen of its own, keys without Enter.
/// Its end brings back what was there. Signals that end the command come as keys do: see wait().
class Screen {
 public:
  enum class Key : std::uint8_t { kNone, kQuit, kInterrupt };

  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const std::string& text);
  /// Sleeps until a key or signal ends the command, or the time is over.
  [[nodiscard]] Key wait(Duration time);

 private:
  UniqueFd signals_;
  termios before_{};
};

/// Whether a command talks to a terminal, both ways.
[[nodiscard]] bool on_terminal();

/// Shows what `look` returns, again after each interval: on a terminal in place, until q or a
/// signal; elsewhere one below the other, until a signal, or until nobody reads it.
/// @return how the command ends.
int watch(Console& console, Duration interval, const std::function<std::string()>& look);

}  // namespace ho::cli
