#pragma once

#include <string_view>

namespace ho::analyzer::detail {

/// The report's page around its data: render_report() puts the JSON between the two halves.
extern const std::string_view kReportPageHead;
extern const std::string_view kReportPageTail;

/// The page's style sheet, for other pages that are to look the same.
[[nodiscard]] std::string_view report_style();

}  // namespace ho::analyzer::detail
