#include "grammar/regex.h"

#include <algorithm>
#include <string>

#include "grammar/regex_parser.h"
#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

using Kind = RegexNode::Kind;

// Of states, and of nodes visited to make them.
constexpr std::size_t kMostWork = 20000;

std::uint32_t sum(std::uint32_t a, std::uint32_t b) { return a > Bounds::kUnlimited - b ? Bounds::kUnlimited : a + b; }

std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  return a != 0 && b > Bounds::kUnlimited / a ? Bounds::kUnlimited : a * b;
}

Bounds lengths_of(const RegexNode& node) {
  if (node.kind == Kind::kSet) return {1, 1};
  if (node.kind == Kind::kRepeat) {
    const Bounds once = lengths_of(node.children.front());
    return {product(once.least, node.least), product(once.most, node.most)};
  }
  Bounds all = node.kind == Kind::kSequence ? Bounds{0, 0} : Bounds{Bounds::kUnlimited, 0};
  for (const RegexNode& child : node.children) {
    const Bounds one = lengths_of(child);
    if (node.kind == Kind::kSequence) {
      all = {sum(all.least, one.least), sum(all.most, one.most)};
    } else {
      all = {std::min(all.least, one.least), std::max(all.most, one.most)};
    }
  }
  return all;
}

class Build {
 public:
  Build(TextRules& rules, Spelling spelling, const std::string& path)
      : rules_(rules), spelling_(spelling), path_(path), before_(rules.builder().size()) {}

  StateId node(const RegexNode& node, StateId next) {
    charge();
    switch (node.kind) {
      case Kind::kSet:
        return rules_.characters(node.set, spelling_, next);
      case Kind::kRepeat:
        return repeat(node, next);
      case Kind::kSequence:
        for (std::size_t i = node.children.size(); i-- > 0;) next = this->node(node.children[i], next);
        return next;
      case Kind::kAlternatives:
        break;
    }
    StateId first = kNowhere;
    for (const RegexNode& child : node.children) first = rules_.builder().either(this->node(child, next), first);
    return first;
  }

 private:
  void charge() {
    if (++visited_ + rules_.builder().size() - before_ > kMostWork) {
      throw Error("json_schema", path_, "a pattern of at most " + std::to_string(kMostWork) + " states", "more");
    }
  }

  StateId repeat(const RegexNode& node, StateId next) {
    const RegexNode& child = node.children.front();
    if (lengths_of(child).most == 0) return next;
    StateId first = next;
    if (node.most == Bounds::kUnlimited) {
      const StateId loop = rules_.builder().reserve();
      rules_.builder().define(loop, rules_.builder().either(this->node(child, loop), next));
      first = loop;
    } else {
      for (std::uint32_t i = node.least; i < node.most; ++i) {
        first = rules_.builder().either(this->node(child, first), next);
      }
    }
    for (std::uint32_t i = 0; i < node.least; ++i) first = this->node(child, first);
    return first;
  }

  TextRules& rules_;
  Spelling spelling_;
  const std::string& path_;
  std::size_t before_;
  std::size_t visited_ = 0;
};

}  // namespace

Regex::Regex(std::string_view pattern, std::string_view path)
    : root_(RegexParser(pattern, path).parse()), path_(path) {}

StateId Regex::build(TextRules& rules, Spelling spelling, StateId next) const {
  return Build(rules, spelling, path_).node(root_, next);
}

Bounds Regex::lengths() const { return lengths_of(root_); }

}  // namespace thalweg::grammar
