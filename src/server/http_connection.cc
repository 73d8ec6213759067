#include "server/http_connection.h"

#include <array>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <utility>

#include "server/http_text.h"

namespace thalweg::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

// A client that is refused while it sends reads the answer only if what it sends is taken from it.
constexpr std::chrono::milliseconds kLingerQuiet{500};
constexpr std::chrono::milliseconds kLingerTime{5'000};
constexpr std::size_t kLingerBytes = std::size_t{64} << 20;

std::string to_string(boost::beast::string_view text) { return {text.data(), text.size()}; }

void disarm(asio::steady_timer& timer) { timer.expires_at(asio::steady_timer::time_point::max()); }

}  // namespace

class HttpConnection::Response : public HttpResponse {
 public:
  Response(std::shared_ptr<HttpConnection> connection, bool chunked, bool head, bool keep_alive)
      : connection_(std::move(connection)), chunked_(chunked), head_(head), keep_alive_(keep_alive) {}
  ~Response() override {
    if (!ended_) run([](HttpConnection& connection) { connection.finish_answer(false); });
  }
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  void send(int status, std::string_view content_type, std::string_view body, const HttpHeaders& headers) override {
    std::string text = response_head(status, content_type, headers, keep_alive_);
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    if (!head_) text += body;
    ended_ = true;
    run([text = std::move(text)](HttpConnection& connection) mutable {
      connection.queue(std::move(text));
      connection.finish_answer(true);
    });
  }

  void begin_stream(std::string_view content_type, const HttpHeaders& headers) override {
    if (!chunked_) keep_alive_ = false;
    std::string text = response_head(200, content_type, headers, keep_alive_);
    text += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    run([text = std::move(text), keep = keep_alive_](HttpConnection& connection) mutable {
      if (!keep) connection.keep_alive_ = false;
      connection.queue(std::move(text));
    });
  }

  void write(std::string_view bytes) override {
    if (bytes.empty() || head_) return;
    run([text = chunked_ ? chunk_of(bytes) : std::string(bytes)](HttpConnection& connection) mutable {
      connection.queue(std::move(text));
    });
  }

  void end() override {
    ended_ = true;
    run([chunked = chunked_ && !head_](HttpConnection& connection) {
      if (chunked) connection.queue("0\r\n\r\n");
      connection.finish_answer(true);
    });
  }

  void on_disconnect(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  void gone() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback = std::exchange(callback_, nullptr);
    }
    if (callback) callback();
  }

 private:
  template <class Work>
  void run(Work work) {
    asio::post(connection_->socket_.get_executor(),
               [connection = connection_, work = std::move(work)]() mutable { work(*connection); });
  }

  std::shared_ptr<HttpConnection> connection_;
  bool chunked_;
  bool head_;
  bool keep_alive_;
  bool ended_ = false;
  std::mutex mutex_;
  bool gone_ = false;
  std::function<void()> callback_;
};

HttpConnection::HttpConnection(HttpShared& server, tcp::socket socket)
    : server_(server),
      socket_(std::move(socket)),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()) {
  ErrorCode ignored;
  const tcp::endpoint remote = socket_.remote_endpoint(ignored);
  remote_ = remote.address().to_string(ignored);
  ++server_.count;
}

HttpConnection::~HttpConnection() {
  {
    const std::lock_guard lock(server_.mutex);
    server_.connections.erase(this);
  }
  --server_.count;
}

void HttpConnection::enlist() {
  const std::lock_guard lock(server_.mutex);
  server_.connections.insert(this);
}

void HttpConnection::start() {
  enlist();
  asio::dispatch(socket_.get_executor(),
                 [self = shared_from_this()] { self->read_header(self->server_.options.header_time); });
}

void HttpConnection::refuse() {
  enlist();
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    self->fail(http::status::service_unavailable, "too many connections");
  });
}

void HttpConnection::close_if_idle() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] {
    if (!self->answering_) self->close();
  });
}

void HttpConnection::close_now() {
  asio::dispatch(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
}

void HttpConnection::expire(asio::steady_timer& timer, std::chrono::milliseconds time) {
  timer.expires_after(time);
  timer.async_wait([weak = weak_from_this(), &timer](ErrorCode error) {
    const auto self = weak.lock();
    if (error || !self || timer.expiry() > std::chrono::steady_clock::now()) return;
    self->close();
  });
}

void HttpConnection::read_header(std::chrono::milliseconds time) {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(server_.options.header_bytes));
  parser_->body_limit(server_.options.body_bytes);
  expire(deadline_, time);
  http::async_read_header(socket_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, std::size_t) {
    disarm(self->deadline_);
    if (error) return self->read_failed(error);
    self->read_body();
  });
}

void HttpConnection::read_body() {
  if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    auto line = std::make_shared<std::string>("HTTP/1.1 100 Continue\r\n\r\n");
    asio::async_write(socket_, asio::buffer(*line), [self = shared_from_this(), line](ErrorCode error, std::size_t) {
      if (!error) self->read_rest();
    });
    return;
  }
  read_rest();
}

void HttpConnection::read_rest() {
  expire(deadline_, server_.options.body_time);
  http::async_read(socket_, buffer_, *parser_, [self = shared_from_this()](ErrorCode error, std::size_t) {
    disarm(self->deadline_);
    if (error) return self->read_failed(error);
    self->handle();
  });
}

void HttpConnection::read_failed(ErrorCode error) {
  const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
  if (!is_http || error == http::error::end_of_stream || error == http::error::partial_message) return close();
  if (error == http::error::header_limit) {
    return fail(http::status::request_header_fields_too_large, "header too long");
  }
  if (error == http::error::body_limit) return fail(http::status::payload_too_large, "body too long");
  fail(http::status::bad_request, "this is no HTTP request: " + error.message());
}

void HttpConnection::fail(http::status status, const std::string& message) {
  keep_alive_ = false;
  answering_ = true;
  ended_ = false;
  const auto response = std::make_shared<Response>(shared_from_this(), true, false, false);
  response->send(static_cast<int>(status), "text/plain", message + "\n", {});
}

void HttpConnection::handle() {
  const auto message = parser_->release();
  HttpRequest request;
  request.method = to_string(message.method_string());
  const std::string target = to_string(message.target());
  request.path = target.substr(0, target.find('?'));
  request.remote = remote_;
  for (const auto& field : message) {
    request.headers.emplace_back(lower(to_string(field.name_string())), to_string(field.value()));
  }
  keep_alive_ = message.keep_alive() && server_.accepting;
  request.body = message.body();
  answering_ = true;
  ended_ = false;
  const auto response =
      std::make_shared<Response>(shared_from_this(), message.version() >= 11, request.method == "HEAD", keep_alive_);
  response_ = response;
  watch();
  try {
    server_.handler(request, response);
  } catch (const std::exception& error) {
    response->send(500, "text/plain", std::string(error.what()) + "\n", {});
  }
}

// Notices that the client goes; what it sends already is the beginning of its next request.
void HttpConnection::watch() {
  if (watching_ || closed_ || buffer_.size() > server_.options.header_bytes) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
    self->watching_ = false;
    const bool cancelled = error == asio::error::operation_aborted && !self->answering_;
    if (error && !cancelled) return self->close();
    if (self->closed_) return;
    self->buffer_.commit(bytes);
    if (self->lingering_) {
      self->drop_some();
    } else if (self->answering_) {
      self->watch();
    } else {
      disarm(self->deadline_);
      self->read_header(self->server_.options.header_time);
    }
  });
}

void HttpConnection::queue(std::string bytes) {
  if (closed_) return;
  unsent_bytes_ += bytes.size();
  if (!unsent_.empty() && unsent_bytes_ > server_.options.unsent_bytes) return close();
  unsent_.push_back(std::move(bytes));
  write_some();
}

void HttpConnection::write_some() {
  if (writing_ || unsent_.empty()) return;
  writing_ = true;
  expire(write_deadline_, server_.options.write_time);
  socket_.async_write_some(asio::buffer(unsent_.front()),
                           [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
                             self->writing_ = false;
                             disarm(self->write_deadline_);
                             if (error) return self->close();
                             if (self->closed_) return;
                             self->unsent_bytes_ -= bytes;
                             self->unsent_.front().erase(0, bytes);
                             if (self->unsent_.front().empty()) self->unsent_.pop_front();
                             if (!self->unsent_.empty()) return self->write_some();
                             if (self->ended_) self->next_request();
                           });
}

void HttpConnection::finish_answer(bool complete) {
  if (!complete) return close();
  ended_ = true;
  if (unsent_.empty() && !writing_) next_request();
}

void HttpConnection::next_request() {
  if (closed_) return;
  if (!keep_alive_ || !server_.accepting) return linger();
  answering_ = false;
  if (watching_) {
    // The pending read ends with the beginning of a request, which may be there already.
    expire(deadline_, server_.options.idle_time);
    if (buffer_.size() > 0) socket_.cancel();
  } else {
    read_header(buffer_.size() > 0 ? server_.options.header_time : server_.options.idle_time);
  }
}

// Shuts down the sending side. What the client still sends is read for a while: closing with bytes unread resets
// the connection, which takes the answer from the client.
void HttpConnection::linger() {
  lingering_ = true;
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  expire(write_deadline_, kLingerTime);
  expire(deadline_, kLingerQuiet);
  buffer_.clear();
  if (!watching_) drop_some();
}

void HttpConnection::drop_some() {
  buffer_.clear();
  auto chunk = std::make_shared<std::array<char, 65536>>();
  socket_.async_read_some(asio::buffer(*chunk), [self = shared_from_this(), chunk](ErrorCode error, std::size_t bytes) {
    self->dropped_bytes_ += bytes;
    if (error || self->closed_ || self->dropped_bytes_ > kLingerBytes) return self->close();
    self->expire(self->deadline_, kLingerQuiet);
    self->drop_some();
  });
}

void HttpConnection::close() {
  if (closed_) return;
  closed_ = true;
  deadline_.cancel();
  write_deadline_.cancel();
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  unsent_.clear();
  if (const auto response = response_.lock(); response && !ended_) response->gone();
}

}  // namespace thalweg::server
