// Finds what is wrong with a run before it is started, by the functions that a run calls itself.
#pragma once
#include <string>
#include <vector>

#include "base/process/messages.h"
#include "formats/job.h"

namespace pipewright {

struct CheckRequest {
  std::string package;
  std::string conf;     // a file; "": the package's own
  std::string job;      // a file; "": none
  std::vector<std::string> set;  // overrides of the job's values: see ReadJob
  bool eval = false;    // the job is evaluated, not trained
  // For an inference. Without `input`, the run is that of the job.
  std::string input, output;         // files
  std::vector<std::string> outputs;  // names; none: all
  int microbatches = 1;
  std::string weights;     // a path for OpenCheckpoint; "": the package's weights
  std::string device_map;  // a file; "": weights are in memory, unless the conf offloads some
  int ranks = 0;           // number to start; 0: as many as the conf names
  bool resume = false;  // checkpoints may be there
  double memory = 0;    // bytes that each rank may hold; 0: no limit
};

struct Finding {
  std::string rule;  // CheckRule::name
  Severity severity = Severity::kError;
  std::string text;          // "WHERE: WHAT", and a cure on further lines, as Error has it
  int line = 0, column = 0;  // in the file named at the start of `text`; 0: unknown
};

struct NotChecked {
  std::string rule, why;
};

struct CheckResult {
  std::vector<Finding> findings;  // in the order of the rules
  std::vector<NotChecked> not_checked;
  int ranks = 0;  // in the run; 0: unknown

  int Count(Severity severity) const;
};

struct CheckRule {
  std::string name, description;
};

// Returns the rules in the order in which they are checked. docs/reference/check.md explains each.
const std::vector<CheckRule>& CheckRules();

// Checks a run and writes nothing. Errors that a user can cause become findings, not exceptions.
CheckResult Check(const CheckRequest& request);

}  // namespace pipewright
