#include "formats/profile/profile.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace pipewright {

static const char kFormat[] = "pipewright_profile";

static Json ToJson(const ProfileTime& timing) {
  return {{"median", timing.median}, {"spread", timing.spread}};
}

std::string WriteProfile(const Profile& profile) {
  Json json = {{kFormat, 1},
               {"package", profile.package},
               {"microbatch", profile.microbatch},
               {"repeat", profile.repeat},
               {"threads", profile.threads},
               {"fine", profile.fine}};
  for (const char* list : {"nodes", "values", "shared", "links"}) json[list] = Json::array();
  for (const ProfileNode& node : profile.nodes)
    json["nodes"].push_back({{"name", node.name},
                             {"description", node.description},
                             {"module", node.module},
                             {"rank", node.rank},
                             {"forward", ToJson(node.forward)},
                             {"backward", ToJson(node.backward)},
                             {"input_gradient", ToJson(node.input_gradient)},
                             {"weight_gradient", ToJson(node.weight_gradient)},
                             {"kept_bytes", node.kept},
                             {"kept_for_weight_bytes", node.kept_for_weight},
                             {"held_inputs", node.held},
                             {"held_inputs_for_weight", node.held_for_weight},
                             {"peak_bytes", node.peak},
                             {"forward_only_peak_bytes", node.forward_only_peak},
                             {"parameter_bytes", node.parameters},
                             {"trained_bytes", node.trained},
                             {"buffer_bytes", node.buffers},
                             {"weights", node.weights}});
  for (size_t i = 0; i < profile.nodes.size(); ++i)
    if (!profile.nodes[i].body.empty()) json["nodes"][i]["body"] = profile.nodes[i].body;
  for (const ProfileValue& value : profile.values)
    json["values"].push_back({{"name", value.name},
                              {"producer", value.producer},
                              {"consumers", value.consumers},
                              {"bytes", value.bytes},
                              {"gradient", value.gradient},
                              {"kept", value.kept}});
  for (const ProfileShared& shared : profile.shared)
    json["shared"].push_back({{"nodes", shared.nodes}, {"bytes", shared.bytes}});
  for (const ProfileLink& link : profile.links)
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"latency", link.latency},
                             {"bytes_per_second", link.bytes_per_second},
                             {"spread", link.spread}});
  json["hash"] = HexHash(json.dump());
  return FormatJson(json);
}

bool IsProfileAsWritten(const std::string& text) {
  Json json = ParseJson(text, "");
  if (!IsProfile(json)) return false;
  if (!json.contains("hash")) return true;  // earlier versions wrote none
  const Json hash = json["hash"];
  json.erase("hash");
  return hash == HexHash(json.dump());
}

bool IsProfile(const Json& json) { return json.is_object() && json.contains(kFormat); }

namespace {

// An object of the document, with its position.
class Object {
 public:
  Object(const std::string& text, const std::string& path, const Json& json,
         std::vector<std::string> at)
      : text_(text), path_(path), json_(json), at_(std::move(at)) {
    if (!json.is_object()) Fail("", "an object is expected");
  }
  [[noreturn]] void Fail(const std::string& key, const std::string& what) const {
    std::vector<std::string> at = at_;
    if (!key.empty()) at.push_back(key);
    throw Error(path_ + ":" + JsonPosition(text_, at), what,
                "`pipewright profile --json` writes this file");
  }
  const Json& At(const char* key) const {
    auto found = json_.find(key);
    if (found == json_.end()) Fail("", std::string("\"") + key + "\" is missing");
    return *found;
  }
  bool Has(const char* key) const { return json_.contains(key); }
  std::string Text(const char* key) const {
    if (!At(key).is_string()) Fail(key, "a string is expected");
    return At(key).get<std::string>();
  }
  bool Flag(const char* key) const {
    if (!At(key).is_boolean()) Fail(key, "true or false is expected");
    return At(key).get<bool>();
  }
  double Number(const char* key) const {
    const Json& value = At(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0)
      Fail(key, "a number of at least 0 is expected, not " + value.dump());
    return value.get<double>();
  }
  int Integer(const char* key, int least, int below) const {
    return Integer(At(key), key, least, below);
  }
  std::vector<int> Integers(const char* key, int below) const {
    if (!At(key).is_array()) Fail(key, "a list is expected");
    std::vector<int> numbers;
    for (const Json& value : At(key)) numbers.push_back(Integer(value, key, 0, below));
    if (std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) != numbers.end())
      Fail(key, "ascending numbers are expected");
    return numbers;
  }
  std::vector<std::string> Texts(const char* key) const {
    std::vector<std::string> texts;
    if (!At(key).is_array()) Fail(key, "a list is expected");
    for (const Json& value : At(key)) {
      if (!value.is_string()) Fail(key, "strings are expected");
      texts.push_back(value.get<std::string>());
    }
    return texts;
  }
  Object Inner(const char* key) const {
    std::vector<std::string> at = at_;
    at.push_back(key);
    return Object(text_, path_, At(key), at);
  }
  std::vector<Object> List(const char* key) const {
    if (!At(key).is_array()) Fail(key, "a list is expected");
    std::vector<Object> objects;
    for (size_t i = 0; i < At(key).size(); ++i) {
      std::vector<std::string> at = at_;
      at.insert(at.end(), {key, std::to_string(i)});
      objects.emplace_back(text_, path_, At(key)[i], at);
    }
    return objects;
  }

 private:
  int Integer(const Json& value, const char* key, int least, int below) const {
    if (!value.is_number_integer() || value.get<double>() < least || value.get<double>() >= below)
      Fail(key, "a whole number from " + std::to_string(least) + " to " +
                    std::to_string(below - 1) + " is expected, not " + value.dump());
    return value.get<int>();
  }

  const std::string& text_;
  const std::string& path_;
  const Json& json_;
  std::vector<std::string> at_;
};

ProfileTime ReadTime(const Object& object) {
  return {object.Number("median"), object.Number("spread")};
}

ProfileNode ReadNode(const Object& object) {
  ProfileNode node;
  node.name = object.Text("name");
  node.description = object.Text("description");
  node.module = object.Integer("module", 0, 1 << 30);
  node.rank = object.Integer("rank", 0, 1 << 30);
  node.forward = ReadTime(object.Inner("forward"));
  node.backward = ReadTime(object.Inner("backward"));
  node.input_gradient = ReadTime(object.Inner("input_gradient"));
  node.weight_gradient = ReadTime(object.Inner("weight_gradient"));
  node.kept = object.Number("kept_bytes");
  node.kept_for_weight = object.Number("kept_for_weight_bytes");
  node.peak = object.Number("peak_bytes");
  if (object.Has("forward_only_peak_bytes"))
    node.forward_only_peak = object.Number("forward_only_peak_bytes");
  node.parameters = object.Number("parameter_bytes");
  node.trained = object.Number("trained_bytes");
  node.buffers = object.Number("buffer_bytes");
  node.weights = object.Texts("weights");
  if (object.Has("body")) node.body = object.Text("body");
  return node;
}

}  // namespace

Profile ParseProfile(const std::string& text, const std::string& path) {
  Json json = ParseJson(text, path);
  Object root(text, path, json, {});
  root.Integer(kFormat, 1, 2);
  Profile profile;
  profile.package = root.Text("package");
  profile.microbatch = root.Integer("microbatch", 0, 1 << 30);
  profile.repeat = root.Integer("repeat", 0, 1 << 30);
  profile.threads = root.Integer("threads", 0, 1 << 20);
  profile.fine = root.Flag("fine");
  for (const Object& entry : root.List("nodes")) profile.nodes.push_back(ReadNode(entry));
  int nodes = static_cast<int>(profile.nodes.size());
  if (nodes == 0) root.Fail("nodes", "a profile has at least one node");
  for (const Object& entry : root.List("values")) {
    ProfileValue value;
    value.name = entry.Text("name");
    value.producer = entry.Integer("producer", -1, nodes);
    value.consumers = entry.Integers("consumers", nodes);
    value.bytes = entry.Number("bytes");
    value.gradient = entry.Flag("gradient");
    if (entry.Has("kept")) value.kept = entry.Flag("kept");
    if (!value.consumers.empty() && value.consumers[0] <= value.producer)
      entry.Fail("consumers", "a value is used by nodes after the one that makes it");
    profile.values.push_back(value);
  }
  const int values = static_cast<int>(profile.values.size());
  const std::vector<Object> entries = root.List("nodes");
  for (size_t i = 0; i < entries.size(); ++i) {
    ProfileNode& node = profile.nodes[i];
    if (entries[i].Has("held_inputs")) node.held = entries[i].Integers("held_inputs", values);
    if (entries[i].Has("held_inputs_for_weight"))
      node.held_for_weight = entries[i].Integers("held_inputs_for_weight", values);
  }
  for (const Object& entry : root.List("shared"))
    profile.shared.push_back({entry.Integers("nodes", nodes), entry.Number("bytes")});
  for (const Object& entry : root.List("links")) {
    ProfileLink link{entry.Integer("from", 0, 1 << 30), entry.Integer("to", 0, 1 << 30),
                     entry.Number("latency"), entry.Number("bytes_per_second")};
    if (entry.Has("spread")) link.spread = entry.Number("spread");
    if (!(link.bytes_per_second > 0)) entry.Fail("bytes_per_second", "above 0 is expected");
    profile.links.push_back(link);
  }
  return profile;
}

std::vector<std::pair<int, int>> ModuleEdges(const Manifest& manifest) {
  std::vector<std::pair<int, int>> edges;
  for (const ValueInfo& value : manifest.values)
    for (int consumer : value.consumers)
      if (value.producer >= 0) edges.push_back({value.producer, consumer});
  return edges;
}

void CheckProfile(const Profile& profile, const Manifest& manifest, const std::string& path) {
  std::vector<char> seen(manifest.modules.size(), 0);
  std::string wrong;
  for (const ProfileNode& node : profile.nodes) {
    if (node.module >= static_cast<int>(manifest.modules.size()))
      wrong = node.name + " is of module " + std::to_string(node.module);
    else
      seen[node.module] = 1;
  }
  size_t missing = static_cast<size_t>(std::find(seen.begin(), seen.end(), 0) - seen.begin());
  if (missing < seen.size()) wrong = "it has no node of " + manifest.modules[missing].name;
  if (!wrong.empty())
    throw Error(path,
                "is not of this package, which has " + std::to_string(manifest.modules.size()) +
                    " modules: " + wrong,
                "profile the package again");
}

}  // namespace pipewright
