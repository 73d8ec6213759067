#include "io/gguf_metadata.h"

#include <limits>
#include <type_traits>

#include "io/printable.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr std::string_view kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
static_assert(std::size(kTypeNames) == kNumGgufTypes);
static_assert(std::variant_size_v<GgufValue> == kNumGgufTypes);
static_assert(std::variant_size_v<GgufArray::Elements> == kNumGgufTypes);

template <class T>
inline constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

template <class T>
inline constexpr bool kIsNumber = kIsInteger<T> || std::is_floating_point_v<T>;

template <class T>
bool fits(T value) {
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    return value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  } else {
    return true;
  }
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kNumGgufTypes ? kTypeNames[index] : "?";
}

std::size_t GgufArray::size() const {
  return std::visit([](const auto& list) { return list.size(); }, elements);
}

std::string describe_type(const GgufValue& value) {
  std::string text(gguf_type_name(gguf_type(value)));
  if (const auto* array = std::get_if<GgufArray>(&value)) {
    text += " of " + std::to_string(array->size()) + " " + std::string(gguf_type_name(array->type()));
  }
  return text;
}

void GgufMetadata::fail(std::string_view key, std::string_view expected, std::string_view given) const {
  throw Error(path_, "key " + printable(key), expected, given);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const GgufValue& GgufMetadata::at(std::string_view key, std::string_view expected) const {
  const GgufValue* value = find(key);
  if (value == nullptr) fail(key, expected, "no such key");
  return *value;
}

std::int64_t GgufMetadata::integer(std::string_view key) const {
  constexpr std::string_view kExpected = "an integer below 2^63";
  const GgufValue& value = at(key, kExpected);
  return std::visit(
      [&](const auto& held) -> std::int64_t {
        using T = std::decay_t<decltype(held)>;
        if constexpr (kIsInteger<T>) {
          if (fits(held)) return static_cast<std::int64_t>(held);
          fail(key, kExpected, std::to_string(held));
        }
        fail(key, kExpected, describe_type(value));
      },
      value);
}

double GgufMetadata::number(std::string_view key) const {
  constexpr std::string_view kExpected = "a number";
  const GgufValue& value = at(key, kExpected);
  return std::visit(
      [&](const auto& held) -> double {
        if constexpr (kIsNumber<std::decay_t<decltype(held)>>) return static_cast<double>(held);
        fail(key, kExpected, describe_type(value));
      },
      value);
}

bool GgufMetadata::boolean(std::string_view key) const {
  const GgufValue& value = at(key, "a bool");
  if (const bool* held = std::get_if<bool>(&value)) return *held;
  fail(key, "a bool", describe_type(value));
}

const std::string& GgufMetadata::string(std::string_view key) const {
  const GgufValue& value = at(key, "a string");
  if (const auto* held = std::get_if<std::string>(&value)) return *held;
  fail(key, "a string", describe_type(value));
}

std::int64_t GgufMetadata::integer(std::string_view key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}

double GgufMetadata::number(std::string_view key, double fallback) const { return has(key) ? number(key) : fallback; }

bool GgufMetadata::boolean(std::string_view key, bool fallback) const { return has(key) ? boolean(key) : fallback; }

std::string GgufMetadata::string(std::string_view key, std::string_view fallback) const {
  return has(key) ? string(key) : std::string(fallback);
}

bool GgufMetadata::is_array(std::string_view key) const {
  const GgufValue* value = find(key);
  return value != nullptr && std::holds_alternative<GgufArray>(*value);
}

const GgufArray& GgufMetadata::array(std::string_view key, std::string_view expected) const {
  const GgufValue& value = at(key, expected);
  if (const auto* held = std::get_if<GgufArray>(&value)) return *held;
  fail(key, expected, describe_type(value));
}

std::vector<std::int64_t> GgufMetadata::integers(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of integers below 2^63";
  return std::visit(
      [&](const auto& list) -> std::vector<std::int64_t> {
        using T = typename std::decay_t<decltype(list)>::value_type;
        if constexpr (kIsInteger<T>) {
          std::vector<std::int64_t> values;
          values.reserve(list.size());
          for (const T value : list) {
            if (!fits(value)) fail(key, kExpected, "the element " + std::to_string(value));
            values.push_back(static_cast<std::int64_t>(value));
          }
          return values;
        }
        fail(key, kExpected, describe_type(*find(key)));
      },
      array(key, kExpected).elements);
}

std::vector<float> GgufMetadata::numbers(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of numbers";
  return std::visit(
      [&](const auto& list) -> std::vector<float> {
        using T = typename std::decay_t<decltype(list)>::value_type;
        if constexpr (kIsNumber<T>) {
          std::vector<float> values;
          values.reserve(list.size());
          for (const T value : list) values.push_back(static_cast<float>(value));
          return values;
        }
        fail(key, kExpected, describe_type(*find(key)));
      },
      array(key, kExpected).elements);
}

std::vector<bool> GgufMetadata::booleans(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of bool";
  if (const auto* list = std::get_if<std::vector<bool>>(&array(key, kExpected).elements)) return *list;
  fail(key, kExpected, describe_type(*find(key)));
}

const std::vector<std::string>& GgufMetadata::strings(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of strings";
  if (const auto* list = std::get_if<std::vector<std::string>>(&array(key, kExpected).elements)) return *list;
  fail(key, kExpected, describe_type(*find(key)));
}

void GgufMetadata::set(std::string key, GgufValue value) {
  const auto found = index_.find(key);
  if (found == index_.end()) {
    add(std::move(key), std::move(value));
  } else {
    entries_[found->second].second = std::move(value);
  }
}

bool GgufMetadata::add(std::string key, GgufValue value) {
  if (!index_.emplace(key, entries_.size()).second) return false;
  entries_.emplace_back(std::move(key), std::move(value));
  return true;
}

void GgufMetadata::erase(std::string_view key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  const std::size_t index = found->second;
  index_.erase(found);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  for (auto& entry : index_) entry.second -= entry.second > index ? 1 : 0;
}

}  // namespace thalweg::io
