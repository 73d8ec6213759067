#include "server/http_text.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cctype>
#include <cstddef>

namespace thalweg::server {

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const auto& field) { return field.first == name; });
  return found != headers.end() ? std::string_view(found->second) : std::string_view();
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string response_head(int status, std::string_view content_type, const HttpHeaders& headers, bool keep_alive) {
  namespace http = boost::beast::http;
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string text = "HTTP/1.1 " + std::to_string(status) + " ";
  text.append(reason.data(), reason.size()).append("\r\nContent-Type: ").append(content_type).append("\r\n");
  for (const auto& [name, value] : headers) text.append(name).append(": ").append(value).append("\r\n");
  text += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return text;
}

std::string chunk_of(std::string_view bytes) {
  std::string size;
  for (std::size_t rest = bytes.size(); rest > 0; rest /= 16) size.insert(size.begin(), "0123456789abcdef"[rest % 16]);
  return size + "\r\n" + std::string(bytes) + "\r\n";
}

}  // namespace thalweg::server
