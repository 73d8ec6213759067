#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/http_server.h"

namespace thalweg::server {

class HttpConnection;

// What the connections of a server share.
struct HttpShared {
  HttpShared(const HttpOptions& http_options, HttpServer::Handler http_handler)
      : options(http_options), handler(std::move(http_handler)) {}

  const HttpOptions options;
  const HttpServer::Handler handler;
  std::atomic<bool> accepting = true;
  std::mutex mutex;
  std::unordered_set<HttpConnection*> connections;
  std::atomic<int> count = 0;  // of connections
};

// Reads a request, hands it over, and writes its answer; then the next. Everything but the constructor and the posts
// runs on the socket's strand.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpShared& server, boost::asio::ip::tcp::socket socket);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // They post to the strand.
  void start();
  void refuse();
  void close_if_idle();
  void close_now();

 private:
  class Response;
  using ErrorCode = boost::system::error_code;

  void enlist();
  void expire(boost::asio::steady_timer& timer, std::chrono::milliseconds time);

  void read_header(std::chrono::milliseconds time);
  void read_body();
  void read_rest();
  void read_failed(ErrorCode error);
  void fail(boost::beast::http::status status, const std::string& message);
  void handle();
  void watch();
  void next_request();
  void linger();
  void drop_some();

  // Of the answer that is being written.
  void queue(std::string bytes);
  void finish_answer(bool complete);
  void write_some();
  void close();

  HttpShared& server_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer write_deadline_;
  std::string remote_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool keep_alive_ = true;
  bool answering_ = false;  // from the request until the answer's end is written
  bool ended_ = false;      // the answer's end is in the queue
  bool watching_ = false;   // a read is pending while an answer is made
  bool lingering_ = false;  // the answer is written, and what the client still sends is dropped
  bool closed_ = false;
  std::size_t dropped_bytes_ = 0;
  std::deque<std::string> unsent_;
  std::size_t unsent_bytes_ = 0;
  bool writing_ = false;
  std::weak_ptr<Response> response_;
};

}  // namespace thalweg::server
