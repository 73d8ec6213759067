#pragma once

// A plain blocking client, which can also say what no client should.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace thalweg::server {

class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Until `end` is there, or the connection is closed, or so many milliseconds pass without a byte.
  std::string read_until(std::string_view end, int milliseconds = 10'000) {
    while (received_.find(end) == std::string::npos && receive(milliseconds)) {
    }
    const std::size_t found = received_.find(end);
    return take(found == std::string::npos ? received_.size() : found + end.size());
  }
  std::string read_all(int milliseconds = 10'000) {
    while (receive(milliseconds)) {
    }
    return take(received_.size());
  }
  // A response with a Content-Length.
  std::string read_response() {
    std::string head = read_until("\r\n\r\n");
    const std::size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    const std::size_t length = std::strtoul(head.c_str() + at + 16, nullptr, 10);
    while (received_.size() < length && receive(10'000)) {
    }
    return head + take(std::min(length, received_.size()));
  }
  bool is_closed(int milliseconds = 10'000) {
    while (receive(milliseconds)) {
    }
    return closed_;
  }

  std::string request(const std::string& method, const std::string& path, const std::string& body = {},
                      const std::string& headers = {}) {
    send(method + " " + path + " HTTP/1.1\r\nHost: test\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n" + body);
    return read_response();
  }

 private:
  bool receive(int milliseconds) {
    pollfd poll_for{socket_, POLLIN, 0};
    if (closed_ || ::poll(&poll_for, 1, milliseconds) <= 0) return false;
    char bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    closed_ = got <= 0;
    if (got > 0) received_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  }
  std::string take(std::size_t count) {
    std::string text = received_.substr(0, count);
    received_.erase(0, count);
    return text;
  }

  int socket_;
  bool connected_ = false;
  bool closed_ = false;
  std::string received_;
};

inline int status_of(const std::string& response) {
  return response.starts_with("HTTP/1.1 ") ? std::atoi(response.c_str() + 9) : 0;
}

}  // namespace thalweg::server
