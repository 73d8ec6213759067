#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace thalweg::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  // 0: any that is free
  int threads = 2;
  int connections = 4096;                            // at once; further ones are answered 503
  std::size_t header_bytes = std::size_t{16} << 10;  // of a request
  std::size_t body_bytes = std::size_t{16} << 20;    // of a request
  std::size_t unsent_bytes = std::size_t{4} << 20;   // of an answer to a client that does not read; then it ends
  std::chrono::milliseconds header_time{10'000};     // until a request's header is there
  std::chrono::milliseconds body_time{60'000};       // until its body is there
  std::chrono::milliseconds idle_time{75'000};       // between requests of a connection
  std::chrono::milliseconds write_time{30'000};      // in which a client must take something of an answer
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string body;
  std::string remote;   // address of the client
  HttpHeaders headers;  // names in lower case

  std::string_view header(std::string_view name) const;  // in lower case; empty if there is none
};

// An answer to one request: send(), or begin_stream() and write() until end(). Any thread may call it, also after the
// client has gone. An answer that is dropped without an end closes the connection.
class HttpResponse {
 public:
  virtual ~HttpResponse() = default;
  virtual void send(int status, std::string_view content_type, std::string_view body,
                    const HttpHeaders& headers = {}) = 0;
  virtual void begin_stream(std::string_view content_type, const HttpHeaders& headers = {}) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end() = 0;
  // Called once if the client goes before the answer's end; at once if it has gone.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

// HTTP/1.1 and 1.0 by Boost.Beast: connections wait without a thread each. What is no HTTP, too long or too slow gets
// an error where it can be read, and the connection is closed.
class HttpServer {
 public:
  // Called by one of the server's threads; must not wait for long. What it throws is answered 500.
  using Handler = std::function<void(const HttpRequest& request, std::shared_ptr<HttpResponse> response)>;

  // Listens when it returns. Throws Error if the address cannot be used.
  HttpServer(const HttpOptions& options, Handler handler);
  // Closes all connections, after at most two seconds for what is being written. Answers must not be held any longer.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  int connections() const;
  // Accepts no more connections, and closes those that wait for a request.
  void stop_accepting();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thalweg::server
