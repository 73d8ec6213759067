#pragma once

#include <string>
#include <vector>

namespace thalweg::app {

// The candidate that `word` was probably meant to be: one that it begins, or one within a few typing errors. Empty if
// there is none.
std::string closest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace thalweg::app
