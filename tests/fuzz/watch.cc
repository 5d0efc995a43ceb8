#include "tests/fuzz/watch.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

// Options of sanitized builds: keeps the input after a sanitizer's report, and limits memory. Short
// call stacks of allocations save a fifth of the time.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
extern "C" const char* __asan_default_options() {
  return "malloc_context_size=2:quarantine_size_mb=8:max_allocation_size_mb=1024:"
         "hard_rss_limit_mb=2048:handle_abort=0";
}
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace {

// Returns processor time in seconds, which other programs do not affect.
double Used(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

const std::string* g_input = nullptr;
std::atomic<long> g_begun = 0;
double g_start = 0, g_longest = 0;

void Keep() {
  const int file = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || write(file, g_input->data(), g_input->size()) < 0) return;
  close(file);
  std::fputs("the input that did it is in crash-input\n", stderr);
}

void OnSignal(int signal) {
  Keep();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void WatchForHangs() {
  long before = -1;
  for (double since = 0;;) {
    const double now = Used(CLOCK_PROCESS_CPUTIME_ID);
    if (g_begun != before) before = g_begun, since = now;
    if (now - since > 10) {
      std::fputs("an input takes more than 10 seconds\n", stderr);
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

}  // namespace

void WatchInputs(const std::string& input) {
  g_input = &input;
  std::signal(SIGABRT, OnSignal);
  if (__sanitizer_set_death_callback) {
    __sanitizer_set_death_callback(Keep);
  } else {
    const rlimit two_gigabytes{rlim_t{2} << 30, rlim_t{2} << 30};
    setrlimit(RLIMIT_DATA, &two_gigabytes);  // more is bad_alloc, which no target catches
  }
  WatchNext();
  std::thread(WatchForHangs).detach();
}

void WatchNext() {
  const double now = Used(CLOCK_THREAD_CPUTIME_ID);
  if (++g_begun > 1) g_longest = std::max(g_longest, now - g_start);
  g_start = now;
}

double LongestInput() { return g_longest; }
