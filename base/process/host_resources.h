// Tells which part of the host's processors and memory this process may use.
#pragma once
#include <cstdint>
#include <string>

namespace pipewright {

// Returns the number of cores that this process may use, by its affinity and its control groups.
int CoresHere();

// Returns the bytes of this host's memory that its control groups leave this process.
int64_t MemoryHere();

// Returns the core seconds that all programs of the host have used so far; 0 if unknown.
double BusySeconds();

// Returns the least limit in the control groups of a process and those around them
// (docs.kernel.org/admin-guide/cgroup-v2.html): of "memory.max" in bytes, of "cpu.max" in cores.
// Infinity if there is none, or if the host has version 1.
double GroupLimit(const std::string& file, const std::string& groups = "/proc/self/cgroup",
                  const std::string& root = "/sys/fs/cgroup");

}  // namespace pipewright
