#include "base/files/read_file.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/missing_file.h"
#include "base/json_comments.h"

namespace pipewright {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Unreadable(path);
  std::ostringstream out;
  errno = 0;  // an earlier failure says nothing about an empty file
  out << in.rdbuf();
  // A folder can be opened but not read.
  if (in.bad() || (out.str().empty() && in.peek() == EOF && errno == EISDIR))
    throw Error(path, "cannot be read: it is a folder");
  return out.str();
}

Json ReadJson(const std::string& path) {
  return ParseJson(WithoutComments(ReadFile(path)), path);
}

void WriteFile(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.Write(content);
  file.Commit();
}

}  // namespace pipewright
