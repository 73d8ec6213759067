#pragma once

// What grammars are tested and timed with: schemas as programs ask for them, and a vocabulary.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace thalweg::cases {

struct UsualSchema {
  const char* name;
  std::string schema;
};
std::vector<UsualSchema> usual_schemas();

// As byte-level BPE has them: every byte, whose token is its value, then longer tokens that text, code and JSON are
// made of; at the end <|im_end|> and <|other|>.
std::vector<std::string> synthetic_vocabulary(std::size_t count, std::uint32_t seed);

}  // namespace thalweg::cases
