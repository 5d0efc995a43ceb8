// Prints the figures of `pipewright simulate`.
#pragma once
#include <optional>

#include "base/json.h"
#include "plan/plan.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/lower_bound.h"
#include "plan/simulate/measure.h"

namespace pipewright {

// Without a bound (measured times have none), the text omits it and JSON has null.
Json FiguresJson(const Plan& plan, const ActionTrace& trace, const Figures& figures,
                 const std::optional<LowerBound>& bound);
void PrintFigures(const Plan& plan, const ActionTrace& trace, const Figures& figures,
                  const std::optional<LowerBound>& bound);

Json ComparisonJson(const Comparison& comparison);
void PrintComparison(const Comparison& comparison);

}  // namespace pipewright
