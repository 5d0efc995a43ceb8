// For compilers without libFuzzer: runs a target on files, then on random changes of them. In a
// build that counts what of the code is reached (coverage.cc), inputs that reach something new are
// changed further.
// Usage: TARGET [-runs=N] [-keep-size] FILE...      -keep-size: bytes change, none come or go
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>

#include "plan/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) long PlacesReached();  // absent in other builds

// Whether it reached anything new.
static bool RunOne(const std::string& input) {
  const long before = PlacesReached ? PlacesReached() : 0;
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  return PlacesReached && PlacesReached() > before;
}

static std::string Mutated(std::string input, const std::vector<std::string>& seeds,
                           std::mt19937& random, bool keep_size) {
  for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
    size_t at = input.empty() ? 0 : random() % input.size();
    size_t length = 1 + random() % 16;
    static const char kTelling[] = " \"{}[],:0123456789\0\xff\x7f\x80-e.\\u()Rcqtb";
    switch (random() % (keep_size ? 2 : 6)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (!input.empty()) input[at] = kTelling[random() % (sizeof kTelling - 1)];
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(input.empty() ? 0 : random() % input.size(), length));
        break;
      case 4:
        input.resize(at);
        break;
      default: {
        const std::string& other = seeds[random() % seeds.size()];
        if (!other.empty()) input.insert(at, other.substr(random() % other.size(), length));
      }
    }
  }
  return input;
}

int main(int argc, char** argv) {
  std::vector<std::string> inputs = {""};
  long runs = 20000;
  bool keep_size = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-runs=", 6) == 0)
      runs = std::atol(argv[i] + 6);
    else if (std::strcmp(argv[i], "-keep-size") == 0)
      keep_size = true;
    else
      inputs.push_back(pipewright::ReadFile(argv[i]));
  }
  for (const std::string& input : inputs) RunOne(input);
  const size_t files = inputs.size();
  const long places = PlacesReached ? PlacesReached() : 0;
  std::mt19937 random(1);
  for (long i = 0; i < runs; ++i) {
    const std::string& from = inputs[static_cast<size_t>(i) % inputs.size()];
    std::string input = Mutated(from, inputs, random, keep_size);
    if (RunOne(input)) inputs.push_back(std::move(input));
  }
  std::cout << runs << " runs over " << files << " seeds";
  if (PlacesReached)
    std::cout << ", which reached " << places << " places, and " << inputs.size() - files
              << " inputs that took it to " << PlacesReached();
  std::cout << "\n";
  return 0;
}
