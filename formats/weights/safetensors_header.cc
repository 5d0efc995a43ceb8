// A part of safetensors.h: reads and checks the header.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "formats/weights/safetensors.h"

namespace pipewright {
namespace {

// Follows the parser's events through the header's fixed shape: a tensor's entry is an object, or
// (accepted by the reference) the array [dtype, shape, data_offsets].
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  std::string error;

  bool null() override {
    if (Ignored() || (place_ == kRoot && in_metadata_)) return true;
    if (place_ == kDtype && !variant_.empty()) return true;
    return Fail("null");
  }
  bool boolean(bool) override { return Ignored() || Fail("a boolean"); }
  bool number_integer(int64_t) override { return Ignored() || Fail("a negative number"); }
  bool number_float(double, const std::string&) override { return Ignored() || Fail("a fraction"); }
  bool binary(binary_t&) override { return Fail("binary data"); }
  bool number_unsigned(uint64_t number) override {
    if (Ignored()) return true;
    if (place_ == kShape) return info_.shape.push_back(static_cast<int64_t>(number)), true;
    if (place_ == kOffsets && offsets_ < 2)
      return (offsets_++ ? info_.end : info_.begin) = number, true;
    return Fail("a number");
  }
  bool string(std::string& text) override {
    if (Ignored()) return true;
    if (place_ == kMetadata) {
      header_.metadata[key_] = text;
      return true;
    }
    if (!AtField(0)) return Fail("a string");
    return SetDtype(text);
  }

  bool start_object(size_t) override { return Open(true); }
  bool start_array(size_t) override { return Open(false); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    if (ignored_) return true;
    key_ = name;
    if (place_ == kRoot) {
      in_metadata_ = name == "__metadata__";
      if (!names_.insert(name).second) return Refuse("the name " + Quote(name) + " appears twice");
      if (in_metadata_) return true;
      info_ = {};
      info_.name = name;
      std::fill(seen_, seen_ + 3, false);
    } else if (place_ == kMetadata) {
      if (header_.metadata.count(name))
        return Refuse("the metadata key " + Quote(name) + " appears twice");
    } else if (place_ == kEntry) {
      static const char* const kFields[] = {"dtype", "shape", "data_offsets"};
      field_ = 0;
      while (field_ < 3 && name != kFields[field_]) ++field_;
      if (field_ < 3 && seen_[field_]) return Refuse(Where() + Quote(name) + " appears twice");
    } else if (place_ == kDtype) {
      if (!variant_.empty()) return Fail("a second name");
      variant_ = name;
      return SetDtype(name);
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    std::string reason = e.what();
    size_t colon = reason.rfind("; last read");
    if (colon != std::string::npos) reason.resize(colon);
    colon = reason.find(": ");
    if (colon != std::string::npos) reason = reason.substr(colon + 2);
    error = "not JSON at byte " + std::to_string(position) + " of the header: " + reason;
    return false;
  }

 private:
  // kEntryArray is the array form; kDtype is the dtype written as {"F32": null}, accepted by the
  // reference as well.
  enum Place { kStart, kRoot, kMetadata, kEntry, kEntryArray, kDtype, kShape, kOffsets };

  std::string Where() const {
    if (place_ == kStart) return "";
    return place_ == kMetadata || in_metadata_ ? "__metadata__: "
                                               : "tensor " + Quote(info_.name) + ": ";
  }
  bool Refuse(const std::string& what) { return error = what, false; }
  bool Fail(const std::string& found) {
    static const char* const kExpected[] = {"an object",
                                            "an object",
                                            "text",
                                            "dtype, shape and data_offsets",
                                            "dtype, shape and data_offsets",
                                            "one dtype",
                                            "unsigned integers",
                                            "exactly two unsigned integers"};
    return Refuse(Where() + "found " + found + ", expected " + kExpected[place_]);
  }

  // Returns true if the next value is this field of an entry: 0 dtype, 1 shape, 2 data_offsets.
  bool AtField(int field) const {
    return (place_ == kEntry || place_ == kEntryArray) && field_ == field;
  }
  bool Ignored() const { return ignored_ || (place_ == kEntry && field_ == 3); }
  bool FieldDone() {
    seen_[field_] = true;
    if (place_ == kEntryArray) ++field_;
    return true;
  }
  bool SetDtype(const std::string& name) {
    const Dtype* dtype = FindDtype(name);
    if (!dtype || name != dtype->name) return Refuse(Where() + "unknown dtype " + Quote(name));
    info_.dtype = name;
    return place_ == kDtype || FieldDone();
  }

  bool Open(bool object) {
    // The reference's limit; nothing here or in the library recurses.
    if (++depth_ > 127) return Refuse("nested deeper than 127 levels");
    if (ignored_) return ++ignored_, true;
    const char* found = object ? "an object" : "an array";
    switch (place_) {
      case kStart:
        if (!object) return Fail(found);
        place_ = kRoot;
        return true;
      case kRoot:
        if (in_metadata_ && !object) return Fail(found);
        place_ = in_metadata_ ? kMetadata : object ? kEntry : kEntryArray;
        field_ = 0;
        return true;
      case kEntry:
      case kEntryArray:
        parent_ = place_;
        if (AtField(3) && place_ == kEntry) return ignored_ = 1, true;
        if (AtField(0) && object) return place_ = kDtype, variant_.clear(), true;
        if (AtField(1) && !object) return place_ = kShape, true;
        if (AtField(2) && !object) return place_ = kOffsets, offsets_ = 0, true;
        return Fail(found);
      default:
        return Fail(found);
    }
  }

  bool Close() {
    --depth_;
    if (ignored_) return --ignored_, true;
    switch (place_) {
      case kDtype:
        if (variant_.empty()) return Fail("nothing");
        break;
      case kShape:
        break;
      case kOffsets:
        if (offsets_ != 2) return Fail(std::to_string(offsets_));
        break;
      case kEntry:
      case kEntryArray:
        if (!seen_[0] || !seen_[1] || !seen_[2])
          return Refuse(Where() +
                        (!seen_[0]   ? "dtype"
                         : !seen_[1] ? "shape"
                                     : "data_offsets") +
                        " is missing");
        header_.tensors.push_back(info_);
        [[fallthrough]];
      default:
        place_ = kRoot;
        return true;
    }
    place_ = parent_;
    return FieldDone();
  }

  SafetensorsHeader& header_;
  Place place_ = kStart, parent_ = kEntry;
  int depth_ = 0;
  int ignored_ = 0;  // levels inside the value of an unknown field
  int field_ = 0;    // of the entry: 0, 1, 2; 3: one that is ignored
  bool seen_[3] = {};
  int offsets_ = 0;
  bool in_metadata_ = false;
  std::string key_, variant_;
  TensorInfo info_;
  std::set<std::string> names_;
};

// Checks that each tensor starts where the one before ends and is as long as its shape requires.
// Returns the end of the last.
uint64_t CheckLayout(const std::vector<TensorInfo>& tensors, const std::string& path) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t end = 0;
  for (const TensorInfo* info : order) {
    std::string where = path + ": tensor " + Quote(info->name);
    std::string range = "[" + std::to_string(info->begin) + ", " + std::to_string(info->end) + ")";
    if (info->begin != end || info->end < info->begin)
      throw Error(where, "its bytes " + range + " do not begin at " + std::to_string(end) +
                             ", where the tensor before ends (InvalidOffset)");
    end = info->end;
    uint64_t bytes = TensorBytes(*FindDtype(info->dtype), info->shape, where);
    if (info->end - info->begin != bytes)
      throw Error(where, info->dtype + ShapeText(info->shape) + " takes " + std::to_string(bytes) +
                             " bytes, its range " + range +
                             " has another size "
                             "(TensorInvalidInfo)");
  }
  return end;
}

}  // namespace

const TensorInfo* SafetensorsHeader::Find(std::string_view name) const {
  auto it = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorInfo& info, std::string_view wanted) { return info.name < wanted; });
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

SafetensorsHeader ParseSafetensorsHeader(std::string_view file, const std::string& path) {
  constexpr uint64_t kMaxHeader = 100'000'000;  // the reference's limit
  if (file.size() < 8)
    throw Error(path, "not a safetensors file: shorter than 8 bytes (HeaderTooSmall)");
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(file[i]);
  if (size > kMaxHeader)
    throw Error(path, "its header would be " + std::to_string(size) +
                          " bytes long, more than 100,000,000 (HeaderTooLarge)",
                "is it a safetensors file? safetensors.torch.save_file writes them");
  if (size > file.size() - 8)
    throw Error(path, "its header of " + std::to_string(size) +
                          " bytes goes beyond the end of the file, which has " +
                          std::to_string(file.size()) + " (InvalidHeaderLength)");
  std::string_view text = file.substr(8, size);

  SafetensorsHeader header;
  header.data_begin = 8 + size;
  HeaderReader reader(header);
  // The library would skip a byte order mark and treat a NUL byte as the end of the text.
  if (text.substr(0, 3) == "\xEF\xBB\xBF")
    reader.error = "the header begins with a byte order mark";
  else if (size_t nul = text.find('\0'); nul != std::string_view::npos)
    reader.error = "a NUL byte at byte " + std::to_string(nul) + " of the header";
  else if (nlohmann::json::sax_parse(text.begin(), text.end(), &reader))
    reader.error.clear();
  if (!reader.error.empty())
    throw Error(path, reader.error +
                          (IsUtf8(text) ? " (InvalidHeaderDeserialization)" : " (InvalidHeader)"));

  uint64_t end = CheckLayout(header.tensors, path);
  if (end != file.size() - header.data_begin)
    throw Error(path, end > file.size() - header.data_begin
                          ? "is cut off: it has " + std::to_string(file.size()) + " of " +
                                std::to_string(header.data_begin + end) +
                                " bytes (MetadataIncompleteBuffer)"
                          : "its tensors take " + std::to_string(end) + " bytes, " +
                                std::to_string(file.size() - header.data_begin) +
                                " follow the header (MetadataIncompleteBuffer)");
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  return header;
}

}  // namespace pipewright
