#include "compiler/emit/package.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "compiler/emit/module_code.h"
#include "compiler/emit/samples.h"
#include "compiler/emit/weight_file.h"
#include "formats/conf.h"
#include "formats/package/edited_lines.h"
#include "formats/package/package_confs.h"
#include "formats/package/package_files.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

// Returns true if the folder looks like a package, which may be replaced.
bool IsPackage(const fs::path& folder) {
  return fs::is_directory(folder) && fs::is_regular_file(folder / "manifest.json") &&
         fs::is_directory(folder / "modules");
}

// Returns true if the manifest says that it is pipewright's: other projects have a manifest.json
// and modules, too.
bool SaysSo(const fs::path& folder) {
  try {
    const Json manifest = ReadJson((folder / "manifest.json").string());
    return manifest.is_object() && manifest.contains("format") &&
           manifest["format"] == "pipewright package";
  } catch (const Error&) {
    return false;
  }
}

// Returns a file of the package that was edited or added since it was compiled, or "" if there is
// none. Checks only the names of weight files, not their content.
std::string EditedFile(const fs::path& folder) {
  // Includes the files that `profile` leaves there.
  std::set<std::string> known = {"manifest.json", "samples.safetensors", "profile.txt",
                                 "profile.json"};
  try {
    const Manifest manifest = ReadManifest(folder.string());
    for (const ModuleInfo& module : manifest.modules) {
      if (IsEdited(folder.string(), module)) return module.code;
      known.insert({module.code, module.weights});
    }
    const int modules = static_cast<int>(manifest.modules.size());
    const std::string conf = (folder / "conf/").string();
    const Conf dp = ReadConf(conf + "dp_conf.json");
    const int ranks = static_cast<int>(dp.stage_to_ranks.at(0).size());
    for (const auto& [name, text] : PackageConfs(modules, ranks)) {
      if (ReadFile(conf + name) != text) return "conf/" + name;
      known.insert("conf/" + name);
    }
  } catch (const Error& e) {  // an edit may have broken it
    return e.what();
  }
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(file.path(), folder).generic_string();
    // What `tune` keeps there stays when the package is replaced.
    if (!file.is_directory() && !known.count(name) && !name.starts_with("tuned/")) return name;
  }
  return "";
}

// Keeps samples that somebody added to the old package, for a model whose file has none.
void KeepSamples(const fs::path& old, const std::string& temporary, const Manifest& manifest) {
  const fs::path samples = "samples.safetensors";
  if (fs::exists(temporary / samples) || !fs::exists(old / samples)) return;
  try {
    auto inputs = [](const Manifest& of) {
      std::vector<std::string> names;
      for (int id : of.inputs) names.push_back(of.values[id].name);
      return names;
    };
    if (inputs(ReadManifest(old.string())) != inputs(manifest)) return;
  } catch (const Error&) {  // written by another version, or edited
    return;
  }
  std::error_code error;
  if (!fs::copy_file(old / samples, temporary / samples, error))
    throw Error((old / samples).string(), "cannot be kept: " + error.message(),
                "remove it, or move it away");
}

// Keeps the profile of `old` if it still holds for the package that replaces it, because only the
// values of weights differ. Samples of other sizes make a file of another size.
void KeepProfile(const fs::path& old, const std::string& temporary, Manifest manifest) {
  try {
    Manifest before = ReadManifest(old.string());
    for (Manifest* either : {&before, &manifest})  // earlier versions did not write line hashes
      for (ModuleInfo& module : either->modules) module.line_hashes.clear();
    if (WriteManifest(before) != WriteManifest(manifest)) return;
  } catch (const Error&) {  // written by another version, or edited
    return;
  }
  const char* samples = "samples.safetensors";
  std::error_code none;
  if (fs::file_size(old / samples, none) != fs::file_size(temporary / fs::path(samples), none))
    return;
  for (const char* name : {"profile.txt", "profile.json"})
    if (fs::is_regular_file(old / name, none))
      fs::copy_file(old / name, fs::path(temporary) / name, none);
}

// Keeps what `tune` found. Each result names the code that it holds for.
void KeepTuned(const fs::path& old, const std::string& temporary) {
  if (fs::is_directory(old / "tuned"))
    fs::copy(old / "tuned", fs::path(temporary) / "tuned", fs::copy_options::recursive);
}

// Returns the output without a trailing slash.
fs::path OutputOf(const PackageOptions& options) {
  fs::path output = fs::path(options.output).lexically_normal();
  return output.has_filename() ? output : output.parent_path();
}

// Returns the absolute path with links resolved; it need not exist.
fs::path Whole(const fs::path& path) {
  std::error_code none;
  return fs::weakly_canonical(fs::absolute(path, none), none);
}

// Returns true if `path`, with links resolved, is `folder` or lies in it.
bool LiesIn(const fs::path& path, const fs::path& folder) {
  const fs::path whole = Whole(path), of = Whole(folder);
  return !of.empty() && std::mismatch(of.begin(), of.end(), whole.begin(), whole.end()).first ==
                            of.end();
}

// Throws Error if the output would replace an input, or lies in a package that is itself replaced
// as a whole.
void CheckPlace(const fs::path& output, const std::vector<std::string>& read) {
  std::error_code none;
  const bool folder = fs::is_directory(output, none);
  for (const std::string& file : read)
    if ((!folder || IsPackage(output)) && !file.empty() && LiesIn(file, output))
      throw Error(
          output.string(),
          folder ? "contains the input " + file + ", which would be deleted" : "is the input",
          "choose another output");
  fs::path above = Whole(output);
  while (above.has_relative_path()) {
    above = above.parent_path();
    if (IsPackage(above) && SaysSo(above))
      throw Error(output.string(), "lies in the package " + above.string(),
                  "choose an output beside it: a package is replaced as a whole");
  }
}

}  // namespace

void CheckReplaceable(const PackageOptions& options, const std::vector<std::string>& read) {
  if (options.output.empty()) throw Error("output", "its name is empty", "name a folder");
  const fs::path output = OutputOf(options);
  CheckPlace(output, read);
  bool empty = fs::is_directory(output) && fs::is_empty(output);
  if (fs::exists(fs::symlink_status(output)) && !empty && !IsPackage(output))
    throw Error(options.output, "exists and is not a package",
                "choose another output, or remove it yourself");
  if (!options.force && IsPackage(output))
    if (const std::string edited = EditedFile(output); !edited.empty())
      throw Error(options.output, "holds what somebody edited or added: " + edited,
                  "choose another output, or replace it all with --force");
}

Manifest WritePackage(const Model& model, const std::vector<ModuleBody>& bodies,
                      const PackageOptions& options) {
  CheckReplaceable(options, {model.file});
  const fs::path output = OutputOf(options);
  Manifest manifest = MakeManifest(model, bodies);
  int modules = static_cast<int>(bodies.size());
  // Throws Error for more ranks than modules before anything is written.
  int ranks = options.ranks > 0 ? options.ranks : modules;
  GroupModules(modules, ranks);
  std::string temporary = output.string() + ".tmp" + std::to_string(getpid());
  try {
    fs::create_directories(temporary + "/modules");
    fs::create_directories(temporary + "/weights");
    WeightReader weights(model);
    for (size_t m = 0; m < bodies.size(); ++m) {
      ModuleInfo& info = manifest.modules[m];
      const std::string code = ModuleCode(model, bodies[m], static_cast<int>(m));
      info.code_hash = HexHash(code);
      info.line_hashes = LineHashes(code);
      WriteFile(temporary + "/" + info.code, code);
      WriteWeights(model, bodies[m], weights, temporary + "/" + info.weights);
    }
    fs::create_directories(temporary + "/conf");
    for (const auto& [name, text] : PackageConfs(modules, ranks))
      WriteFile(temporary + "/conf/" + name, text);
    WriteSamples(model, manifest, temporary + "/samples.safetensors");
    WriteFile(temporary + "/manifest.json", WriteManifest(manifest));
    std::string old = temporary + ".old";
    bool replace = fs::exists(output);
    if (replace && IsPackage(output)) {
      KeepSamples(output, temporary, manifest);
      KeepProfile(output, temporary, manifest);
      KeepTuned(output, temporary);
    }
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
