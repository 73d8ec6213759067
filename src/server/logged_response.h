#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>

#include "server/api.h"
#include "server/api_call.h"

namespace thalweg::server {

// Passes an answer on, adds the headers that every answer has, and reports it at its end.
class LoggedResponse : public HttpResponse, public UsageSink {
 public:
  LoggedResponse(std::shared_ptr<HttpResponse> response, RequestLog log, Api::OnRequest on_request,
                 HttpHeaders headers);
  ~LoggedResponse() override;
  LoggedResponse(const LoggedResponse&) = delete;
  LoggedResponse& operator=(const LoggedResponse&) = delete;

  void send(int status, std::string_view content_type, std::string_view body, const HttpHeaders& headers) override;
  void begin_stream(std::string_view content_type, const HttpHeaders& headers) override;
  void write(std::string_view bytes) override;
  void end() override;
  void on_disconnect(std::function<void()> callback) override;
  void add_usage(const Usage& usage) override;

 private:
  HttpHeaders with_common(const HttpHeaders& headers) const;
  void report(int status);

  const std::shared_ptr<HttpResponse> response_;
  std::mutex mutex_;
  RequestLog log_;
  const Api::OnRequest on_request_;
  const HttpHeaders headers_;
  const std::chrono::steady_clock::time_point begin_;
  bool reported_ = false;
};

}  // namespace thalweg::server
