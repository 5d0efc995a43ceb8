#include "plan/plan_text.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/plan_header.h"

namespace pipewright {

namespace {

struct Kind {
  ActionKind kind;
  std::string_view name;
  bool microbatch;  // a microbatch follows the name
  char peer;        // the character before the stage at the other end; 0: no peer
};

// Sorted by ActionKind.
constexpr Kind kKinds[] = {
    {ActionKind::kForward, "F", true, 0},
    {ActionKind::kBackward, "B", true, 0},
    {ActionKind::kInputGrad, "I", true, 0},
    {ActionKind::kWeightGrad, "W", true, 0},
    {ActionKind::kOverlap, "OVERLAP_F_B", false, 0},
    {ActionKind::kSendForward, "SEND_F", true, '>'},
    {ActionKind::kRecvForward, "RECV_F", true, '<'},
    {ActionKind::kSendBackward, "SEND_B", true, '>'},
    {ActionKind::kRecvBackward, "RECV_B", true, '<'},
    {ActionKind::kReduceGrad, "REDUCE_GRAD", false, 0},
    {ActionKind::kStep, "STEP", false, 0},
    {ActionKind::kLoad, "LOAD", false, 0},
    {ActionKind::kEvict, "EVICT", false, 0},
    {ActionKind::kUnshard, "UNSHARD", false, 0},
    {ActionKind::kReshard, "RESHARD", false, 0},
};

const Kind& KindOf(ActionKind kind) { return kKinds[static_cast<size_t>(kind)]; }

// Larger numbers are typing errors; products of two of these fit in 64 bits.
constexpr int kLargest = 100'000'000;

// Reads a number at the front of `text` and removes it; -1 if there is none.
int TakeNumber(std::string_view& text, const std::string& where) {
  int value = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error == std::errc::invalid_argument) return -1;
  if (error != std::errc() || value > kLargest)
    throw Error(where, "\"" + std::string(text.substr(0, 60)) + "\" has a number above " +
                           std::to_string(kLargest));
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

[[noreturn]] void Malformed(std::string_view cell, const std::string& where,
                            const std::string& what) {
  throw Error(where, "\"" + std::string(cell.substr(0, 60)) + "\" is not an action: " + what,
              "an action is STAGE KIND MICROBATCH, as 2F5, 2I5, 2SEND_F5>4, 2STEP or "
              "(2F5;1B3)OVERLAP_F_B");
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

Action ParseSimple(std::string_view cell, const std::string& where) {
  std::string_view rest = cell;
  Action action;
  action.stage = TakeNumber(rest, where);
  if (action.stage < 0) Malformed(cell, where, "it does not begin with a stage");
  size_t length = 0;
  while (length < rest.size() &&
         ((rest[length] >= 'A' && rest[length] <= 'Z') || rest[length] == '_'))
    ++length;
  std::string_view name = rest.substr(0, length);
  const Kind* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& k) { return k.name == name; });
  if (kind == std::end(kKinds) || kind->kind == ActionKind::kOverlap) {
    std::vector<std::string> names;
    for (const Kind& k : kKinds)
      if (k.kind != ActionKind::kOverlap) names.emplace_back(k.name);
    Malformed(cell, where, "unknown kind \"" + std::string(name) + "\"" + Suggest(name, names));
  }
  action.kind = kind->kind;
  rest.remove_prefix(length);
  action.microbatch = TakeNumber(rest, where);
  if (kind->microbatch && action.microbatch < 0)
    Malformed(cell, where, "the microbatch is missing");
  if (!kind->microbatch && action.microbatch >= 0)
    Malformed(cell, where, std::string(kind->name) + " has no microbatch");
  auto take = [&](char mark, int& value, const char* meaning) {
    if (rest.empty() || rest[0] != mark) return;
    rest.remove_prefix(1);
    value = TakeNumber(rest, where);
    if (value < 0) Malformed(cell, where, std::string("a ") + meaning + " must follow " + mark);
  };
  if (kind->peer) take(kind->peer, action.peer, "stage");
  take('#', action.slot, "buffer");
  take('@', action.version, "weight version");
  if (!rest.empty())
    Malformed(cell, where, "\"" + std::string(rest.substr(0, 20)) + "\" is too much");
  return action;
}

bool IsInputGradSpelling(const Action& action, bool input_grad_as_b) {
  return input_grad_as_b && action.kind == ActionKind::kInputGrad;
}

void Append(std::string& out, int value) {
  char digits[12];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void AppendText(std::string& out, const Action& action, bool input_grad_as_b) {
  if (action.kind == ActionKind::kOverlap) {
    out += '(';
    Append(out, action.stage);
    out += 'F';
    Append(out, action.microbatch);
    out += ';';
    Append(out, action.overlap_stage);
    out += 'B';
    Append(out, action.overlap_microbatch);
    out += ")OVERLAP_F_B";
  } else {
    const Kind& kind = KindOf(action.kind);
    Append(out, action.stage);
    out += IsInputGradSpelling(action, input_grad_as_b) ? "B" : kind.name;
    if (kind.microbatch) Append(out, action.microbatch);
    if (kind.peer && action.peer >= 0) out += kind.peer, Append(out, action.peer);
  }
  if (action.slot >= 0) out += '#', Append(out, action.slot);
  if (action.version >= 0) out += '@', Append(out, action.version);
}

// In older zb1p files B means I if the same rank has a W for the stage and microbatch.
void ReadInputGrads(Plan& plan) {
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    std::vector<std::pair<int, int>> weight_grads;
    for (const Action& a : plan.ranks[r])
      if (a.kind == ActionKind::kWeightGrad) weight_grads.emplace_back(a.stage, a.microbatch);
    if (weight_grads.empty()) continue;
    std::sort(weight_grads.begin(), weight_grads.end());
    for (Action& a : plan.ranks[r])
      if (a.kind == ActionKind::kBackward &&
          std::binary_search(weight_grads.begin(), weight_grads.end(),
                             std::pair(a.stage, a.microbatch))) {
        a.kind = ActionKind::kInputGrad;
        plan.layout.input_grad_as_b = true;
      }
  }
}

// Splits `text` into lines without their ends and records how they end.
std::vector<std::string_view> Lines(std::string_view text, PlanLayout& layout) {
  std::vector<std::string_view> lines;
  layout.final_newline = !text.empty() && text.back() == '\n';
  if (layout.final_newline) text.remove_suffix(1);
  size_t ends = 0, begin = 0;
  while (true) {
    size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 1;
  }
  // Every line must end the same way; otherwise the \r stays in its cell and is refused there.
  size_t ended = lines.size() - (layout.final_newline ? 0 : 1);
  for (size_t i = 0; i < ended; ++i) ends += !lines[i].empty() && lines[i].back() == '\r';
  layout.crlf = ended > 0 && ends == ended;
  if (layout.crlf)
    for (size_t i = 0; i < ended; ++i) lines[i].remove_suffix(1);
  return lines;
}

}  // namespace

Action ParseAction(std::string_view cell, const std::string& where) {
  cell = Trim(cell);
  if (cell.empty() || cell[0] != '(') return ParseSimple(cell, where);
  size_t middle = cell.find(';'), end = cell.find(')');
  if (middle == std::string_view::npos || end == std::string_view::npos || end < middle ||
      cell.substr(end, 12) != ")OVERLAP_F_B")
    Malformed(cell, where, "a pair ends with )OVERLAP_F_B");
  Action action = ParseSimple(cell.substr(1, middle - 1), where);
  Action backward = ParseSimple(cell.substr(middle + 1, end - middle - 1), where);
  if (action.kind != ActionKind::kForward || backward.kind != ActionKind::kBackward)
    Malformed(cell, where, "a pair is a forward and a full backward");
  if (action.slot >= 0 || action.version >= 0 || backward.slot >= 0 || backward.version >= 0)
    Malformed(cell, where, "# and @ stand behind the pair");
  action.kind = ActionKind::kOverlap;
  action.overlap_stage = backward.stage;
  action.overlap_microbatch = backward.microbatch;
  std::string_view rest = cell.substr(end + 12);
  if (!rest.empty()) {
    std::string carrier = "0STEP" + std::string(rest);
    Action marks = ParseSimple(carrier, where);
    action.slot = marks.slot, action.version = marks.version;
  }
  return action;
}

std::string ToText(const Action& action) {
  std::string out;
  AppendText(out, action, false);
  return out;
}

std::string KindName(ActionKind kind) { return std::string(KindOf(kind).name); }

// `where()` is called only for an error.
template <class Where>
static Action ParseCell(std::string_view cell, const Where& where) {
  try {
    return ParseAction(cell, "");
  } catch (const Error&) {
    return ParseAction(cell, where());
  }
}

// Finds where the actions first differ from `written` steps: an extra STEP, or the end of a rank
// that has too few.
static std::string StepsMissed(const Plan& plan, int written) {
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    std::map<int, int> made;  // by stage
    for (size_t p = 0; p < plan.ranks[r].size(); ++p) {
      const Action& a = plan.ranks[r][p];
      if (a.kind == ActionKind::kStep && ++made[a.stage] > written)
        return PlaceText(static_cast<int>(r), p, a);
    }
    for (auto [stage, steps] : made)
      if (steps < written)
        return "rank " + std::to_string(r) + ", end of its " +
               std::to_string(plan.ranks[r].size()) + " actions, " + std::to_string(stage) + "STEP";
  }
  // The last microbatch does not fill a step.
  int last = plan.steps * plan.microbatches - 1;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p)
      if (std::max(plan.ranks[r][p].microbatch, plan.ranks[r][p].overlap_microbatch) == last)
        return PlaceText(static_cast<int>(r), p, plan.ranks[r][p]);
  return "#steps";
}

// Reads the line of a rank, the `number`-th of the file. Keeps cells that WritePlan would spell
// differently in the layout, except those of older zb1p files, which are known only later. Returns
// the number of actions without effect. Adds malformed cells to `mistakes`; throws if it is null.
static int ReadRank(std::string_view line, size_t r, size_t number, const std::string& path,
                    Plan& plan, std::vector<Error>* mistakes) {
  const int rank = static_cast<int>(r);
  int idle = 0, without_effect = 0;
  std::string canonical;
  auto close_idle = [&] {
    if (idle) plan.layout.idle.push_back({rank, static_cast<int>(plan.ranks[r].size()), idle});
    idle = 0;
  };
  plan.ranks[r].reserve(std::count(line.begin(), line.end(), ',') + 1);
  for (size_t begin = 0; !line.empty() && begin <= line.size();) {
    size_t end = std::min(line.find(',', begin), line.size());
    std::string_view cell = line.substr(begin, end - begin);
    if (cell.empty()) {
      ++idle;
    } else {
      close_idle();
      auto where = [&] {
        return path + ":" + std::to_string(number) + ":" + std::to_string(begin + 1) + ": rank " +
               std::to_string(r) + ", action " + std::to_string(plan.ranks[r].size()) +
               ": rule \"text\"";
      };
      Action action;
      try {
        action = ParseCell(cell, where);
      } catch (const Error& e) {
        if (!mistakes) throw;
        mistakes->push_back(e);
        action.kind = ActionKind::kStep;  // keeps the count of actions
      }
      canonical.clear();
      AppendText(canonical, action, false);
      if (canonical != cell)
        plan.layout.spellings.push_back(
            {rank, static_cast<int>(plan.ranks[r].size()), std::string(cell)});
      without_effect +=
          action.kind == ActionKind::kUnshard || action.kind == ActionKind::kReshard;
      plan.ranks[r].push_back(action);
    }
    begin = end + 1;
  }
  close_idle();
  return without_effect;
}

// Keeps the cells with I in a file whose B are read as I.
static void KeepInputGradCells(const std::vector<std::string_view>& lines, const std::string& path,
                               Plan& plan) {
  for (size_t r = 0; r < lines.size(); ++r) {
    if (lines[r].find('I') == std::string_view::npos) continue;
    size_t position = 0;
    for (const std::string& cell : Split(lines[r], ',')) {
      if (cell.empty()) continue;
      Action a = ParseAction(cell, path);
      if (a.kind == ActionKind::kInputGrad && ToText(a) == cell)
        plan.layout.spellings.push_back({static_cast<int>(r), static_cast<int>(position), cell});
      ++position;
    }
  }
  std::sort(plan.layout.spellings.begin(), plan.layout.spellings.end(),
            [](const auto& a, const auto& b) {
              return std::pair(a.rank, a.position) < std::pair(b.rank, b.position);
            });
}

Plan ReadPlan(std::string_view text, const std::string& path, std::vector<Error>* mistakes) {
  Plan plan;
  size_t header = HeaderSize(text);
  int steps = 0;
  plan.layout.header = text.substr(0, header);
  if (header) ReadHeader(plan.layout.header, path, plan, steps);
  size_t above = static_cast<size_t>(
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(header), '\n'));
  text.remove_prefix(header);
  if (text.empty()) throw Error(path, "no ranks", "a schedule has one line per rank");
  std::vector<std::string_view> lines = Lines(text, plan.layout);
  plan.ranks.resize(lines.size());
  int unsharded = 0;
  for (size_t r = 0; r < lines.size(); ++r)
    unsharded += ReadRank(lines[r], r, above + r + 1, path, plan, mistakes);
  if (mistakes && !mistakes->empty()) return plan;
  ReadInputGrads(plan);
  if (plan.layout.input_grad_as_b) {
    plan.notes.push_back(path +
                         ": B beside a W of the same stage and microbatch is read as the input "
                         "gradient, I (PyTorch's older spelling)");
    KeepInputGradCells(lines, path, plan);
  }
  if (unsharded)
    plan.notes.push_back(path + ": " + std::to_string(unsharded) +
                         " UNSHARD and RESHARD actions are without effect here");
  CountPlan(plan, steps);
  if (steps && plan.steps != steps)
    throw Error(path + ": " + StepsMissed(plan, steps),
                "rule \"step\": #steps " + std::to_string(steps) + ", but its actions make " +
                    std::to_string(plan.steps) + " of " + std::to_string(plan.microbatches) +
                    " microbatches",
                "choose a number of #steps that divides the microbatches, and give each stage as "
                "many STEP actions, or none");
  return plan;
}

std::string WritePlan(const Plan& plan) {
  std::string out = WriteHeader(plan, plan.steps > 1 && !HasSteps(plan) ? plan.steps : 0);
  const PlanLayout& layout = plan.layout;
  auto idle = layout.idle.begin();
  auto spelling = layout.spellings.begin();
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    int rank = static_cast<int>(r);
    bool first = true;
    auto separate = [&] {
      if (!first) out += ',';
      first = false;
    };
    auto write_idle = [&](int position) {
      while (idle != layout.idle.end() && idle->rank < rank) ++idle;
      for (; idle != layout.idle.end() && idle->rank == rank && idle->position <= position; ++idle)
        for (int i = 0; i < idle->count; ++i) separate();
    };
    int size = static_cast<int>(plan.ranks[r].size());
    for (int position = 0; position < size; ++position) {
      write_idle(position);
      separate();
      const Action& action = plan.ranks[r][position];
      while (spelling != layout.spellings.end() &&
             std::pair(spelling->rank, spelling->position) < std::pair(rank, position))
        ++spelling;
      if (spelling != layout.spellings.end() && spelling->rank == rank &&
          spelling->position == position) {
        Action spelled = ParseAction(spelling->text, "layout");
        if (layout.input_grad_as_b && action.kind == ActionKind::kInputGrad &&
            spelled.kind == ActionKind::kBackward)
          spelled.kind = ActionKind::kInputGrad;
        if (spelled == action) {
          out += spelling->text;
          continue;
        }
      }
      AppendText(out, action, layout.input_grad_as_b);
    }
    write_idle(size);
    if (r + 1 < plan.ranks.size() || layout.final_newline) out += layout.crlf ? "\r\n" : "\n";
  }
  return out;
}

}  // namespace pipewright
