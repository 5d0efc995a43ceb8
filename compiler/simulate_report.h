// How `pipewright simulate` shows its figures.
#pragma once
#include "plan/compare.h"
#include "plan/json.h"
#include "plan/lower_bound.h"
#include "plan/plan.h"
#include "plan/simulate.h"

namespace pipewright {

Json FiguresJson(const Plan& plan, const Trace& trace, const Figures& figures,
                 const LowerBound& bound);
void PrintFigures(const Plan& plan, const Trace& trace, const Figures& figures,
                  const LowerBound& bound);

Json ComparisonJson(const Comparison& comparison);
void PrintComparison(const Comparison& comparison);

}  // namespace pipewright
