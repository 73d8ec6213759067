#pragma once

#include <random>
#include <string>

#include "validator.h"

namespace thalweg::grammar {

// A value of the schema, with properties in its order and no others but additional ones that it describes.
Value random_document(const Value& schema, const Value& document, std::mt19937& random, int depth = 0);

// With something changed somewhere.
Value damaged(const Value& value, std::mt19937& random);
std::string damaged(std::string text, std::mt19937& random);

}  // namespace thalweg::grammar
