// The page about a tune, for a browser.
#pragma once
#include <string>
#include <vector>

#include "plan/tune/problem.h"
#include "tune/job/request.h"
#include "tune/result.h"

namespace pipewright {

// Returns report.html: the candidates with what binds them, the memory of each rank, what would
// help, and the timelines of the winner and of the next candidate with another plan side by side.
// It is complete by itself and loads nothing.
std::string TunePage(const TuneRequest& request, const TuneProblem& problem,
                     const TuneOutcome& outcome, const std::string& start_line);

// Returns a page of TunePage with more notes.
std::string WithNotes(std::string page, const std::vector<std::string>& notes);

}  // namespace pipewright
