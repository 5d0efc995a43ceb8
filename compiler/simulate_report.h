// How `pipewright simulate` shows its figures.
#pragma once
#include <optional>

#include "plan/compare.h"
#include "plan/json.h"
#include "plan/lower_bound.h"
#include "plan/measure.h"
#include "plan/plan.h"

namespace pipewright {

// Without a bound (of measured times none is known), none is shown, and JSON's are null.
Json FiguresJson(const Plan& plan, const Trace& trace, const Figures& figures,
                 const std::optional<LowerBound>& bound);
void PrintFigures(const Plan& plan, const Trace& trace, const Figures& figures,
                  const std::optional<LowerBound>& bound);

Json ComparisonJson(const Comparison& comparison);
void PrintComparison(const Comparison& comparison);

}  // namespace pipewright
