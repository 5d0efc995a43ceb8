// Ends a fuzz target that crashes, hangs or takes too much memory, and keeps the input that did it.
#pragma once
#include <string>

// From now on: what runs is `input` whenever something goes wrong. It is written to crash-input in
// the working directory.
void WatchInputs(const std::string& input);
// Before each input: it has 10 seconds of the processor and 2 GB.
void WatchNext();
// The longest that an input took, in seconds.
double LongestInput();
