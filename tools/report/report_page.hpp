#pragma once

#include <string_view>

namespace ho::analyzer::detail {

/// The page of the report: render_report() inserts the JSON between these two parts.
extern const std::string_view kReportPageHead;
extern const std::string_view kReportPageTail;

/// The style sheet of the page, for other pages with the same look.
[[nodiscard]] std::string_view report_style();

}  // namespace ho::analyzer::detail
