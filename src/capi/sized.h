#pragma once

// Structs that carry their size. A caller that was compiled with an older header has a shorter struct; what it lacks
// has its default. capi/layouts.h lists the sizes that there have been.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "capi/errors.h"
#include "capi/layouts.h"

namespace thalweg::capi {

// The name of a C struct, as layouts.h spells it.
template <class Struct>
struct NameOf;
#define THALWEG_NAME_OF(name)                   \
  template <>                                   \
  struct NameOf<thalweg_##name> {               \
    static constexpr const char* value = #name; \
  }

// The caller's struct with this version's fields. Throws Error if its size is none that the struct has had.
template <class Struct>
Struct read_sized(const Struct* from, const Struct& defaults, std::span<const Layout> layouts, std::string_view name,
                  const char* operation, const char* argument) {
  require_pointer(from, operation, argument);
  const std::size_t size = from->struct_size;
  if (size == sizeof(Struct)) return *from;
  const auto is_older = [&](const Layout& layout) { return layout.name == name && layout.size == size; };
  if (size > sizeof(Struct) || std::none_of(layouts.begin(), layouts.end(), is_older)) {
    throw Error(operation, std::string(argument) + ".struct_size",
                "at most " + std::to_string(sizeof(Struct)) + ", as thalweg_" + std::string(name) + "_init sets it",
                std::to_string(size));
  }
  Struct whole = defaults;
  std::memcpy(&whole, from, size);
  whole.struct_size = sizeof(Struct);
  return whole;
}
template <class Struct>
Struct read_sized(const Struct* from, const Struct& defaults, const char* operation, const char* argument) {
  return read_sized(from, defaults, kLayouts, NameOf<Struct>::value, operation, argument);
}

// Stores a result in the fields that the caller's struct has.
template <class Struct>
void write_sized(const Struct& result, Struct* to, std::span<const Layout> layouts, std::string_view name,
                 const char* operation, const char* argument) {
  read_sized(to, result, layouts, name, operation, argument);
  const std::size_t size = to->struct_size;
  std::memcpy(to, &result, size);
  to->struct_size = size;
}
template <class Struct>
void write_sized(const Struct& result, Struct* to, const char* operation, const char* argument) {
  write_sized(result, to, kLayouts, NameOf<Struct>::value, operation, argument);
}

// Sets the fields that a struct of `size` bytes has; those of a later version are zero, and calls then refuse it.
template <class Struct>
void init_sized(const Struct& defaults, Struct* to, std::size_t size) noexcept {
  if (to == nullptr || size < sizeof(to->struct_size)) return;
  std::memset(static_cast<void*>(to), 0, size);
  std::memcpy(static_cast<void*>(to), &defaults, std::min(size, sizeof(Struct)));
  to->struct_size = size;
}

}  // namespace thalweg::capi
