// RFC 1951. Codes are decoded bit by bit by their canonical order: what is read here is short.
#include "plan/weights/inflate.h"

#include <array>
#include <vector>

#include "plan/error.h"

namespace pipewright {

namespace {

constexpr int kLongest = 15;  // bits of a code

class Inflater {
 public:
  Inflater(std::string_view packed, uint64_t size, const std::string& where)
      : packed_(packed), size_(size), where_(where) {}

  std::string Run() {
    bool last = false;
    while (!last) {
      last = Bits(1);
      switch (Bits(2)) {
        case 0:
          Stored();
          break;
        case 1:
          Compressed(FixedLengths(), std::vector<int>(30, 5));
          break;
        case 2:
          Dynamic();
          break;
        default:
          Fail("a block of an unknown kind");
      }
    }
    if (out_.size() != size_) Fail("it stands for fewer bytes than it should");
    return std::move(out_);
  }

 private:
  // How many codes there are of each length, and the symbols in the order of their codes (3.2.2).
  struct Codes {
    std::array<int, kLongest + 1> count{};
    std::vector<int> symbols;
  };

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(where_, "compressed data is damaged: " + what);
  }
  int Bit() {
    if (at_ / 8 >= packed_.size()) Fail("it ends early");
    const int bit = static_cast<unsigned char>(packed_[at_ / 8]) >> (at_ % 8) & 1;
    ++at_;
    return bit;
  }
  int Bits(int count) {
    int value = 0;
    for (int i = 0; i < count; ++i) value |= Bit() << i;
    return value;
  }
  void Put(char byte) {
    if (out_.size() == size_) Fail("it stands for more bytes than it should");
    out_ += byte;
  }

  Codes MakeCodes(const std::vector<int>& lengths) const {
    Codes codes;
    for (int length : lengths) ++codes.count[static_cast<size_t>(length)];
    codes.count[0] = 0;
    int left = 1;  // codes of this length that are free
    std::array<int, kLongest + 2> next{};
    for (size_t length = 1; length <= kLongest; ++length) {
      left = left * 2 - codes.count[length];
      if (left < 0) Fail("too many codes of one length");
      next[length + 1] = next[length] + codes.count[length];
    }
    codes.symbols.resize(lengths.size());
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol)
      if (lengths[symbol] > 0)
        codes.symbols[static_cast<size_t>(next[static_cast<size_t>(lengths[symbol])]++)] =
            static_cast<int>(symbol);
    return codes;
  }
  int Symbol(const Codes& codes) {
    int code = 0, first = 0, index = 0;
    for (size_t length = 1; length <= kLongest; ++length) {
      code |= Bit();
      const int count = codes.count[length];
      if (code - first < count) return codes.symbols[static_cast<size_t>(index + code - first)];
      index += count;
      first = (first + count) << 1;
      code <<= 1;
    }
    Fail("a code without a meaning");
  }

  void Stored() {
    at_ = (at_ + 7) / 8 * 8;
    const int length = Bits(16), check = Bits(16);
    if (length != (~check & 0xffff)) Fail("a stored block whose length does not hold");
    for (int i = 0; i < length; ++i) Put(static_cast<char>(Bits(8)));
  }

  static std::vector<int> FixedLengths() {
    std::vector<int> lengths(288, 8);
    for (size_t i = 144; i < 256; ++i) lengths[i] = 9;
    for (size_t i = 256; i < 280; ++i) lengths[i] = 7;
    return lengths;
  }

  void Dynamic() {
    static constexpr int kOrder[] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                     11, 4,  12, 3, 13, 2, 14, 1, 15};
    const int literals = Bits(5) + 257, distances = Bits(5) + 1, coded = Bits(4) + 4;
    if (literals > 286 || distances > 30) Fail("too many codes");
    std::vector<int> lengths(19, 0);
    for (int i = 0; i < coded; ++i) lengths[static_cast<size_t>(kOrder[i])] = Bits(3);
    const Codes codes = MakeCodes(lengths);
    lengths.clear();
    const size_t all = static_cast<size_t>(literals + distances);
    while (lengths.size() < all) {
      const int symbol = Symbol(codes);
      if (symbol < 16) {
        lengths.push_back(symbol);
        continue;
      }
      if (symbol == 16 && lengths.empty()) Fail("a repetition of nothing");
      const int repeated = symbol == 16 ? lengths.back() : 0;
      const int count = symbol == 16 ? 3 + Bits(2) : symbol == 17 ? 3 + Bits(3) : 11 + Bits(7);
      lengths.insert(lengths.end(), static_cast<size_t>(count), repeated);
      if (lengths.size() > all) Fail("too many lengths");
    }
    if (lengths[256] == 0) Fail("a block without an end");
    const auto middle = lengths.begin() + literals;
    Compressed({lengths.begin(), middle}, {middle, lengths.end()});
  }

  void Compressed(const std::vector<int>& literal_lengths,
                  const std::vector<int>& distance_lengths) {
    static constexpr int kLength[] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                      15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                      67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr int kLengthBits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                          2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static constexpr int kDistance[] = {
        1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
        193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    const Codes literals = MakeCodes(literal_lengths), distances = MakeCodes(distance_lengths);
    for (int symbol = Symbol(literals); symbol != 256; symbol = Symbol(literals)) {
      if (symbol < 256) {
        Put(static_cast<char>(symbol));
        continue;
      }
      symbol -= 257;
      if (symbol >= 29) Fail("a length without a meaning");
      const int length = kLength[symbol] + Bits(kLengthBits[symbol]);
      const int code = Symbol(distances);
      if (code >= 30) Fail("a distance without a meaning");
      const size_t distance =
          static_cast<size_t>(kDistance[code] + Bits(code < 4 ? 0 : code / 2 - 1));
      if (distance > out_.size()) Fail("it refers to before its start");
      for (int i = 0; i < length; ++i) Put(out_[out_.size() - distance]);
    }
  }

  std::string_view packed_;
  uint64_t size_, at_ = 0;  // at_: in bits
  const std::string& where_;
  std::string out_;
};

}  // namespace

std::string Inflate(std::string_view packed, uint64_t size, const std::string& where) {
  return Inflater(packed, size, where).Run();
}

}  // namespace pipewright
