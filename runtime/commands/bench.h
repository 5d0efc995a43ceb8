// `pipewright-run bench`: measures steps and their actions.
#pragma once
#include <string>
#include <vector>

#include "runtime/exec/transport.h"
#include "runtime/session.h"

namespace pipewright {

struct BenchOptions {
  std::string package, job, conf, weights, schedule;
  std::vector<std::string> set;  // changes of the job, see ReadJob
  int steps = 10, warmup = 3;  // measured steps, and steps before those; both at least 1
  std::string trace, costs;    // output files; empty: none
  bool json = false;
  bool on_request = false;  // serve requests instead, see runtime/commands/bench_requests.h
  bool verify_files = false;  // see RunOptions, as for the devices
  std::string device;
  DeviceLinks links = DeviceLinks::kAuto;
  bool share_devices = false;
};

// Must be called on every rank of `transport`; rank 0 prints. Throws the same Error on all of them.
void Bench(const BenchOptions& options, Transport& transport);

}  // namespace pipewright
