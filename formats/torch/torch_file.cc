// Formats: PyTorch torch/serialization.py (both), torch/_utils.py (_rebuild_tensor_v2 and _v3).
#include "formats/torch/torch_file.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "formats/torch/pickle.h"
#include "formats/torch/zip.h"

namespace pipewright {
namespace {

using Kind = PickleNode::Kind;

const std::map<std::string, const char*>& StorageTypes() {
  static const std::map<std::string, const char*> kTypes = {
      {"torch DoubleStorage", "F64"},       {"torch FloatStorage", "F32"},
      {"torch HalfStorage", "F16"},         {"torch BFloat16Storage", "BF16"},
      {"torch LongStorage", "I64"},         {"torch IntStorage", "I32"},
      {"torch ShortStorage", "I16"},        {"torch CharStorage", "I8"},
      {"torch ByteStorage", "U8"},          {"torch BoolStorage", "BOOL"},
      {"torch ComplexFloatStorage", "C64"}, {"torch ComplexDoubleStorage", "complex128"},
      {"torch UntypedStorage", "U8"},       {"torch.storage UntypedStorage", "U8"},
  };
  return kTypes;
}

const std::set<std::string>& Functions() {
  static const std::set<std::string> kFunctions = {
      "torch._utils _rebuild_tensor",    "torch._utils _rebuild_tensor_v2",
      "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter",
      "collections OrderedDict",         "torch Size",
  };
  return kFunctions;
}

bool Allowed(const std::string& global) {
  if (StorageTypes().count(global) || Functions().count(global)) return true;
  return global.substr(0, 6) == "torch " && FindDtype(global.substr(6)) != nullptr;
}

// A storage that the pickle refers to: ("storage", type, key, location, elements).
struct Storage {
  std::string dtype, key;
  uint64_t elements = 0;
};

// The position of a storage's bytes in the file.
struct Range {
  uint64_t offset = 0, size = 0;
};

class StateDictReader {
 public:
  StateDictReader(const Pickle& pickle, const std::string& path) : pickle_(pickle), path_(path) {}

  // Returns every tensor, with the key of its storage in `storage` and offsets within the storage.
  std::vector<StoredTensor> Tensors() {
    const PickleNode& root = pickle_[pickle_.root];
    if (root.kind != Kind::kDict) Fail("a state dict is expected, found " + Name(root));
    std::vector<StoredTensor> tensors;
    std::set<std::string> names;
    for (size_t i = 0; i < root.items.size(); i += 2) {
      const PickleNode& key = pickle_[root.items[i]];
      if (key.kind != Kind::kText) Fail("a name is expected, found " + Name(key));
      if (!names.insert(key.text).second) Fail("the name " + Quote(key.text) + " appears twice");
      tensor_ = key.text;
      tensors.push_back(Tensor(root.items[i + 1]));
      tensors.back().name = key.text;
    }
    return tensors;
  }

  // Reads a reference to a storage. Throws Error for a view of a storage (a sixth entry in the
  // older format).
  Storage StorageOf(const PickleNode& node) const {
    const PickleNode& id = node.kind == Kind::kPersistent ? pickle_[node.items[0]] : node;
    size_t n = id.items.size();
    if (node.kind != Kind::kPersistent || id.kind != Kind::kTuple || n < 5 || n > 6 ||
        pickle_[id.items[1]].kind != Kind::kGlobal || pickle_[id.items[2]].kind != Kind::kText ||
        pickle_[id.items[4]].kind != Kind::kInt || pickle_[id.items[4]].number < 0)
      Fail("a storage is expected, found " + Name(node));
    if (n == 6 && pickle_[id.items[5]].kind != Kind::kNone)
      Fail("a view of a storage, as PyTorch before 0.4 wrote it");
    auto type = StorageTypes().find(pickle_[id.items[1]].text);
    if (type == StorageTypes().end()) Fail("an unknown type of storage");
    return {type->second, pickle_[id.items[2]].text,
            static_cast<uint64_t>(pickle_[id.items[4]].number)};
  }

 private:
  [[noreturn]] void Fail(const std::string& what, const std::string& cure = "") const {
    throw Error(path_ + (tensor_.empty() ? "" : ": " + Quote(tensor_)), what, cure);
  }
  static std::string Name(const PickleNode& node) { return PickleKindName(node.kind); }

  std::vector<int64_t> Sizes(int id) const {
    const PickleNode* node = &pickle_[id];
    if (node->kind == Kind::kCall) {  // torch.Size((2, 3))
      const PickleNode& arguments = pickle_[node->items[1]];
      if (pickle_[node->items[0]].text == "torch Size" && arguments.items.size() == 1)
        node = &pickle_[arguments.items[0]];
    }
    if (node->kind != Kind::kTuple) Fail("a shape is expected, found " + Name(*node));
    std::vector<int64_t> sizes;
    for (int item : node->items) {
      if (pickle_[item].kind != Kind::kInt || pickle_[item].number < 0)
        Fail("a shape or stride that is not a tuple of natural numbers");
      sizes.push_back(pickle_[item].number);
    }
    return sizes;
  }

  StoredTensor Tensor(int id) const {
    const PickleNode* call = &pickle_[id];
    std::string function;
    while (true) {
      if (call->kind != Kind::kCall)
        Fail("a tensor is expected, found " + Name(*call),
             "write the file with torch.save(model.state_dict(), path)");
      function = pickle_[call->items[0]].text;
      if (function != "torch._utils _rebuild_parameter") break;
      const PickleNode& wrapped = pickle_[call->items[1]];
      if (wrapped.items.empty()) Fail("a parameter without a tensor");
      call = &pickle_[wrapped.items[0]];
    }
    const std::vector<int>& arguments = pickle_[call->items[1]].items;
    bool typed = function == "torch._utils _rebuild_tensor_v3";
    if (function.substr(0, 28) != "torch._utils _rebuild_tensor" ||
        arguments.size() < (typed ? 7u : 4u))
      Fail("a tensor is expected, found a call of " + function);
    if (pickle_[arguments[1]].kind != Kind::kInt || pickle_[arguments[1]].number < 0)
      Fail("a tensor whose offset is not a natural number");
    // With {"conj": True} or {"neg": True}, the tensor's values differ from those in its storage.
    const size_t metadata = typed ? 7 : 6;
    if (arguments.size() > metadata)
      for (int item : pickle_[arguments[metadata]].items)
        if (pickle_[item].kind == Kind::kBool && pickle_[item].number)
          Fail("a view that conjugates or negates what is stored",
               "save tensor.resolve_conj().resolve_neg()");
    Storage storage = StorageOf(pickle_[arguments[0]]);
    // _rebuild_tensor_v3 has a storage of plain bytes and names the dtype separately.
    std::string dtype_name = storage.dtype;
    if (typed && pickle_[arguments[6]].kind == Kind::kGlobal)
      dtype_name = pickle_[arguments[6]].text.substr(6);
    const Dtype* dtype = FindDtype(dtype_name);
    if (!dtype) Fail("dtype " + dtype_name + " has no place in a safetensors file");
    uint64_t unit = static_cast<uint64_t>(dtype->bits) / 8;
    if (dtype->bits < 8) unit = 1;  // each element in PyTorch is a byte with two of them
    uint64_t storage_unit = static_cast<uint64_t>(FindDtype(storage.dtype)->bits) / 8;

    StoredTensor tensor;
    tensor.dtype = dtype->name;
    tensor.shape = Sizes(arguments[2]);
    tensor.strides = Sizes(arguments[3]);
    if (tensor.strides.size() != tensor.shape.size()) Fail("its strides do not fit its shape");
    tensor.storage = storage.key;
    if (__builtin_mul_overflow(storage.elements, storage_unit, &tensor.storage_bytes))
      Fail("a storage of more than 2^64 bytes");
    // `end` is one past the last element, counted in elements from the storage's start.
    uint64_t elements = 1, end = static_cast<uint64_t>(pickle_[arguments[1]].number);
    uint64_t begin = end;
    bool fits = true, contiguous = true, empty = false;
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      uint64_t size = static_cast<uint64_t>(tensor.shape[i]), span;
      uint64_t stride = static_cast<uint64_t>(tensor.strides[i]);
      if (size == 0) empty = true;
      if (size > 1 && stride != elements) contiguous = false;
      if (size > 1)
        fits = fits && !__builtin_mul_overflow(size - 1, stride, &span) &&
               !__builtin_add_overflow(end, span, &end);
      fits = fits && !__builtin_mul_overflow(elements, size, &elements);
    }
    if (empty)
      elements = 0, end = begin, contiguous = true;
    else
      ++end;
    if (contiguous) tensor.strides.clear();
    fits = fits && !__builtin_mul_overflow(elements, unit, &tensor.bytes) &&
           !__builtin_mul_overflow(end, unit, &end) && end <= tensor.storage_bytes;
    if (!fits && !empty) Fail("it reaches beyond its storage");
    tensor.offset = empty ? 0 : begin * unit;
    // The header of a safetensors file counts the elements of a 4-bit type; PyTorch counts pairs.
    if (dtype->bits < 8) {
      if (!contiguous || tensor.shape.empty()) Fail("a packed 4-bit tensor with strides");
      tensor.shape.back() *= 2;
    }
    return tensor;
  }

  const Pickle& pickle_;
  const std::string& path_;
  std::string tensor_;  // the entry that is being read
};

// Changes the tensors' offsets from within the storage to within the file.
void Place(std::vector<StoredTensor>& tensors, const std::map<std::string, Range>& storages,
           const std::string& path) {
  for (StoredTensor& tensor : tensors) {
    auto range = storages.find(tensor.storage);
    if (range == storages.end())
      throw Error(path + ": " + Quote(tensor.name), "its storage is not in the file");
    if (range->second.size < tensor.storage_bytes)
      throw Error(path + ": " + Quote(tensor.name), "its storage is shorter than it should be");
    tensor.storage_offset = range->second.offset;
    tensor.offset += range->second.offset;
  }
}

// Returns the bytes of all storages that a pickle names.
uint64_t StorageBytes(const Pickle& pickle, const std::string& path) {
  std::map<std::string, uint64_t> bytes;
  const StateDictReader reader(pickle, path);
  for (const PickleNode& node : pickle.nodes) {
    if (node.kind != Kind::kPersistent) continue;
    const Storage storage = reader.StorageOf(node);
    const Dtype* dtype = FindDtype(storage.dtype);
    bytes[storage.key] = storage.elements * (dtype ? static_cast<uint64_t>(dtype->bits) / 8 : 16);
  }
  uint64_t sum = 0;
  for (const auto& [key, size] : bytes) sum += size;
  return sum;
}

// Throws Error if the file is cut off: an archive's directory is at its end. Finds the full size in
// the pickle, which torch.save writes first.
void CheckWhole(std::string_view file, const std::string& path) {
  if (file.size() < 30 || file.substr(file.size() - std::min<size_t>(file.size(), 22 + 65535))
                                  .find("PK\5\6") != std::string_view::npos)
    return;
  std::string least;
  try {
    auto length = [&](size_t at) {
      return static_cast<unsigned char>(file[at]) + 256u * static_cast<unsigned char>(file[at + 1]);
    };
    const uint64_t begin = 30 + length(26) + length(28);
    if (file.substr(30, length(26)).ends_with("/data.pkl") && begin < file.size()) {
      const Pickle pickle = ParsePickle(file.substr(begin), path, Allowed);
      least = " of more than " + std::to_string(begin + pickle.size + StorageBytes(pickle, path));
    }
  } catch (const Error&) {  // the pickle is cut off, too
  }
  throw Error(path, "is cut off: it has " + std::to_string(file.size()) +
                        (least.empty() ? " bytes, and the end of an archive is missing"
                                       : least + " bytes"));
}

// Returns the class of the pickle's root object, which comes right after the protocol's number; ""
// if the root has no class, or one of TorchScript.
std::string ClassOfRoot(std::string_view pickle) {
  if (pickle.size() < 3 || pickle[0] != '\x80') return "";
  const size_t begin = pickle[2] == '\x95' ? 11 : 2;  // after a frame
  // In the older format, the reference to a module has its class and source.
  constexpr std::string_view kModule("(X\6\0\0\0module", 12);
  if (begin >= pickle.size() || (pickle[begin] != 'c' && pickle[begin] != '\x8c' &&
                                 !pickle.substr(begin).starts_with(kModule)))
    return "";
  std::string first;
  try {
    ParsePickle(pickle, "", [&](const std::string& global) {
      if (first.empty()) first = global;
      return Allowed(global);
    });
  } catch (const Error&) {  // the class is not allowed
  }
  if (first.empty() || Allowed(first) || first.starts_with("__torch__")) return "";
  first.replace(first.find(' '), 1, ".");
  return first;
}

// Returns the pickle that torch.save wrote into a zip archive; "" if there is none.
std::string_view PickleOf(std::string_view file, const std::string& path) {
  for (const ZipEntry& entry : ReadZip(file, path, /*compressed_allowed=*/true))
    if (!entry.compressed && entry.name.ends_with("/data.pkl") &&
        entry.name.find('/') == entry.name.size() - 9)
      return file.substr(entry.offset, entry.size);
  return "";
}

// Throws Error for archives that hold a model's code besides its weights.
void RefuseModels(const std::vector<ZipEntry>& entries, const std::string& path) {
  for (const ZipEntry& entry : entries) {
    const std::string name = entry.name.substr(std::min(entry.name.find('/'), entry.name.size()));
    const bool exported = name == "/models/model.json";
    if (exported || name.starts_with("/code/"))
      throw Error(path,
                  exported ? "is a model (torch.export.save), where weights are expected"
                           : "is a model (torch.jit.save), where weights are expected",
                  "save its weights by themselves: torch.save(model.state_dict(), \"weights.pt\"); "
                  "`pipewright compile` takes the model with those that it holds");
  }
}

std::vector<StoredTensor> ReadZipFormat(std::string_view file, const std::string& path) {
  CheckWhole(file, path);
  RefuseModels(ReadZip(file, path, /*compressed_allowed=*/true), path);  // code is compressed
  std::vector<ZipEntry> entries = ReadZip(file, path);
  const std::string kRoot = "/data.pkl";
  std::string prefix;
  const ZipEntry* root = nullptr;
  for (const ZipEntry& entry : entries) {
    size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash) != kRoot) continue;
    root = &entry;
    prefix = entry.name.substr(0, slash);
  }
  if (!root) throw Error(path, "an archive without data.pkl: not what torch.save writes");
  std::map<std::string, Range> storages;
  const std::string data = prefix + "/data/";
  for (const ZipEntry& entry : entries) {
    if (entry.name.substr(0, data.size()) == data)
      storages[entry.name.substr(data.size())] = {entry.offset, entry.size};
    if (entry.name == prefix + "/byteorder" && file.substr(entry.offset, entry.size) != "little")
      throw Error(path, "its numbers are big-endian");
  }
  Pickle pickle =
      ParsePickle(file.substr(root->offset, root->size), path + ": " + root->name, Allowed);
  std::vector<StoredTensor> tensors = StateDictReader(pickle, path).Tensors();
  Place(tensors, storages, path);
  return tensors;
}

constexpr std::string_view kLegacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

// The file has pickles of a magic number, the protocol, facts about the machine, the object and the
// storages' keys, then for each key the number of elements and the elements.
std::vector<StoredTensor> ReadLegacyFormat(std::string_view file, const std::string& path) {
  size_t at = 0;
  auto next = [&] {
    Pickle pickle = ParsePickle(file.substr(at), path, Allowed);
    at += pickle.size;
    return pickle;
  };
  Pickle magic = next();
  if (magic[magic.root].text != kLegacyMagic) throw Error(path, "not what torch.save writes");
  next();
  next();
  Pickle object = next();
  Pickle keys = next();
  StateDictReader reader(object, path);
  std::vector<StoredTensor> tensors = reader.Tensors();
  std::map<std::string, uint64_t> widths;
  for (const PickleNode& node : object.nodes)
    if (node.kind == Kind::kPersistent) {
      Storage storage = reader.StorageOf(node);
      const Dtype* dtype = FindDtype(storage.dtype);
      widths[storage.key] = dtype ? static_cast<uint64_t>(dtype->bits) / 8 : 16;
    }
  const uint64_t least = at + StorageBytes(object, path);
  if (file.size() < least)
    throw Error(path, "is cut off: it has " + std::to_string(file.size()) + " of more than " +
                          std::to_string(least) + " bytes");
  std::map<std::string, Range> storages;
  for (int id : keys[keys.root].items) {
    const std::string& key = keys[id].text;
    uint64_t elements = 0, size = 0;
    if (file.size() - at < 8 || !widths.count(key)) throw Error(path, "its storages are damaged");
    for (int i = 7; i >= 0; --i)
      elements = elements << 8 | static_cast<unsigned char>(file[at + static_cast<size_t>(i)]);
    at += 8;
    if (__builtin_mul_overflow(elements, widths[key], &size) || size > file.size() - at)
      throw Error(path, "its storages go beyond the end of the file");
    storages[key] = {at, size};
    at += size;
  }
  Place(tensors, storages, path);
  return tensors;
}

}  // namespace

const char* DtypeOfStorage(const std::string& global) {
  auto type = StorageTypes().find(global);
  return type == StorageTypes().end() ? nullptr : type->second;
}

bool IsTorchFile(std::string_view file) {
  return IsZip(file) || (file.size() > 14 && file[0] == '\x80' && file.substr(2, 2) == "\x8a\x0a" &&
                         file.substr(4, 10) == kLegacyMagic);
}

std::string PickledClass(std::string_view file, const std::string& path) try {
  if (!IsTorchFile(file)) return "";
  if (IsZip(file)) return ClassOfRoot(PickleOf(file, path));
  size_t at = 0;
  for (int part = 0; part < 3; ++part)  // magic number, protocol, facts about the machine
    at += ParsePickle(file.substr(at), path, Allowed).size;
  return ClassOfRoot(file.substr(at));
} catch (const Error&) {  // damaged
  return "";
}

std::vector<StoredTensor> ReadTorchFile(std::string_view file, const std::string& path) {
  if (const std::string name = PickledClass(file, path); !name.empty())
    throw Error(path,
                "is a pickled object of the class " + name +
                    ", as torch.save(model) writes it, where weights are expected",
                "in Python: torch.save(model.state_dict(), \"weights.pt\")");
  return IsZip(file) ? ReadZipFormat(file, path) : ReadLegacyFormat(file, path);
}

}  // namespace pipewright
