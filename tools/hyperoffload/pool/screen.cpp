#include "tools/hyperoffload/pool/screen.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <thread>

namespace ho::cli {

namespace {

void write_out(const std::string& text) {
  static_cast<void>(::write(STDOUT_FILENO, text.data(), text.size()) < 0);
}

/// What a terminal of so many lines has room for: the first lines, and the last one, which says how
/// to quit.
std::string clipped(const std::string& text, std::size_t rows) {
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  if (rows < 3 || lines < rows) return text;  // the cursor needs a line
  const std::size_t shown = rows - 3;
  std::size_t end = 0;
  for (std::size_t i = 0; i < shown; ++i) end = text.find('\n', end) + 1;
  const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
  return text.substr(0, end) + "... " + std::to_string(lines - 1 - shown) + " more lines\n" +
         text.substr(last);
}

std::size_t terminal_rows() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_row : 0;  // 0: unknown
}

}  // namespace

Screen::Screen() {
  sigset_t signals{};
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signals_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  ::tcgetattr(STDIN_FILENO, &before_);
  termios keys = before_;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  write_out("\x1b[?1049h\x1b[?25l");
}

Screen::~Screen() {
  write_out("\x1b[?25h\x1b[?1049l");
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

void Screen::show(const std::string& text) {
  std::string lines = "\x1b[H";
  for (const char c : clipped(text, terminal_rows())) {
    lines += c == '\n' ? std::string("\x1b[K\n") : std::string(1, c);
  }
  write_out(lines + "\x1b[J");
}

Screen::Key Screen::wait(Duration time) {
  const TimePoint end = SteadyClock().now() + time;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock().now());
    if (left.count() <= 0) return Key::kNone;
    std::array<pollfd, 2> both{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{signals_.get(), POLLIN, 0}};
    if (::poll(both.data(), both.size(), static_cast<int>(left.count())) <= 0) continue;
    if ((both[1].revents & POLLIN) != 0) return Key::kInterrupt;
    char key = 'q';  // the terminal is gone
    if (::read(STDIN_FILENO, &key, 1) < 1 || key == 'q' || key == 'Q') return Key::kQuit;
  }
}

bool on_terminal() { return ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDIN_FILENO) == 1; }

int watch(Console& console, Duration interval, const std::function<std::string()>& look) {
  if (console.json()) {
    return console.refuse(Error(Errc::kInvalidArgument, "--watch: -o json prints one object"));
  }
  if (on_terminal()) {
    Screen screen;
    for (;;) {
      screen.show(look() + "q quits\n");
      switch (screen.wait(interval)) {
        case Screen::Key::kQuit: return kExitDone;
        case Screen::Key::kInterrupt: return kExitInterrupted;
        case Screen::Key::kNone: break;
      }
    }
  }
  for (;;) {
    console.print(look());
    if (!console.flush()) return kExitDone;  // Program says why, and ends with kExitBadInput
    std::this_thread::sleep_for(interval);
  }
}

}  // namespace ho::cli
