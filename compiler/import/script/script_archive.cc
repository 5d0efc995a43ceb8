#include "compiler/import/script/script_archive.h"

#include <caffe2/serialize/versions.h>
#include <torch/csrc/jit/operator_upgraders/upgraders_entry.h>
#include <torch/csrc/jit/serialization/import_source.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "compiler/import/script/script_source.h"
#include "formats/torch/pickle.h"
#include "ops/random_ops.h"

namespace pipewright {
namespace {

constexpr uint64_t kLargestCode = 256u << 20;    // bytes of all records
constexpr uint64_t kLargestPickle = 256u << 20;  // bytes
constexpr const char* kCure = "save the model again with torch.jit.save";

class Opener {
 public:
  explicit Opener(const Archive& archive) : archive_(archive) {}

  ScriptArchive Open() {
    CurrentRandomKey();  // registers the markers that the code may call
    torch::jit::populate_upgraders_graph_map();
    out_.file = std::make_unique<MappedFile>(archive_.path());
    out_.unit = std::make_shared<torch::jit::CompilationUnit>();
    importer_ = std::make_unique<torch::jit::SourceImporter>(
        out_.unit, &out_.constants,
        [this](const std::string& qualifier) { return Source(qualifier); }, archive_.Version());
    at::IValue constants = Unpickle("constants");
    if (!constants.isTuple()) throw Error(archive_.path(), "constants.pkl is not a tuple", kCure);
    for (const at::IValue& constant : constants.toTupleRef().elements())
      out_.constants.push_back(constant);
    at::IValue data = Unpickle("data");
    if (!data.isObject()) throw Error(archive_.path(), "data.pkl holds no module", kCure);
    out_.module = torch::jit::Module(data.toObject());
    return std::move(out_);
  }

 private:
  std::shared_ptr<torch::jit::Source> Source(const std::string& qualifier) {
    std::string record = "code/" + qualifier + ".py";
    std::replace(record.begin() + 5, record.end() - 3, '.', '/');
    if (!archive_.Has(record)) return nullptr;
    code_bytes_ += archive_.Size(record);
    if (code_bytes_ > kLargestCode)
      throw Error(archive_.path() + ": " + record, "the code is larger than 256 MiB");
    std::string text = archive_.Read(record);
    CheckNesting(text, archive_.path() + ": " + record);
    std::shared_ptr<torch::jit::SourceRangeUnpickler> ranges;
    if (archive_.Has(record + ".debug_pkl") &&
        archive_.Size(record + ".debug_pkl") <= kLargestPickle)
      ranges = MakeModelLines(archive_.Read(record + ".debug_pkl"));
    return std::make_shared<torch::jit::Source>(std::move(text), record, 1, ranges);
  }

  at::IValue Unpickle(const std::string& name) {
    const std::string record = name + ".pkl", where = archive_.path() + ": " + record;
    if (archive_.Size(record) > kLargestPickle) throw Error(where, "is larger than 256 MiB");
    const std::string bytes = archive_.Read(record);
    ParsePickle(bytes, where, [](const std::string&) { return true; });
    size_t at = 0;
    auto read = [&](char* buffer, size_t size) {
      size = std::min(size, bytes.size() - at);
      std::memcpy(buffer, bytes.data() + at, size);
      at += size;
      return size;
    };
    auto resolve = [&](const c10::QualifiedName& type) {
      return c10::StrongTypePtr(out_.unit, importer_->loadType(type));
    };
    auto load = [&](const at::StrongTypePtr& type, at::IValue state) {
      auto shape = type.type_->expect<c10::ClassType>();
      if (shape->findMethod("__setstate__") || !state.isGenericDict())
        throw Error(where,
                    "holds a " + shape->name()->qualifiedName() +
                        ", which restores itself by code of its own",
                    "quantized and packed weights are not supported: save the float model");
      auto object = c10::ivalue::Object::create(type, shape->numAttributes());
      auto values = state.toGenericDict();
      for (size_t i = 0; i < shape->numAttributes(); ++i) {
        auto found = values.find(shape->getAttributeName(i));
        if (found == values.end())
          throw Error(where, "lacks the attribute \"" + shape->getAttributeName(i) + "\"", kCure);
        object->setSlot(i, found->value());
      }
      return object;
    };
    auto storage = [&](const std::string& key) {
      const std::string payload = name + "/" + key;
      if (!archive_.Has(payload)) throw Error(where, "has no record " + payload, kCure);
      return at::DataPtr(out_.file->data() + archive_.Offset(payload), c10::Device(c10::kCPU));
    };
    torch::jit::Unpickler unpickler(read, resolve, load, storage, c10::Device(c10::kCPU));
    unpickler.set_version(archive_.Version());
    try {
      return unpickler.parse_ivalue();
    } catch (const Error&) {
      throw;
    } catch (const c10::Error& e) {
      throw Error(where, std::string("cannot be read: ") + e.what_without_backtrace(), kCure);
    } catch (const std::exception& e) {
      throw Error(where, std::string("cannot be read: ") + e.what(), kCure);
    }
  }

  const Archive& archive_;
  ScriptArchive out_;
  std::unique_ptr<torch::jit::SourceImporter> importer_;
  uint64_t code_bytes_ = 0;
};

}  // namespace

ScriptArchive OpenScript(const Archive& archive) {
  if (!archive.Has("constants.pkl"))
    throw Error(archive.path(), "was written by a PyTorch before 1.4", kCure);
  constexpr uint64_t kOldest = caffe2::serialize::kMinSupportedFileFormatVersion,
                     kNewest = caffe2::serialize::kMaxSupportedFileFormatVersion;
  if (const uint64_t version = archive.Version(); version < kOldest || version > kNewest)
    throw Error(archive.path(),
                "has format version " + std::to_string(version) + "; this LibTorch reads " +
                    std::to_string(kOldest) + " to " + std::to_string(kNewest),
                "save the model with the PyTorch of this LibTorch's version");
  return Opener(archive).Open();
}

uint64_t StorageOffset(const ScriptArchive& archive, const at::Tensor& tensor,
                       const std::string& name) {
  const std::string where = archive.file->path() + ": weight \"" + name + "\"";
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error(where, "is not a dense tensor", "store it dense, and not quantized");
  if (tensor.numel() == 0) return 0;
  uint64_t last = static_cast<uint64_t>(tensor.storage_offset());
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    uint64_t extent = 0;
    if (tensor.storage_offset() < 0 || tensor.size(d) < 0 || tensor.stride(d) < 0 ||
        __builtin_mul_overflow(static_cast<uint64_t>(tensor.size(d) - 1),
                               static_cast<uint64_t>(tensor.stride(d)), &extent) ||
        __builtin_add_overflow(last, extent, &last))
      throw Error(where, "has impossible sizes", kCure);
  }
  std::string_view bytes = archive.file->bytes();
  const char* begin = static_cast<const char*>(tensor.storage().data());
  uint64_t left = begin >= bytes.data() && begin <= bytes.data() + bytes.size()
                      ? static_cast<uint64_t>(bytes.data() + bytes.size() - begin)
                      : 0;
  if (last >= std::min<uint64_t>(left, tensor.storage().nbytes()) / tensor.element_size())
    throw Error(where, "is longer than its record", "the file is damaged: copy or save it again");
  return static_cast<uint64_t>(begin - bytes.data());
}

}  // namespace pipewright
