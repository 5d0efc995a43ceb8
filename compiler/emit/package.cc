#include "compiler/emit/package.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "compiler/emit/module_code.h"
#include "compiler/import/archive.h"
#include "plan/conf.h"
#include "plan/dtype.h"
#include "plan/error.h"
#include "plan/safetensors.h"
#include "plan/text.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kPiece = 1 << 20;

// Hands a contiguous weight from the archive to the sink piece by piece; another one, copied.
void Produce(const FileReader& file, const Weight& weight, const ByteSink& sink) {
  uint64_t size = c10::elementSize(weight.dtype);
  uint64_t bytes = size;
  for (int64_t n : weight.shape) bytes *= static_cast<uint64_t>(n);
  if (bytes == 0) return;
  bool contiguous = true;
  int64_t expected = 1;
  for (size_t d = weight.shape.size(); d-- > 0;) {
    contiguous = contiguous && (weight.shape[d] == 1 || weight.strides[d] == expected);
    expected *= weight.shape[d];
  }
  if (contiguous) {
    uint64_t at = weight.file_offset + static_cast<uint64_t>(weight.storage_offset) * size;
    std::string buffer(std::min(kPiece, bytes), '\0');
    while (bytes) {
      uint64_t n = std::min<uint64_t>(bytes, buffer.size());
      file.Read(at, buffer.data(), n);
      sink(std::string_view(buffer.data(), n));
      at += n, bytes -= n;
    }
    return;
  }
  std::string storage(weight.file_bytes, '\0');
  file.Read(weight.file_offset, storage.data(), storage.size());
  at::Tensor view =
      at::from_blob(storage.data() + static_cast<uint64_t>(weight.storage_offset) * size,
                    weight.shape, weight.strides, at::TensorOptions().dtype(weight.dtype));
  at::Tensor dense = view.contiguous();
  sink(std::string_view(static_cast<const char*>(dense.data_ptr()), bytes));
}

void WriteWeights(const Model& model, const ModuleBody& body, const FileReader& file,
                  const std::string& path) {
  std::vector<TensorToWrite> tensors;
  for (const auto& [index, name] : body.weights) {
    const Weight& weight = model.weights[index];
    TensorToWrite tensor;
    tensor.name = name;
    tensor.shape = weight.shape;
    const Dtype* dtype = FindDtype(DtypeText(weight.dtype));
    if (!dtype)
      throw Error("weight \"" + name + "\"",
                  DtypeText(weight.dtype) + " cannot be written to safetensors");
    tensor.dtype = dtype->name;
    tensor.produce = [&file, &weight](const ByteSink& sink) { Produce(file, weight, sink); };
    tensors.push_back(std::move(tensor));
  }
  WriteSafetensors(path, std::move(tensors));
}

void WriteConfs(const std::string& folder, int modules, int ranks) {
  fs::create_directories(folder);
  const std::string mp = WriteConf(GroupModules(modules, ranks));
  WriteFile(folder + "/mp_conf.json", mp);
  WriteFile(folder + "/hybrid_conf.json", mp);  // until a profile decides otherwise
  Conf dp;
  dp.module_to_stage.assign(static_cast<size_t>(modules), 0);
  dp.stage_to_ranks.emplace_back();
  for (int r = 0; r < ranks; ++r) dp.stage_to_ranks[0].push_back(r);
  WriteFile(folder + "/dp_conf.json", WriteConf(dp));
}

// Whether a folder is one of ours: what makes it safe to replace.
bool IsPackage(const fs::path& folder) {
  return fs::is_directory(folder) && fs::is_regular_file(folder / "manifest.json") &&
         fs::is_directory(folder / "modules");
}

}  // namespace

Manifest WritePackage(const Model& model, const std::vector<ModuleBody>& bodies,
                      const PackageOptions& options) {
  fs::path output = fs::path(options.output).lexically_normal();
  if (!output.has_filename()) output = output.parent_path();
  bool empty = fs::is_directory(output) && fs::is_empty(output);
  if (fs::exists(fs::symlink_status(output)) && !empty && !IsPackage(output))
    throw Error(options.output, "exists and is not a package",
                "choose another output, or remove it yourself");
  Manifest manifest = MakeManifest(model, bodies);
  int modules = static_cast<int>(bodies.size());
  // Made first: more ranks than modules are refused before anything is written.
  int ranks = options.ranks > 0 ? options.ranks : modules;
  GroupModules(modules, ranks);
  std::string temporary = output.string() + ".tmp" + std::to_string(getpid());
  try {
    fs::create_directories(temporary + "/modules");
    fs::create_directories(temporary + "/weights");
    FileReader file(model.file);
    for (size_t m = 0; m < bodies.size(); ++m) {
      ModuleInfo& info = manifest.modules[m];
      const std::string code = ModuleCode(model, bodies[m], static_cast<int>(m));
      info.code_hash = HexHash(code);
      WriteFile(temporary + "/" + info.code, code);
      WriteWeights(model, bodies[m], file, temporary + "/" + info.weights);
    }
    WriteConfs(temporary + "/conf", modules, ranks);
    WriteFile(temporary + "/manifest.json", WriteManifest(manifest));
    std::string old = temporary + ".old";
    bool replace = fs::exists(output);
    if (replace) fs::rename(output, old);
    fs::rename(temporary, output);
    if (replace) fs::remove_all(old);
  } catch (const fs::filesystem_error& e) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw Error(options.output, std::string("cannot be written: ") + e.code().message());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return manifest;
}

}  // namespace pipewright
