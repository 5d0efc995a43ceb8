// Tells which part of the host's processors and memory this process may use.
#pragma once
#include <cstdint>
#include <set>
#include <string>

namespace pipewright {

// Returns the number of cores that this process may use, by its affinity and its control groups.
int CoresHere();

// Returns the bytes of this host's memory that its control groups leave this process.
int64_t MemoryHere();

// Returns the core seconds that all programs of the host, and other virtual machines, have so far
// used of the cores that this process may use; 0 if unknown.
double BusySeconds();
// Returns the clock ticks, in the text of /proc/stat (proc(5)), in which these cores were not idle;
// those of all cores if it names none of these.
double BusyTicks(const std::string& stat, const std::set<int>& cores);

// Returns the least limit in the control groups of a process and those around them
// (docs.kernel.org/admin-guide/cgroup-v2.html): of "memory.max" in bytes, of "cpu.max" in cores.
// Infinity if there is none, or if the host has version 1.
double GroupLimit(const std::string& file, const std::string& groups = "/proc/self/cgroup",
                  const std::string& root = "/sys/fs/cgroup");

}  // namespace pipewright
