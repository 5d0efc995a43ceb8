#include "formats/torch/inflate.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "base/error.h"

namespace pipewright {

namespace {

// Compresses as zip does: deflate without a header.
std::string Deflate(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

bool Refused(const std::string& packed, uint64_t size) {
  try {
    Inflate(packed, size, "archive.pt: data.pkl");
  } catch (const Error& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("archive.pt: data.pkl: ")) << e.what();
    return true;
  }
  return false;
}

}  // namespace

TEST(Inflate, GivesBackWhatWasPacked) {
  for (size_t size : {0, 1, 100, 100000}) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>(i * i % 251);
    EXPECT_EQ(Inflate(Deflate(text), text.size(), "w"), text);
  }
}

TEST(Inflate, RefusesAnotherSize) {
  const std::string packed = Deflate(std::string(1000, 'a'));
  EXPECT_TRUE(Refused(packed, 999));
  EXPECT_TRUE(Refused(packed, 1001));
}

TEST(Inflate, RefusesDamage) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i);
  const std::string packed = Deflate(text);
  for (size_t cut : {size_t{0}, size_t{1}, packed.size() / 2, packed.size() - 1})
    EXPECT_TRUE(Refused(packed.substr(0, cut), text.size())) << cut;
  EXPECT_TRUE(Refused("\xFF\xFF\xFF\xFF", 4));
}

}  // namespace pipewright
