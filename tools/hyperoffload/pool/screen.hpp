#pragma once

#include <termios.h>

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/clock.hpp"
#include "common/cli/console.hpp"
#include "common/system/unique_fd.hpp"

namespace ho::cli {

/// The terminal of a command that shows a table again and again: an alternate screen, and keys
/// without Enter. Its end restores the terminal. Signals that end the command arrive as keys do:
/// see wait().
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

/// Whether input and output of the command are terminals.
[[nodiscard]] bool on_terminal();

/// Shows the result of `look` after each interval: on a terminal in place, until q or a signal;
/// otherwise one below the other, until a signal or the end of its reader.
/// @return the exit code of the command.
int watch(Console& console, Duration interval, const std::function<std::string()>& look);

}  // namespace ho::cli
