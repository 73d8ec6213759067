#include "server/fields.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "server/bad_request.h"

namespace thalweg::server {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& expected) {
  throw BadRequest(std::string("'") + name + "' must be " + expected, name);
}

std::string plain(double value) {
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

const Json* find_field(const Json& body, const char* name) {
  if (!body.is_object()) throw BadRequest(std::string("there must be an object with '") + name + "'", name);
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> number_field(const Json& body, const char* name, double least, double most) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return std::nullopt;
  const double value = field->is_number() ? field->get<double>() : NAN;
  if (!(value >= least && value <= most)) refuse(name, "a number from " + plain(least) + " to " + plain(most));
  return value;
}

std::optional<std::int64_t> integer_field(const Json& body, const char* name, std::int64_t least, std::int64_t most) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return std::nullopt;
  const bool fits =
      field->is_number_integer() &&
      !(field->is_number_unsigned() && field->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX));
  const std::int64_t value = fits ? field->get<std::int64_t>() : 0;
  if (!fits || value < least || value > most) {
    refuse(name, "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value;
}

std::optional<bool> bool_field(const Json& body, const char* name) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return std::nullopt;
  if (!field->is_boolean()) refuse(name, "true or false");
  return field->get<bool>();
}

const std::string* string_field(const Json& body, const char* name) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return nullptr;
  if (!field->is_string()) refuse(name, "a text");
  return &field->get_ref<const std::string&>();
}

const Json* object_field(const Json& body, const char* name) {
  const Json* field = find_field(body, name);
  if (field != nullptr && !field->is_object()) refuse(name, "an object");
  return field;
}

const Json* list_field(const Json& body, const char* name) {
  const Json* field = find_field(body, name);
  if (field != nullptr && !field->is_array()) refuse(name, "a list");
  return field;
}

const std::string& required_string(const Json& body, const char* name) {
  const std::string* field = string_field(body, name);
  if (field == nullptr) refuse(name, "a text");
  return *field;
}

const Json& required_list(const Json& body, const char* name) {
  const Json* field = list_field(body, name);
  if (field == nullptr || field->empty()) refuse(name, "a list of at least one element");
  return *field;
}

const std::string* choice_field(const Json& body, const char* name, std::initializer_list<const char*> choices) {
  const std::string* field = string_field(body, name);
  if (field == nullptr) return nullptr;
  if (std::find(choices.begin(), choices.end(), *field) == choices.end()) {
    std::string expected;
    for (const char* choice : choices) expected += std::string(expected.empty() ? "'" : ", '") + choice + "'";
    refuse(name, "one of " + expected);
  }
  return field;
}

std::vector<std::string> stop_field(const Json& body, const char* name) {
  const Json* field = find_field(body, name);
  if (field == nullptr) return {};
  const Json list = field->is_array() ? *field : Json::array({*field});
  std::vector<std::string> stops;
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() || list.size() > 16) {
      refuse(name, "a text, or a list of at most 16 texts, none of them empty");
    }
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

Sampling sampling_fields(const Json& body) {
  Sampling sampling;
  sampling.temperature = static_cast<float>(number_field(body, "temperature", 0, 2).value_or(1));
  sampling.top_p = static_cast<float>(number_field(body, "top_p", 0, 1).value_or(1));
  if (sampling.top_p <= 0) sampling.top_p = 1e-6F;  // the likeliest token alone
  sampling.top_k = static_cast<int>(integer_field(body, "top_k", -1, INT32_MAX).value_or(0));
  if (sampling.top_k < 0) sampling.top_k = 0;
  sampling.min_p = static_cast<float>(number_field(body, "min_p", 0, 1).value_or(0));
  sampling.repeat_penalty = static_cast<float>(number_field(body, "repetition_penalty", 0.01, 10).value_or(1));
  const auto seed = integer_field(body, "seed", INT64_MIN, INT64_MAX);
  sampling.seed = seed ? static_cast<std::uint64_t>(*seed) : std::random_device()();
  return sampling;
}

}  // namespace thalweg::server
