#pragma once

#include <algorithm>
#include <cstddef>

#include "capi/errors.h"

namespace thalweg::capi {

// Copies as much of a result as fits, and reports its full size.
template <class Element, class Container>
void copy_out(const Container& from, Element* to, std::size_t capacity, std::size_t* count, const char* function) {
  require_pointer(count, function, "count");
  if (capacity > 0) require_pointer(to, function, "the output");
  std::copy_n(from.begin(), std::min(capacity, from.size()), to);
  *count = from.size();
}

}  // namespace thalweg::capi
