// For compilers without libFuzzer: runs a target on files, then on random changes to them. With
// -DPIPEWRIGHT_FUZZ=ON, inputs that reach something new are changed further.
// Usage: TARGET [-runs=N] [-seed=N] [-keep-size] [-found=FOLDER] FILE...
// -keep-size: changes bytes, but never adds or removes any. -found: folder for inputs that reach
// something new. Fails if fewer than a third of the inputs pass the first checks.
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

#include "base/files/read_file.h"
#include "tests/fuzz/first_checks.h"
#include "tests/fuzz/watch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Defined in coverage.cc, if the code is instrumented.
extern "C" size_t pipewright_steps_reached() __attribute__((weak));

static size_t Steps() { return pipewright_steps_reached ? pipewright_steps_reached() : 0; }

// Returns true if the input reached something new.
static bool RunOne(const std::string& input) {
  const size_t before = Steps();
  WatchNext();
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  return Steps() > before;
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

// Replaces a letter by another letter, or a digit by another digit, so that the input passes the
// first checks of most readers.
static std::string GentlyMutated(std::string input, std::mt19937& random) {
  if (input.empty()) return input;
  for (int tries = 0; tries < 100; ++tries) {
    char& byte = input[random() % input.size()];
    if (byte >= '0' && byte <= '9') return byte = static_cast<char>('0' + random() % 10), input;
    if (byte >= 'a' && byte <= 'z') return byte = static_cast<char>('a' + random() % 26), input;
  }
  input[random() % input.size()] = static_cast<char>(random());
  return input;
}

int main(int argc, char** argv) {
  std::vector<std::string> seeds;
  long runs = 20000;
  unsigned seed = 1;
  bool keep_size = false;
  std::string found;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-runs=", 6) == 0)
      runs = std::atol(argv[i] + 6);
    else if (std::strncmp(argv[i], "-seed=", 6) == 0)
      seed = static_cast<unsigned>(std::atol(argv[i] + 6));
    else if (std::strncmp(argv[i], "-found=", 7) == 0)
      found = argv[i] + 7;
    else if (std::strcmp(argv[i], "-keep-size") == 0)
      keep_size = true;
    else
      seeds.push_back(pipewright::ReadFile(argv[i]));
  }
  if (seeds.empty()) seeds.push_back("");
  const size_t given = seeds.size();
  std::string input;
  WatchInputs(input);
  for (const std::string& one : seeds) RunOne(input = one);
  g_passed_first_checks = 0;
  std::mt19937 random(seed);
  for (long i = 0; i < runs; ++i) {
    const size_t at = static_cast<size_t>(i / 2);
    input = i % 2 ? Mutated(seeds[at % seeds.size()], seeds, random, keep_size)
                  : GentlyMutated(seeds[at % given], random);
    if (!RunOne(input)) continue;
    seeds.push_back(input);
    if (!found.empty()) pipewright::WriteFile(found + "/" + std::to_string(seeds.size()), input);
  }
  WatchNext();
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::printf(
      "%ld inputs from %zu files: %.0f%% passed the first checks, %zu reached something new, %zu "
      "steps in all; at most %.2f s for one, %ld MB; %.0f s\n",
      runs, given, runs ? 100.0 * g_passed_first_checks / runs : 0.0, seeds.size() - given, Steps(),
      LongestInput(), used.ru_maxrss / 1024, static_cast<double>(clock()) / CLOCKS_PER_SEC);
  if (g_passed_first_checks * 3 >= runs) return 0;
  std::fputs("fewer than a third of the inputs passed the first checks\n", stderr);
  return 1;
}
