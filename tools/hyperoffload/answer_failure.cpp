#include "tools/hyperoffload/answer_failure.hpp"

namespace ho::cli {

int answer_failure(Console& console, const Error& error) {
  if (error.code() != Errc::kConflict) return console.refuse(error);
  console.complain(error, kExitNo);
  console.note(
      "This is a mistake in HyperOffload, not in your files. Please report it with the graph, the "
      "hardware file and this command line.");
  return kExitNo;
}

}  // namespace ho::cli
