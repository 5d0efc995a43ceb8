#include "formats/torch/inflate.h"

#include <zlib.h>

#include "base/error.h"

namespace pipewright {

std::string Inflate(std::string_view packed, uint64_t size, const std::string& where) {
  auto fail = [&](const std::string& what) {
    throw Error(where, "compressed data is damaged: " + what, "copy or save the file again");
  };
  if (packed.size() > UINT32_MAX || size >= UINT32_MAX) fail("it is larger than 4 GiB");
  std::string out(size + 1, '\0');  // the extra byte reveals data that is too long
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw Error(where, "zlib cannot be started");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = inflate(&stream, Z_FINISH);
  const std::string message = stream.msg ? stream.msg : "it ends early";
  const uint64_t made = stream.total_out;
  inflateEnd(&stream);
  if (made > size) fail("it stands for more bytes than it should");
  if (result != Z_STREAM_END) fail(message);
  if (made < size) fail("it stands for fewer bytes than it should");
  out.resize(size);
  return out;
}

}  // namespace pipewright
