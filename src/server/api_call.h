#pragma once

#include <memory>
#include <string>

#include "server/http_server.h"
#include "server/json.h"
#include "thalweg/engine.h"

namespace thalweg::server {

class GrammarCache;

// A response that receives the request's usage before its end.
class UsageSink {
 public:
  virtual ~UsageSink() = default;
  virtual void add_usage(const Usage& usage) = 0;
};

// A request that generates, with what it needs of the server.
struct ApiCall {
  Engine& engine;
  GrammarCache& grammars;
  const std::string& model_name;
  bool force_chat;  // ApiOptions
  const Json& body;
  std::shared_ptr<HttpResponse> response;
  std::shared_ptr<UsageSink> usage;
};

// "model" of the body, which may be any, or the server's.
std::string model_name_of(const ApiCall& call);

}  // namespace thalweg::server
