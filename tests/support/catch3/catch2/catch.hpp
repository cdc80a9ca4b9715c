// Catch2 v3 under the name and with the spellings of v2. Where v3 is installed,
// tests/CMakeLists.txt puts it into the include path.
#pragma once

#include <string>

#include <catch2/catch_approx.hpp>
#include <catch2/catch_session.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_version_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

namespace Catch {
namespace clara = Clara;
inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
}  // namespace Catch

using Catch::Approx;
