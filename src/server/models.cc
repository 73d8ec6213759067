#include "server/models.h"

#include <ctime>

#include "server/json.h"
#include "thalweg/error.h"

namespace thalweg::server {
namespace {

std::string rfc3339(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

// The values of enable_thinking that a conversation may have; none where the model has no known format.
Json thinking_modes(const Model& model) {
  Json modes = Json::array();
  try {
    for (const bool thinking : {false, true}) {
      if (model.can_answer(thinking)) modes.push_back(thinking);
    }
  } catch (const Error&) {
    return Json::array();
  }
  return modes;
}

}  // namespace

std::string openai_models(const ServedModel& served, bool list) {
  const Json model = {{"id", served.name},
                      {"object", "model"},
                      {"created", served.since},
                      {"owned_by", "thalweg"},
                      {"max_model_len", served.model.context()},
                      {"chat", served.model.info().has_chat_template},
                      {"enable_thinking", thinking_modes(served.model)}};
  return dump(list ? Json({{"object", "list"}, {"data", Json::array({model})}}) : model);
}

std::string anthropic_models(const ServedModel& served, bool list) {
  const Json model = {{"type", "model"},
                      {"id", served.name},
                      {"display_name", served.name},
                      {"created_at", rfc3339(served.since)},
                      {"max_input_tokens", served.model.context()},
                      {"max_tokens", served.model.context()}};
  if (!list) return dump(model);
  return dump(
      {{"data", Json::array({model})}, {"has_more", false}, {"first_id", served.name}, {"last_id", served.name}});
}

}  // namespace thalweg::server
