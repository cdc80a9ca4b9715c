// A client that a test kills: opens a session at argv[1], holds argv[2] bytes, says "y", and waits.
#include <unistd.h>

#include <cstdlib>

#include "proto/control/control_client.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const ho::TimePoint deadline = ho::SteadyClock().now() + std::chrono::seconds(20);
  ho::ControlClient::Options options;
  options.address = argv[1];
  const auto client = ho::ControlClient::connect(std::move(options), deadline);
  if (!client) return 1;
  const auto session = (*client)->open_session("holding client", deadline);
  if (!session) return 1;
  ho::GrantSpec spec;
  spec.bytes = std::strtoull(argv[2], nullptr, 10);
  spec.driver = "local";
  const auto granted = (*client)->grant(*session, spec, deadline);
  if (!granted) return 1;
  if (::write(STDOUT_FILENO, "y", 1) != 1) return 1;
  ::pause();
  return 0;
}
