// Reads a Python pickle as a description of values. Nothing is imported, called or executed: a
// call in the pickle becomes a node that names the function and its arguments.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

struct PickleNode {
  enum Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,        // str
    kBytes,       // bytes, and integers wider than 64 bits
    kTuple,       // items
    kList,        // items
    kDict,        // items: key, value, key, value, ...; an OrderedDict too
    kGlobal,      // text: "module name"
    kCall,        // items: the function, its arguments (a tuple) and, if set, the object's state
    kPersistent,  // items: the identifier; an object outside the pickle
    kMark,        // only while reading
  };
  Kind kind = kNone;
  int64_t number = 0;  // kBool, kInt
  double real = 0;     // kFloat
  std::string text;    // kText, kBytes, kGlobal
  std::vector<int> items;
};

struct Pickle {
  std::vector<PickleNode> nodes;
  int root = -1;
  size_t size = 0;  // bytes of the input that the pickle takes

  const PickleNode& operator[](int id) const { return nodes[static_cast<size_t>(id)]; }
};

// Parses a pickle of plain data (protocols 2 to 5, as PyTorch writes them). `allowed` returns true
// for a global "module name" that may appear. Throws Error naming `where` and the byte for other
// globals, other instructions and damage. Uses memory in proportion to the input.
Pickle ParsePickle(std::string_view bytes, const std::string& where,
                   const std::function<bool(const std::string&)>& allowed);

// Returns "a dict", "an integer" and the like, for messages.
const char* PickleKindName(PickleNode::Kind kind);

}  // namespace pipewright
