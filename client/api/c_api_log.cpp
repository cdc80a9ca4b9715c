// The C ABI of the library's log. No exception leaves it.
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "client/api/c_handles.hpp"
#include "common/base/log_fields.hpp"

namespace ho::client::c_api {
namespace {

constexpr bool same(ho_log_level level, LogLevel ours) {
  return static_cast<int>(level) == static_cast<int>(ours);
}
static_assert(same(HO_LOG_DEBUG, LogLevel::kDebug) && same(HO_LOG_INFO, LogLevel::kInfo) &&
                  same(HO_LOG_WARNING, LogLevel::kWarning) && same(HO_LOG_ERROR, LogLevel::kError),
              "ho_log_level mirrors LogLevel");

}  // namespace

Result<std::optional<LogLevel>> log_level_of_environment() {
  // The library has no main that could read it, and a person who looks for a fault cannot always
  // change the job. NOLINTNEXTLINE(concurrency-mt-unsafe): as for every use of getenv
  const char* const text = std::getenv("HYPEROFFLOAD_LOG");
  if (text == nullptr || *text == '\0') return std::optional<LogLevel>();
  const auto level = parse_log_level(text);
  if (level) return level;
  return Error(Errc::kInvalidArgument, std::string("HYPEROFFLOAD_LOG is \"") + text +
                                           "\", not one of " + std::string(kLogLevelNames));
}

}  // namespace ho::client::c_api

extern "C" {

ho_status ho_set_log(ho_log_level least,
                     void (*line)(void* context, ho_log_level level, const char* text),
                     void* context) {
  using namespace ho;
  return client::c_api::guarded([&]() -> Result<void> {
    // A C caller may pass any number; to load one as the enum that is none of its values is
    // undefined.
    unsigned number = 0;
    static_assert(sizeof(number) == sizeof(least));
    std::memcpy(&number, &least, sizeof(number));
    if (number > HO_LOG_ERROR) {
      return Error(Errc::kInvalidArgument, "not a ho_log_level");
    }
    if (line == nullptr) set_log_sink({});  // whatever the variable says
    const auto wanted = client::c_api::log_level_of_environment();
    if (!wanted) return wanted.error();
    if (line != nullptr) {
      set_log_sink([line, context](const LogLine& one) {
        line(context, static_cast<ho_log_level>(one.level), one.text.c_str());
        return true;
      });
    }
    set_log_level(wanted->value_or(static_cast<LogLevel>(least)));
    return {};
  });
}

}  // extern "C"
