// `pipewright-run bench`: what a step and its actions cost.
#pragma once
#include <string>

#include "runtime/exec/transport.h"

namespace pipewright {

struct BenchOptions {
  std::string package, job, conf, schedule;
  int steps = 10, warmup = 3;  // measured, and before that; both at least 1
  std::string trace, costs;    // files to write; empty: none
  bool json = false;
  bool on_request = false;  // instead: see runtime/bench_requests.h
};

// Runs on every rank of `transport`; rank 0 prints. Throws the same Error on all of them.
void Bench(const BenchOptions& options, Transport& transport);

}  // namespace pipewright
