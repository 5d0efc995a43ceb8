#include "formats/graph_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

static const std::string_view kSeparator = " -- ";

double GraphNode::OutputBytes() const {
  return std::accumulate(output_bytes.begin(), output_bytes.end(), 0.0);
}

Description ModelGraph::DescriptionOf(int node, const std::string& path) const {
  Description description{nodes[node].description, path, nodes[node].id};
  if (!places.empty()) std::tie(description.line, description.column) = places[node];
  return description;
}

namespace {

// A line being read. Its parts are views into it, so that their columns are known.
struct Line {
  std::string_view text;
  int number;
  const std::string& path;

  [[noreturn]] void Fail(std::string_view at, const std::string& what,
                         const std::string& cure = "") const {
    throw Error(
        path + ":" + std::to_string(number) + ":" + std::to_string(at.data() - text.data() + 1),
        what, cure);
  }
};

}  // namespace

static std::string_view Strip(std::string_view text) {
  const char* space = " \t\r\n\v\f";
  size_t begin = text.find_first_not_of(space);
  if (begin == std::string_view::npos) return text.substr(text.size());
  return text.substr(begin, text.find_last_not_of(space) + 1 - begin);
}

static double ReadNumber(const Line& line, std::string_view text, const char* key) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    line.Fail(text, std::string("a number is expected for ") + key + ", not \"" +
                        std::string(text) + "\"");
  if (value < 0) line.Fail(text, std::string(key) + " is negative");
  return value;
}

// Takes "KEY=VALUE" and the ", " after it off the front of `rest`; returns the value.
static std::string_view TakeField(const Line& line, std::string_view& rest, const std::string& key,
                                  bool last) {
  if (rest.substr(0, key.size() + 1) != key + "=")
    line.Fail(rest, key + "= is expected here",
              "a node reads: ID -- DESCRIPTION -- forward_compute_time=MS, "
              "backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES");
  rest.remove_prefix(key.size() + 1);
  size_t comma = last ? std::string_view::npos : rest.find(", ");
  std::string_view value = rest.substr(0, comma);
  if (!last && comma == std::string_view::npos)
    line.Fail(rest.substr(rest.size()), "the line ends after " + key);
  rest.remove_prefix(last ? rest.size() : comma + 2);
  return value;
}

static void ReadSizes(const Line& line, std::string_view value, GraphNode& node) {
  if (value.empty() || value[0] != '[') {
    node.output_bytes = {ReadNumber(line, value, "activation_size")};
    return;
  }
  node.is_list = true;
  if (value.back() != ']') line.Fail(value, "a list of sizes has no closing ]");
  std::string_view rest = value.substr(1, value.size() - 2);
  while (true) {
    size_t end = rest.find(';');
    node.output_bytes.push_back(ReadNumber(line, Strip(rest.substr(0, end)), "activation_size"));
    if (end == std::string_view::npos) return;
    rest.remove_prefix(end + 1);
  }
}

static GraphNode ReadNode(const Line& line, std::string_view text) {
  GraphNode node;
  size_t end = text.find(kSeparator);
  if (end == std::string_view::npos || end == 0)
    line.Fail(text, "a node (ID -- DESCRIPTION -- ...) or an edge (TAB FROM -- TO) is expected");
  if (text[0] == ' ')
    line.Fail(text, "a line that begins with a space is neither a node nor an edge",
              "an edge begins with a tab");
  node.id = text.substr(0, end);
  std::string_view rest = text.substr(end + kSeparator.size());
  // A description may contain the separator, so the numbers are searched for from the end.
  size_t numbers = rest.rfind(" -- forward_compute_time=");
  if (numbers == std::string_view::npos) {
    end = rest.find(kSeparator);
    line.Fail(rest.substr(end == std::string_view::npos ? rest.size() : end + kSeparator.size()),
              "forward_compute_time= is expected here");
  }
  node.description = rest.substr(0, numbers);
  rest.remove_prefix(numbers + kSeparator.size());
  size_t stage = rest.find(kSeparator);
  std::string_view fields = rest.substr(0, stage);
  std::string_view value = TakeField(line, fields, "forward_compute_time", false);
  node.forward_ms = ReadNumber(line, value, "forward_compute_time");
  value = TakeField(line, fields, "backward_compute_time", false);
  node.backward_ms = ReadNumber(line, value, "backward_compute_time");
  ReadSizes(line, TakeField(line, fields, "activation_size", false), node);
  value = TakeField(line, fields, "parameter_size", true);
  node.parameter_bytes = ReadNumber(line, value, "parameter_size");
  if (stage == std::string_view::npos) return node;
  rest.remove_prefix(stage + kSeparator.size());
  value = TakeField(line, rest, "stage_id", true);
  auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), node.stage);
  if (error != std::errc() || stop != value.data() + value.size() || node.stage < 0)
    line.Fail(value, "a stage (0, 1, 2, ...) is expected, not \"" + std::string(value) + "\"");
  return node;
}

// Returns true if each node's incoming edges are adjacent: only then are they in argument order.
static bool GroupedByDestination(const ModelGraph& graph) {
  std::vector<char> closed(graph.nodes.size(), 0);
  int current = -1;
  for (auto [from, to] : graph.edges) {
    if (to == current) continue;
    if (current >= 0) closed[current] = 1;
    if (closed[to]) return false;
    current = to;
  }
  return true;
}

// Returns the position of the first edge that closes a cycle with those before it.
static size_t CycleEdge(const ModelGraph& graph) {
  size_t acyclic = 0, cyclic = graph.edges.size();
  while (acyclic + 1 < cyclic) {
    size_t middle = (acyclic + cyclic) / 2;
    std::vector<std::pair<int, int>> some(graph.edges.begin(), graph.edges.begin() + middle);
    bool cycle = TopologicalOrder(static_cast<int>(graph.nodes.size()), some).empty();
    (cycle ? cyclic : acyclic) = middle;
  }
  return cyclic - 1;
}

ModelGraph ReadGraphText(std::string_view text, const std::string& path) {
  ModelGraph graph;
  std::unordered_map<std::string_view, int> ids;
  std::vector<int> edge_lines;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    Line line{text.substr(begin, end - begin), ++number, path};
    begin = end + 1;
    std::string_view body = Strip(line.text);
    if (body.empty()) continue;
    if (line.text[0] != '\t') {
      graph.nodes.push_back(ReadNode(line, body));
      std::string_view id = body.substr(0, graph.nodes.back().id.size());
      const char* description = id.data() + id.size() + kSeparator.size();
      graph.places.push_back({number, static_cast<int>(description - line.text.data()) + 1});
      if (!ids.emplace(id, static_cast<int>(graph.nodes.size()) - 1).second)
        line.Fail(body, "node " + std::string(id) + " is declared twice");
      continue;
    }
    size_t middle = body.find(kSeparator);
    if (middle == std::string_view::npos) line.Fail(body, "an edge is expected: FROM -- TO");
    std::string_view names[2] = {body.substr(0, middle), body.substr(middle + kSeparator.size())};
    int ends[2];
    for (int i = 0; i < 2; ++i) {
      auto found = ids.find(names[i]);
      if (found == ids.end())
        line.Fail(names[i], "node \"" + std::string(names[i]) + "\" is not declared above");
      ends[i] = found->second;
    }
    if (ends[0] == ends[1]) line.Fail(body, "an edge from a node to itself");
    graph.edges.push_back({ends[0], ends[1]});
    edge_lines.push_back(number);
  }
  if (graph.nodes.empty()) throw Error(path + ":1:1", "the graph has no nodes");
  if (TopologicalOrder(static_cast<int>(graph.nodes.size()), graph.edges).empty()) {
    size_t edge = CycleEdge(graph);
    auto [from, to] = graph.edges[edge];
    throw Error(
        path + ":" + std::to_string(edge_lines[edge]) + ":2",
        "the edge " + graph.nodes[from].id + " -- " + graph.nodes[to].id + " closes a cycle");
  }
  graph.arguments_ordered = GroupedByDestination(graph);
  return graph;
}

// Formats a number as Python formats a float: 4.0, 1.5, 1e+16.
static std::string Decimal(double value) {
  char out[40];
  char* end = value < 1e16 && value == std::floor(value)
                  ? std::to_chars(out, out + sizeof out, value, std::chars_format::fixed).ptr
                  : std::to_chars(out, out + sizeof out, value).ptr;
  std::string text(out, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

static std::string Fixed(double value) {
  std::string out(400, '\0');
  out.resize(static_cast<size_t>(std::snprintf(out.data(), out.size(), "%.3f", value)));
  return out;
}

std::string WriteGraphText(const ModelGraph& graph) {
  std::string out;
  for (const GraphNode& node : graph.nodes) {
    std::string description = node.description;
    std::erase(description, '\n');
    std::vector<std::string> sizes;
    for (double bytes : node.output_bytes) sizes.push_back(Decimal(bytes));
    std::string size = node.is_list ? "[" + Join(sizes, "; ") + "]" : Decimal(node.OutputBytes());
    if (!out.empty()) out += '\n';
    out += node.id + " -- " + description + " -- forward_compute_time=" + Fixed(node.forward_ms) +
           ", backward_compute_time=" + Fixed(node.backward_ms) + ", activation_size=" + size +
           ", parameter_size=" + Fixed(node.parameter_bytes);
    if (node.stage >= 0) out += " -- stage_id=" + std::to_string(node.stage);
  }
  if (!graph.arguments_ordered) {
    // Edges grouped by destination would be read as being in argument order.
    for (auto [from, to] : graph.edges)
      out += "\n\t" + graph.nodes[from].id + " -- " + graph.nodes[to].id;
    return out;
  }
  std::vector<std::vector<int>> arguments = Arguments(graph);
  for (size_t to = 0; to < arguments.size(); ++to)
    for (int from : arguments[to])
      out += "\n\t" + graph.nodes[from].id + " -- " + graph.nodes[to].id;
  return out;
}

bool LooksLikeGraphText(std::string_view text) {
  std::string_view first = Strip(text);
  first = first.substr(0, first.find('\n'));
  return !first.empty() && first[0] != '{' && first[0] != '[' &&
         first.find(kSeparator) != std::string_view::npos;
}

bool NumericIdLess(const std::string& a, const std::string& b) {
  auto key = [](const std::string& id) {
    std::string_view text = id;
    size_t digits = text.size();
    while (digits > 0 && text[digits - 1] >= '0' && text[digits - 1] <= '9') --digits;
    std::string_view number = text.substr(digits);
    while (number.size() > 1 && number[0] == '0') number.remove_prefix(1);
    return std::tuple(text.substr(0, digits), number.size(), number, text);
  };
  return key(a) < key(b);
}

std::vector<std::vector<int>> Arguments(const ModelGraph& graph) {
  std::vector<std::vector<int>> arguments(graph.nodes.size());
  for (auto [from, to] : graph.edges) arguments[to].push_back(from);
  if (graph.arguments_ordered) return arguments;
  for (auto& sources : arguments)
    std::stable_sort(sources.begin(), sources.end(), [&](int a, int b) {
      return NumericIdLess(graph.nodes[a].id, graph.nodes[b].id);
    });
  return arguments;
}

std::vector<int> TopologicalOrder(int nodes, const std::vector<std::pair<int, int>>& edges) {
  std::vector<int> waiting(nodes, 0), first(nodes + 1, 0), next(edges.size());
  for (auto [from, to] : edges) ++waiting[to], ++first[from + 1];
  for (int i = 0; i < nodes; ++i) first[i + 1] += first[i];
  std::vector<int> fill(first.begin(), first.end() - 1);
  for (auto [from, to] : edges) next[fill[from]++] = to;
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (int i = 0; i < nodes; ++i)
    if (!waiting[i]) ready.push(i);
  std::vector<int> order;
  while (!ready.empty()) {
    int node = ready.top();
    ready.pop();
    order.push_back(node);
    for (int e = first[node]; e < first[node + 1]; ++e)
      if (--waiting[next[e]] == 0) ready.push(next[e]);
  }
  if (static_cast<int>(order.size()) < nodes) order.clear();
  return order;
}

}  // namespace pipewright
