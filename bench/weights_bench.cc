// Reads weights in the simplest ways. Answers each line of its input with a line of JSON.
//   weights_bench FILE...
//   "read"   reads all bytes of the files, bypassing the page cache if the file system can, in
//            blocks of 8 MiB, one after the other, into one buffer of huge pages (with small pages,
//            each request has hundreds of addresses, which may halve its speed): the disk's limit
//   "touch"  opens the first FILE, a safetensors file, and touches every page of every tensor
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/weights/safetensors.h"

namespace {

constexpr size_t kBlock = 8 << 20, kPage = 4096, kHugePage = 2 << 20;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t ReadAll(const std::string& path, char* buffer) {
  int fd = open(path.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) fd = open(path.c_str(), O_RDONLY);
  if (fd < 0) throw pipewright::Error(path, "cannot be opened");
  uint64_t total = 0;
  for (ssize_t n; (n = pread(fd, buffer, kBlock, static_cast<off_t>(total))) > 0;)
    total += static_cast<uint64_t>(n);
  close(fd);
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0 || total != static_cast<uint64_t>(status.st_size))
    throw pipewright::Error(path, "cannot be read past the page cache");
  return total;
}

uint64_t Touch(const std::string& path) {
  const pipewright::SafetensorsFile file(path);
  uint64_t total = 0, sum = 0;
  std::vector<pipewright::TensorInfo> tensors = file.header().tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (const pipewright::TensorInfo& info : tensors) {
    const std::string_view bytes = file.Bytes(info);
    for (size_t at = 0; at < bytes.size(); at += kPage)
      sum += static_cast<unsigned char>(bytes[at]);
    total += bytes.size();
  }
  return total + (sum == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> files(argv + 1, argv + argc);
  char* buffer = static_cast<char*>(std::aligned_alloc(kHugePage, kBlock));
#ifdef MADV_HUGEPAGE
  madvise(buffer, kBlock, MADV_HUGEPAGE);
#endif
  for (std::string line; std::getline(std::cin, line);) try {
      const double start = Now();
      uint64_t bytes = 0;
      if (line == "read")
        for (const std::string& file : files) bytes += ReadAll(file, buffer);
      else
        bytes = Touch(files.at(0));
      std::printf("{\"seconds\": %.6f, \"bytes\": %llu}\n", Now() - start,
                  static_cast<unsigned long long>(bytes));
      std::fflush(stdout);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return 1;
    }
  std::free(buffer);
  return 0;
}
