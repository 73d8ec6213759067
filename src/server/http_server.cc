#include "server/http_server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <mutex>
#include <thread>

#include "server/http_connection.h"
#include "thalweg/error.h"

namespace thalweg::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options, Handler handler)
      : shared(options, std::move(handler)), acceptor(asio::make_strand(context)) {}

  void listen();
  void accept();
  std::vector<std::shared_ptr<HttpConnection>> all();

  HttpShared shared;
  // The context's destructor destroys what is pending, and connections with it: what they use comes before it.
  asio::io_context context;
  tcp::acceptor acceptor;
  std::uint16_t port = 0;
  std::vector<std::thread> threads;
};

void HttpServer::Impl::listen() {
  const HttpOptions& options = shared.options;
  error_code error;
  const auto require = [&](const std::string& what) {
    if (error) throw Error("serve", what, "one that can be used", error.message());
  };
  const std::string where = options.host + ":" + std::to_string(options.port);
  const asio::ip::address address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  require("host '" + options.host + "'");
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  require("address " + where);
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  require("address " + where);
  acceptor.listen(1024, error);
  require("address " + where);
  port = acceptor.local_endpoint().port();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(asio::make_strand(context), [this](error_code error, tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (error) {
      // Out of file descriptors, say: others may be closed soon.
      auto timer = std::make_shared<asio::steady_timer>(acceptor.get_executor(), std::chrono::milliseconds(100));
      timer->async_wait([this, timer](error_code) { accept(); });
      return;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const bool full = shared.count >= shared.options.connections;
    const auto connection = std::make_shared<HttpConnection>(shared, std::move(socket));
    if (full) {
      connection->refuse();
    } else {
      connection->start();
    }
    accept();
  });
}

std::vector<std::shared_ptr<HttpConnection>> HttpServer::Impl::all() {
  const std::lock_guard lock(shared.mutex);
  std::vector<std::shared_ptr<HttpConnection>> alive;
  for (HttpConnection* connection : shared.connections) {
    if (auto locked = connection->weak_from_this().lock()) alive.push_back(std::move(locked));
  }
  return alive;
}

HttpServer::HttpServer(const HttpOptions& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {
  impl_->listen();
  impl_->accept();
  for (int i = 0; i < std::max(1, options.threads); ++i) {
    impl_->threads.emplace_back([impl = impl_.get()] { impl->context.run(); });
  }
}

HttpServer::~HttpServer() {
  stop_accepting();
  // Ends of answers that are being written.
  for (int i = 0; i < 400 && impl_->shared.count > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (const auto& connection : impl_->all()) connection->close_now();
  impl_->context.stop();
  for (std::thread& thread : impl_->threads) thread.join();
}

std::uint16_t HttpServer::port() const { return impl_->port; }
int HttpServer::connections() const { return impl_->shared.count; }

void HttpServer::stop_accepting() {
  impl_->shared.accepting = false;
  asio::post(impl_->acceptor.get_executor(), [impl = impl_.get()] {
    error_code ignored;
    impl->acceptor.close(ignored);
  });
  for (const auto& connection : impl_->all()) connection->close_if_idle();
}

}  // namespace thalweg::server
