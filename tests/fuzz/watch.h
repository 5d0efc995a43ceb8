// Ends a fuzz target that crashes, hangs or takes too much memory, and keeps the input that did it.
#pragma once
#include <string>

// From now on, `input` is the running input. If anything goes wrong, it is written to crash-input
// in the working directory.
void WatchInputs(const std::string& input);
// Called before each input, which has 10 seconds of processor time and 2 GB.
void WatchNext();
// Returns the longest time that an input took, in seconds.
double LongestInput();
