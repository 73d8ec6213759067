#pragma once

// Compiles JSON Schema: each schema becomes a fragment of the automaton, each target of a reference a rule.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/regex.h"
#include "grammar/schema_keywords.h"
#include "grammar/schema_sets.h"
#include "grammar/text_rules.h"

namespace thalweg::grammar {

class SchemaCompiler {
 public:
  // `path`: what errors call the document. Both arguments must outlive the compiler.
  SchemaCompiler(TextRules& rules, const Json& document, const std::string& path);

  // JSON of the document's schema.
  StateId document(StateId next);
  // Its properties as <parameter=key>, value, </parameter>, each on lines of its own.
  StateId parameters(StateId next);
  // The rules of what has been compiled so far.
  void finish();

 private:
  struct Property {
    std::string name;
    const Json* schema;
    bool required;
    std::string path;
  };
  // The properties in order; `additional`: the schema of further ones, `false` if there may be none.
  struct Members {
    std::vector<Property> listed;
    Json additional = false;
  };
  class Nesting;

  StateId schema(const Json& schema, const std::string& path, StateId next);
  StateId reference(const Json& schema, const std::string& path, StateId next);
  StateId combination(const Json& schema, const std::string& path, StateId next);
  StateId alternatives(const Json& schema, std::string_view keyword, const std::string& path, StateId next);
  void check_disjoint(const Json& list, const std::string& path);
  StateId typed(const Json& schema, const std::string& path, StateId next);
  StateId of_type(const std::string& type, const Json& schema, const std::string& path, StateId next);

  StateId constants(const Json& schema, const std::string& path, StateId next);
  StateId constant(const Json& value, StateId next);
  std::vector<Json> constant_values(const Json& schema, const std::string& path) const;
  // The pattern or format of a string, if it has one, with which its lengths agree.
  std::vector<Regex> patterns(const Json& schema, const std::string& path) const;
  StateId number(const Json& schema, bool integer, const std::string& path, StateId next);
  StateId string(const Json& schema, const std::string& path, StateId next);
  StateId array(const Json& schema, const std::string& path, StateId next);
  StateId object(const Json& schema, const std::string& path, StateId next);
  Members members(const Json& schema, const std::string& path) const;

  // schema_parameters.cc
  StateId parameter(const Property& property, StateId next);
  bool is_text(const Json& schema, const std::string& path);
  StateId raw_text(const Json& schema, const std::string& path, StateId next);
  StateId raw_bounded(Bounds bounds, StateId next);

  StateId rule_of(const Json& reference, const std::string& path);
  void check_recursion() const;

  TextRules& rules_;
  AutomatonBuilder& builder_;
  const Json& document_;
  std::string path_;
  SchemaSets sets_;
  int depth_ = 0;

  std::map<std::string, StateId> rule_starts_;  // by reference
  std::vector<std::string> open_rules_;         // not yet compiled
  // The references that a rule may begin with; no text may lead from one to itself.
  std::map<std::string, std::set<std::string>> begins_;
  std::string rule_;          // that is being compiled
  bool at_beginning_ = true;  // of it
};

}  // namespace thalweg::grammar
