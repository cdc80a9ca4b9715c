#pragma once

#include "common/base/error.hpp"
#include "common/cli/console.hpp"

namespace ho::cli {

/// Ends a command that the analyzer refused: errors of the analyzer are errors of its input, except
/// for a plan of its own that breaks a rule. @return the exit code
int answer_failure(Console& console, const Error& error);

}  // namespace ho::cli
