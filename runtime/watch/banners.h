// Filters mpirun's stderr: drops the banners in which it comments on a run that has failed.
#pragma once
#include <atomic>
#include <string>
#include <thread>

namespace pipewright {

// Removes complete lines and banners from `text` and returns those to show. A line of dashes begins
// a banner, and the next one ends it; an incomplete banner stays in `text` unless `all` is true.
// Drops banners that say only that a rank has ended, or how.
std::string TakeShown(std::string& text, bool all);

// Copies what is written to write_end() to stderr.
class BannerFilter {
 public:
  BannerFilter();  // throws Error
  // Shows what has arrived until now.
  ~BannerFilter();
  BannerFilter(const BannerFilter&) = delete;

  int write_end() const { return ends_[1]; }
  // Must be called once the writing process has its own copy of the write end.
  void CloseWriteEnd();

 private:
  void Run();
  int ends_[2] = {-1, -1};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace pipewright
