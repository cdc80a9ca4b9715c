#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/error.hpp"
#include "common/cli/console.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "common/text/json.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/analyzer/smallest_budget.hpp"

namespace ho::cli {

/// All parts of the answer.
struct AnalyzeAnswer {
  const Graph& graph;
  std::uint64_t budget_bytes = 0;
  double analyze_ms = 0;
  std::size_t measured_ops = 0;  ///< --op-times gives these their durations
  bool of_pool = false;          ///< the hardware is that of a pool, measured
};

/// A plan as an object.
[[nodiscard]] std::string plan_json(const AnalyzeAnswer& answer, const schedule::Schedule& plan,
                                    const analyzer::OrderGains& order);
/// A plan as a table. @param out  the file that it is in
[[nodiscard]] std::string plan_text(const AnalyzeAnswer& answer, const schedule::Schedule& plan,
                                    const analyzer::OrderGains& order, const std::string& out,
                                    Format format);

/// Which tier lacks room for what: an op, or `step` for homes, which last the whole step.
[[nodiscard]] Error no_room(const analyzer::Infeasible& why, const std::string& step);
/// The same, as fields of an object.
void write_no_room(JsonWriter& json, const analyzer::Infeasible& why);

/// Says why there is no plan, and what would help. @return the exit code.
int answer_infeasible(Console& console, const AnalyzeAnswer& answer, const Hardware& hardware,
                      const analyzer::Infeasible& infeasible);

/// Says how much longer than asked the step of the largest budget is. @return the exit code.
/// @param overhead_max  a share: 0.02
/// @param out           the file that is not written
int answer_too_long(Console& console, const AnalyzeAnswer& answer, double overhead_max,
                    const analyzer::BudgetFound& planned, const std::string& out);

}  // namespace ho::cli
