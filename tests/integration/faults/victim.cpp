// A job that a test kills: ADDRESS TRANSPORT get|put idle|busy. Prints "r" once its transfers run.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/integration/faults/caller.hpp"

int main(int argc, char** argv) {
  using namespace ho::test;
  if (argc != 5) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string why;
  ho_pool* const pool = try_connect(argv[1], argv[2], 0, why);
  ho_allocation* memory = nullptr;
  if (pool == nullptr || ho_allocate(pool, Caller::kAreaBytes, &memory) != HO_OK) return 3;
  const Way way = std::string(argv[3]) == "get" ? Way::kGet : Way::kPut;
  const bool busy = std::string(argv[4]) == "busy";
  Caller caller(pool, memory, 0);
  if (caller.batch(Way::kPut).status != HO_OK || caller.batch(way).status != HO_OK) return 4;
  if (::write(STDOUT_FILENO, "r", 1) != 1) return 5;
  if (!busy) ::pause();
  while (caller.batch(way).status == HO_OK) {
  }
  return 6;
}
