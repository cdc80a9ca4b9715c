#include "tests/integration/faults/link.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace ho::test {
namespace {

std::string near_name(int link) { return "ho-near" + std::to_string(link); }
std::string far_name(int link) { return "ho-far" + std::to_string(link); }

/// Holds a namespace open until the test ends. @return its process, or -1.
pid_t start_holder() {
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char made = ::unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    if (::write(ready[1], &made, 1) != 1 || made == 'n') ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  ::close(ready[1]);
  char made = 'n';
  const bool told = pid > 0 && ::read(ready[0], &made, 1) == 1 && made == 'y';
  ::close(ready[0]);
  if (!told && pid > 0) ::waitpid(pid, nullptr, 0);
  return told ? pid : -1;
}

}  // namespace

Result<std::unique_ptr<Link>> Link::create(int links) {
  std::unique_ptr<Link> link(new Link);
  link->holder_ = start_holder();
  if (link->holder_ < 0) return Error(Errc::kUnsupported, "no right to make network namespaces");
  const std::string holder = std::to_string(link->holder_);
  link->far_ = UniqueFd(::open(("/proc/" + holder + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!link->far_.valid() || ::unshare(CLONE_NEWNET) != 0) {
    return Error(Errc::kUnsupported, std::string("network namespaces: ") + std::strerror(errno));
  }
  bool joined =
      link->run(End::kNear, "ip link set lo up") && link->run(End::kFar, "ip link set lo up");
  for (int i = 0; i < links && joined; ++i) joined = link->join(i);
  if (!joined) return Error(Errc::kUnsupported, "`ip` cannot join two namespaces by a veth link");
  return link;
}

bool Link::join(int link) const {
  const std::string near = near_name(link);
  const std::string far = far_name(link);
  const std::string net = "10.99." + std::to_string(7 + link);
  return run(End::kNear, "ip link add " + near + " type veth peer name " + far + " netns " +
                             std::to_string(holder_)) &&
         run(End::kNear, "ip addr add " + net + ".1/24 dev " + near) &&
         run(End::kFar, "ip addr add " + net + ".2/24 dev " + far) &&
         run(End::kNear, "ip link set " + near + " up") &&
         run(End::kFar, "ip link set " + far + " up");
}

Link::~Link() {
  if (holder_ <= 0) return;
  ::kill(holder_, SIGKILL);
  ::waitpid(holder_, nullptr, 0);
}

bool Link::down(int link) { return run(End::kFar, "ip link set " + far_name(link) + " down"); }
bool Link::up(int link) { return run(End::kFar, "ip link set " + far_name(link) + " up"); }

std::uint64_t Link::carried_bytes(int link) const {
  std::ifstream devices("/proc/self/net/dev");
  for (std::string line; std::getline(devices, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.find(near_name(link)) > colon) continue;
    std::istringstream numbers(line.substr(colon + 1));
    std::uint64_t received = 0;
    std::uint64_t sent = 0;
    numbers >> received;
    for (int skipped = 0; skipped < 8; ++skipped) numbers >> sent;  // the ninth is what we want
    return received + sent;
  }
  return 0;
}

bool Link::limit(std::uint64_t bits_per_s) {
  const std::string rate =
      " root tbf rate " + std::to_string(bits_per_s) + "bit burst 128kb latency 20ms";
  return run(End::kNear, "tc qdisc replace dev " + near_name(0) + rate) &&
         run(End::kFar, "tc qdisc replace dev " + far_name(0) + rate);
}

/// Runs a command line, split at blanks, in one of the namespaces. @return whether it exited with
/// 0.
bool Link::run(End end, const std::string& command) const {
  std::istringstream in(command);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) {
    if (end == End::kFar && ::setns(far_.get(), CLONE_NEWNET) != 0) ::_exit(126);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace ho::test
