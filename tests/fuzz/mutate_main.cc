// For compilers without libFuzzer: runs a target on files, then on random changes of them.
// Usage: TARGET [-runs=N] [-keep-size] FILE...      -keep-size: bytes change, none come or go
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>

#include "plan/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static void RunOne(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
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
  std::vector<std::string> seeds = {""};
  long runs = 20000;
  bool keep_size = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-runs=", 6) == 0)
      runs = std::atol(argv[i] + 6);
    else if (std::strcmp(argv[i], "-keep-size") == 0)
      keep_size = true;
    else
      seeds.push_back(pipewright::ReadFile(argv[i]));
  }
  for (const std::string& seed : seeds) RunOne(seed);
  std::mt19937 random(1);
  for (long i = 0; i < runs; ++i)
    RunOne(Mutated(seeds[static_cast<size_t>(i) % seeds.size()], seeds, random, keep_size));
  std::cout << runs << " runs over " << seeds.size() << " seeds\n";
  return 0;
}
