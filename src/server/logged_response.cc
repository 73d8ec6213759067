#include "server/logged_response.h"

#include <algorithm>
#include <utility>

namespace thalweg::server {
namespace {

// The client went before it was answered.
constexpr int kClosedByClient = 499;

}  // namespace

LoggedResponse::LoggedResponse(std::shared_ptr<HttpResponse> response, RequestLog log, Api::OnRequest on_request,
                               HttpHeaders headers)
    : response_(std::move(response)),
      log_(std::move(log)),
      on_request_(std::move(on_request)),
      headers_(std::move(headers)),
      begin_(std::chrono::steady_clock::now()) {}

LoggedResponse::~LoggedResponse() { report(log_.status == 0 ? kClosedByClient : log_.status); }

void LoggedResponse::send(int status, std::string_view content_type, std::string_view body,
                          const HttpHeaders& headers) {
  response_->send(status, content_type, body, with_common(headers));
  report(status);
}

void LoggedResponse::begin_stream(std::string_view content_type, const HttpHeaders& headers) {
  response_->begin_stream(content_type, with_common(headers));
  const std::lock_guard lock(mutex_);
  log_.status = 200;
}

void LoggedResponse::write(std::string_view bytes) { response_->write(bytes); }

void LoggedResponse::end() {
  response_->end();
  report(200);
}

void LoggedResponse::on_disconnect(std::function<void()> callback) { response_->on_disconnect(std::move(callback)); }

void LoggedResponse::add_usage(const Usage& usage) {
  const std::lock_guard lock(mutex_);
  log_.usage.prompt_tokens += usage.prompt_tokens;
  log_.usage.cached_tokens += usage.cached_tokens;
  log_.usage.generated_tokens += usage.generated_tokens;
  log_.usage.queue_seconds = std::max(log_.usage.queue_seconds, usage.queue_seconds);
  log_.usage.prompt_seconds = std::max(log_.usage.prompt_seconds, usage.prompt_seconds);
  log_.usage.generation_seconds = std::max(log_.usage.generation_seconds, usage.generation_seconds);
}

HttpHeaders LoggedResponse::with_common(const HttpHeaders& headers) const {
  HttpHeaders all = headers_;
  all.insert(all.end(), headers.begin(), headers.end());
  return all;
}

void LoggedResponse::report(int status) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(reported_, true)) return;
    log_.status = status;
    log_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  if (on_request_) on_request_(log_);
}

}  // namespace thalweg::server
