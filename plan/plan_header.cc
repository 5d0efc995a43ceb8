#include "plan/plan_header.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

size_t HeaderSize(std::string_view text) {
  size_t size = 0;
  while (size < text.size() && text[size] == '#') {
    size_t end = text.find('\n', size);
    size = end == std::string_view::npos ? text.size() : end + 1;
  }
  return size;
}

static std::vector<int> Numbers(std::string_view text, const std::string& where) {
  std::vector<int> numbers;
  for (const std::string& part : Split(text, ',')) {
    int number = -1;
    const char* end = part.data() + part.size();
    auto [last, error] = std::from_chars(part.data(), end, number);
    if (error != std::errc() || last != end || number < 0)
      throw Error(where, "\"" + part + "\" is not a number", "numbers are joined by commas: 0,3");
    numbers.push_back(number);
  }
  for (size_t i = 1; i < numbers.size(); ++i)
    if (numbers[i] <= numbers[i - 1])
      throw Error(where, "the stages must ascend, each once", "write 0,3 for 3,0");
  return numbers;
}

void ReadHeader(std::string_view text, const std::string& path, Plan& plan, int& steps) {
  int number = 0;
  for (const std::string& whole : Split(text, '\n')) {
    std::string where = path + ":" + std::to_string(++number) + ": rule \"text\"";
    std::string line = whole;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.size() < 2 || line[1] == ' ') continue;  // a remark, or what follows the last line
    size_t space = std::min(line.find(' '), line.size());
    std::string key = line.substr(1, space - 1);
    std::string value = line.substr(std::min(space + 1, line.size()));
    std::vector<std::string> known = {"steps", "shared", "recompute"};
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw Error(where, "unknown line \"#" + key + "\"" + Suggest(key, known),
                  "known before the ranks: #steps N, #shared 0,3, #recompute 1,2; remarks begin "
                  "with \"# \"");
    std::vector<int> numbers = Numbers(value, where);
    if (key == "shared") plan.shared.push_back(numbers);
    if (key == "recompute") plan.recompute = numbers;
    if (key == "steps") {
      if (numbers.size() != 1 || numbers[0] < 1) throw Error(where, "one number >= 1 is expected");
      steps = numbers[0];
    }
  }
}

std::string WriteHeader(const Plan& plan, int steps) {
  auto list = [](const std::vector<int>& numbers) {
    std::vector<std::string> parts;
    for (int n : numbers) parts.push_back(std::to_string(n));
    return Join(parts, ",");
  };
  if (!plan.layout.header.empty()) {
    Plan said;
    int said_steps = 0;
    ReadHeader(plan.layout.header, "layout", said, said_steps);
    bool same = said_steps == steps || (steps == 0 && said_steps == plan.steps);
    if (said.shared == plan.shared && said.recompute == plan.recompute && same)
      return plan.layout.header;
  }
  std::string end = plan.layout.crlf ? "\r\n" : "\n", out;
  if (steps > 0) out += "#steps " + std::to_string(steps) + end;
  for (const auto& group : plan.shared) out += "#shared " + list(group) + end;
  if (!plan.recompute.empty()) out += "#recompute " + list(plan.recompute) + end;
  return out;
}

}  // namespace pipewright
