// Opcodes: CPython Lib/pickletools.py.
#include "formats/torch/pickle.h"

#include <bit>
#include <cstring>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"

namespace pipewright {
namespace {

using Kind = PickleNode::Kind;

class PickleReader {
 public:
  PickleReader(std::string_view bytes, const std::string& where,
               const std::function<bool(const std::string&)>& allowed)
      : bytes_(bytes), where_(where), allowed_(allowed) {}

  Pickle Read() {
    while (Step()) {
    }
    pickle_.root = Pop();
    pickle_.size = at_;
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(where_ + ": byte " + std::to_string(at_), what);
  }
  std::string_view Take(uint64_t size) {
    if (size > bytes_.size() - at_) Fail("the pickle ends early");
    std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  uint64_t Number(int bytes) {
    std::string_view taken = Take(static_cast<uint64_t>(bytes));
    uint64_t n = 0;
    for (int i = bytes - 1; i >= 0; --i) n = n << 8 | static_cast<unsigned char>(taken[i]);
    return n;
  }
  std::string_view Line() {
    size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) Fail("the pickle ends early");
    std::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  PickleNode& Node(int id) { return pickle_.nodes[static_cast<size_t>(id)]; }
  int Make(Kind kind) {
    pickle_.nodes.emplace_back().kind = kind;
    return static_cast<int>(pickle_.nodes.size() - 1);
  }
  bool Push(int id) { return stack_.push_back(id), true; }
  bool PushInt(int64_t number, Kind kind = Kind::kInt) {
    int id = Make(kind);
    Node(id).number = number;
    return Push(id);
  }
  bool PushText(std::string_view text, Kind kind = Kind::kText) {
    int id = Make(kind);
    Node(id).text = text;
    return Push(id);
  }
  bool PushItems(Kind kind, std::vector<int> items) {
    int id = Make(kind);
    Node(id).items = std::move(items);
    return Push(id);
  }
  int Top() {
    if (stack_.empty() || Node(stack_.back()).kind == Kind::kMark) Fail("an empty stack");
    return stack_.back();
  }
  int Pop() {
    int id = Top();
    stack_.pop_back();
    return id;
  }
  std::vector<int> PopToMark() {
    size_t mark = stack_.size();
    while (mark && Node(stack_[mark - 1]).kind != Kind::kMark) --mark;
    if (!mark) Fail("no mark on the stack");
    std::vector<int> items(stack_.begin() + static_cast<long>(mark), stack_.end());
    stack_.resize(mark - 1);
    return items;
  }
  std::vector<int> PopSome(int n) {
    std::vector<int> items(static_cast<size_t>(n));
    while (n) items[static_cast<size_t>(--n)] = Pop();
    return items;
  }

  bool PushGlobal(std::string_view module, std::string_view name) {
    std::string global = std::string(module) + " " + std::string(name);
    if (!allowed_(global))
      Fail("it refers to " + Quote(std::string(module) + "." + std::string(name)) +
           ", which is not part of a tensor; nothing was executed");
    return PushText(global, Kind::kGlobal);
  }
  // Pushes an integer in two's complement, little-endian, of any length.
  bool PushLong(std::string_view digits) {
    if (digits.size() > 8) return PushText(digits, Kind::kBytes);
    uint64_t n = !digits.empty() && (digits.back() & 0x80) ? ~uint64_t{0} : 0;
    for (size_t i = digits.size(); i-- > 0;) n = n << 8 | static_cast<unsigned char>(digits[i]);
    return PushInt(static_cast<int64_t>(n));
  }
  bool Append(const std::vector<int>& items, Kind kind) {
    PickleNode& target = Node(Top());
    if (target.kind != kind || (kind == Kind::kDict && items.size() % 2))
      Fail("items for something that takes none");
    target.items.insert(target.items.end(), items.begin(), items.end());
    return true;
  }
  bool Call() {
    int arguments = Pop(), function = Pop();
    if (Node(arguments).kind != Kind::kTuple || Node(function).kind != Kind::kGlobal)
      Fail("a call of something that is not a function");
    if (Node(function).text != "collections OrderedDict")
      return PushItems(Kind::kCall, {function, arguments});
    // OrderedDict(), or OrderedDict([[key, value], ...]) as Python 2 wrote it.
    std::vector<int> items, pairs;
    if (!Node(arguments).items.empty()) pairs = Node(Node(arguments).items[0]).items;
    for (int pair : pairs) {
      if (Node(pair).items.size() != 2) Fail("an OrderedDict of something that is not pairs");
      items.insert(items.end(), Node(pair).items.begin(), Node(pair).items.end());
    }
    return PushItems(Kind::kDict, items);
  }
  bool Remember(uint64_t slot) { return memo_[slot] = Top(), true; }
  bool Recall(uint64_t slot) {
    auto it = memo_.find(slot);
    if (it == memo_.end()) Fail("a value that was never stored");
    return Push(it->second);
  }

  // Runs one instruction. Returns false at STOP.
  bool Step() {
    char op = Take(1)[0];
    switch (op) {
      case '.':
        return false;
      case '\x80':
        Number(1);
        return true;  // PROTO
      case '\x95':
        Number(8);
        return true;  // FRAME
      case '(':
        return Push(Make(Kind::kMark));
      case '0':
        Pop();
        return true;  // POP
      case '1':
        PopToMark();
        return true;  // POP_MARK
      case '2':
        return Push(Top());  // DUP
      case 'N':
        return Push(Make(Kind::kNone));
      case '\x88':
        return PushInt(1, Kind::kBool);
      case '\x89':
        return PushInt(0, Kind::kBool);
      case 'K':
        return PushInt(static_cast<int64_t>(Number(1)));
      case 'M':
        return PushInt(static_cast<int64_t>(Number(2)));
      case 'J':
        return PushInt(static_cast<int32_t>(Number(4)));
      case '\x8a':
        return PushLong(Take(Number(1)));
      case '\x8b':
        return PushLong(Take(Number(4)));
      case 'G':
        return PushFloat();
      case 'X':
        return PushText(Take(Number(4)));
      case '\x8c':
        return PushText(Take(Number(1)));
      case '\x8d':
        return PushText(Take(Number(8)));
      case 'U':
        return PushText(Take(Number(1)));  // SHORT_BINSTRING, of Python 2
      case 'T':
        return PushText(Take(Number(4)));  // BINSTRING
      case 'B':
        return PushText(Take(Number(4)), Kind::kBytes);
      case 'C':
        return PushText(Take(Number(1)), Kind::kBytes);
      case '\x8e':
        return PushText(Take(Number(8)), Kind::kBytes);
      case ')':
        return PushItems(Kind::kTuple, {});
      case '\x85':
        return PushItems(Kind::kTuple, PopSome(1));
      case '\x86':
        return PushItems(Kind::kTuple, PopSome(2));
      case '\x87':
        return PushItems(Kind::kTuple, PopSome(3));
      case 't':
        return PushItems(Kind::kTuple, PopToMark());
      case ']':
        return PushItems(Kind::kList, {});
      case 'l':
        return PushItems(Kind::kList, PopToMark());
      case '}':
        return PushItems(Kind::kDict, {});
      case 'd':
        return PushDict();
      case 'a':
        return Append(PopSome(1), Kind::kList);
      case 'e':
        return Append(PopToMark(), Kind::kList);
      case 's':
        return Append(PopSome(2), Kind::kDict);
      case 'u':
        return Append(PopToMark(), Kind::kDict);
      case 'q':
        return Remember(Number(1));
      case 'r':
        return Remember(Number(4));
      case '\x94':
        return Remember(memo_.size());
      case 'h':
        return Recall(Number(1));
      case 'j':
        return Recall(Number(4));
      case 'c': {
        std::string_view module = Line();
        return PushGlobal(module, Line());
      }
      case '\x93': {
        std::vector<int> names = PopSome(2);
        if (Node(names[0]).kind != Kind::kText || Node(names[1]).kind != Kind::kText)
          Fail("a global without a name");
        return PushGlobal(Node(names[0]).text, Node(names[1]).text);
      }
      case 'R':
      case '\x81':  // NEWOBJ: an object of a class, as TorchScript writes it
        return Call();
      case 'Q':
        return PushItems(Kind::kPersistent, PopSome(1));
      case 'b': {  // BUILD: an object's state, or attributes of a value, such as _metadata
        const int state = Pop();
        PickleNode& object = Node(Top());
        if (object.kind == Kind::kCall && object.items.size() == 2) object.items.push_back(state);
        return true;
      }
    }
    --at_;
    Fail("an instruction (" + std::to_string(static_cast<unsigned char>(op)) +
         ") that does not describe plain data; nothing was executed");
  }
  bool PushFloat() {
    std::string_view taken = Take(8);
    uint64_t n = 0;
    for (char c : taken) n = n << 8 | static_cast<unsigned char>(c);
    int id = Make(Kind::kFloat);
    Node(id).real = std::bit_cast<double>(n);
    return Push(id);
  }
  bool PushDict() {
    std::vector<int> items = PopToMark();
    PushItems(Kind::kDict, {});
    return Append(items, Kind::kDict);
  }

  std::string_view bytes_;
  const std::string& where_;
  const std::function<bool(const std::string&)>& allowed_;
  size_t at_ = 0;
  Pickle pickle_;
  std::vector<int> stack_;
  std::unordered_map<uint64_t, int> memo_;
};

}  // namespace

Pickle ParsePickle(std::string_view bytes, const std::string& where,
                   const std::function<bool(const std::string&)>& allowed) {
  return PickleReader(bytes, where, allowed).Read();
}

const char* PickleKindName(PickleNode::Kind kind) {
  static const char* const kNames[] = {
      "None",   "a boolean", "an integer", "a number",  "text",      "bytes",  "a tuple",
      "a list", "a dict",    "a global",   "an object", "a storage", "nothing"};
  return kNames[kind];
}

}  // namespace pipewright
