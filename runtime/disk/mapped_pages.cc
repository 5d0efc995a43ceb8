#include "runtime/disk/mapped_pages.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace pipewright {

namespace {

struct Pages {
  std::atomic<const char*> begin{nullptr};
  std::atomic<uint64_t> size{0};
  std::atomic<const char*> path{nullptr};
};
Pages known[256];
struct sigaction before;

void Say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

// Names the file, then passes the signal on to the previous handler.
void NameFile(int signal, siginfo_t* info, void*) {
  const char* at = static_cast<const char*>(info->si_addr);
  for (const Pages& pages : known) {
    const char* begin = pages.begin;
    if (!begin || at < begin || at >= begin + pages.size) continue;
    Say("pipewright: ");
    Say(pages.path);
    Say(": it became shorter, or cannot be read any more, while weights in it were in use\n");
    break;
  }
  sigaction(signal, &before, nullptr);
  if (info->si_code <= 0) raise(signal);  // sent by kill(); otherwise the access faults again
}

}  // namespace

void RememberPages(const char* begin, uint64_t size, const char* path) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  static const bool caught = [] {
    struct sigaction action = {};
    action.sa_sigaction = NameFile;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, &before) == 0;
  }();
  for (Pages& pages : known) {
    if (!caught || pages.begin) continue;
    pages.size = size, pages.path = path, pages.begin = begin;
    return;
  }
}

void ForgetPages(const char* begin) {
  for (Pages& pages : known)
    if (pages.begin == begin) pages.begin = nullptr;
}

}  // namespace pipewright
