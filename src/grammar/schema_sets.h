#pragma once

// What schemas mean as sets of values: their intersections, and whether they are disjoint.

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "grammar/schema_keywords.h"

namespace thalweg::grammar {

class SchemaSets {
 public:
  // The document in which references point, and what its errors call it ("#").
  SchemaSets(const Json& document, std::string document_path)
      : document_(document), document_path_(std::move(document_path)) {}

  // What a reference names. Throws Error, with the reference's own path, for others than "#" and "#/...".
  const Json& resolve(const Json& reference, const std::string& path) const;

  // A schema for what is valid in both; of booleans only `false` is returned. Throws Error for keywords that cannot be
  // combined.
  Json intersection(const Json& a, const Json& b, const std::string& path);
  // The same schema without a reference at its top.
  Json dereferenced(const Json& schema, const std::string& path);

  // Whether no value is valid in both, as far as types, constants, and required properties with constants show.
  bool are_disjoint(const Json& a, const Json& b, const std::string& path);

  // The types of values that a schema may allow.
  std::set<std::string> types(const Json& schema, const std::string& path);

 private:
  void charge(const Json& schema, const std::string& path);
  void intersect_keyword(Json& into, std::string_view keyword, const Json& value, const std::string& path);
  void intersect_properties(Json& a, const Json& b, const std::string& path);
  const Json* constants(const Json& schema) const;
  bool values_are_disjoint(const Json& a, const Json& b) const;

  const Json& document_;
  std::string document_path_;
  std::size_t work_ = 0;
  int depth_ = 0;
};

// What keywords without "type" are about.
std::set<std::string> implied_types(const Json& schema);

}  // namespace thalweg::grammar
