// What mpirun writes to stderr, without the banners in which it comments on a run that has failed.
#pragma once
#include <atomic>
#include <string>
#include <thread>

namespace pipewright {

// Returns what is to be shown of what has arrived so far, and removes it from `text`. A rule of
// dashes begins a banner, and the next one ends it: until then it waits, unless `all` is true. Of
// banners, those go that say no more than that a rank has ended, or how.
std::string TakeShown(std::string& text, bool all);

// Copies what is written to write_end() to stderr.
class BannerFilter {
 public:
  BannerFilter();  // throws Error
  // Shows what has arrived until now.
  ~BannerFilter();
  BannerFilter(const BannerFilter&) = delete;

  int write_end() const { return ends_[1]; }
  // The process that writes has its own copy of the write end.
  void CloseWriteEnd();

 private:
  void Run();
  int ends_[2] = {-1, -1};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace pipewright
