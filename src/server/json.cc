#include "server/json.h"

#include <cstddef>
#include <vector>

#include "server/bad_request.h"

namespace thalweg::server {
namespace {

constexpr std::size_t kMaxLevels = 128;
constexpr int kMaxKeys = 2048;  // of an object

// Called while a body is parsed.
class Limits {
 public:
  bool check(Json::parse_event_t event) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (keys_.size() == kMaxLevels) throw BadRequest("the body is nested too deeply");
        keys_.push_back(0);
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (++keys_.back() > kMaxKeys) throw BadRequest("an object in the body has too many keys");
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  std::vector<int> keys_;  // of each open object
};

}  // namespace

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json parse_json(std::string_view text) {
  Limits limits;
  return Json::parse(
      text, [&](int, Json::parse_event_t event, Json&) { return limits.check(event); }, false);
}

Json parse_body(std::string_view text) {
  Json body = parse_json(text);
  if (body.is_discarded()) throw BadRequest("the body is not JSON");
  if (!body.is_object()) throw BadRequest("the body must be a JSON object");
  return body;
}

}  // namespace thalweg::server
