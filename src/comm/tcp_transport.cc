// Ranks as processes on one machine or several: a TCP connection between each two. Rank 0 listens where all can find it
// and sends them each other's addresses; of two others the higher one connects to the lower.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/transport.h"

namespace thalweg::comm {
namespace {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

// What a rank says of itself when it connects. All ranks are of one build and one byte order (compared later).
struct Hello {
  std::uint32_t magic = 0x544C5257;
  std::int32_t rank = 0;
  std::int32_t count = 0;
  std::uint32_t port = 0;  // that it listens at
};

Error refused(std::string_view expected, const std::string& given) {
  return Error("ranks", "connection", expected, given);
}

std::string why() { return std::strerror(errno); }

// Waits for one event; false after `until`.
bool wait_for(int fd, short events, Clock::time_point until) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (Clock::now() >= until) return false;
  }
}

void prepare(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
}

void set_port(Address& address, std::uint32_t port) {
  const auto network = htons(static_cast<std::uint16_t>(port));
  if (address.bytes.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.bytes)->sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.bytes)->sin_port = network;
  }
}

std::uint32_t port_of(const Socket& socket) {
  Address address;
  address.length = sizeof address.bytes;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address.bytes), &address.length);
  const auto network = address.bytes.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address.bytes)->sin6_port
                                                           : reinterpret_cast<sockaddr_in*>(&address.bytes)->sin_port;
  return ntohs(network);
}

Address resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw refused("an address of rank 0 (MASTER_ADDR)", host + ": " + gai_strerror(error));
  Address address;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

// On every interface of the address's family: a name may stand for another one on rank 0's own host.
Socket listen_at(const Address& like, std::uint32_t port) {
  const int family = like.bytes.ss_family;
  Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Address address;
  address.bytes.ss_family = like.bytes.ss_family;
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  // Ranks of one machine alone are heard by that machine alone.
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&like.bytes);
  const bool local = family == AF_INET && (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  if (local) reinterpret_cast<sockaddr_in*>(&address.bytes)->sin_addr = v4->sin_addr;
  set_port(address, port);
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(socket.fd(), reinterpret_cast<sockaddr*>(&address.bytes), address.length) != 0 ||
      listen(socket.fd(), 64) != 0) {
    throw refused("a port that is free (MASTER_PORT)", "port " + std::to_string(port) + ": " + why());
  }
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
  return socket;
}

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TcpOptions& options)
      : options_(options),
        until_(Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.timeout))),
        peers_(static_cast<std::size_t>(options.count)) {
    const Address first = resolve(options.address, options.port);
    if (options.rank == 0) {
      lead(listen_at(first, static_cast<std::uint32_t>(options.port)));
    } else {
      join(first);
    }
  }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout) override;
  int ended_rank() override;
  // Another thread may be within a call: that fails, and its descriptors are not given to anything else.
  void abandon() noexcept override {
    for (const Socket& peer : peers_) {
      if (peer.is_open()) shutdown(peer.fd(), SHUT_RDWR);
    }
  }

 private:
  Socket& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  double seconds_left() const { return std::max(0.1, std::chrono::duration<double>(until_ - Clock::now()).count()); }
  void send_to(int rank, const void* data, std::size_t bytes) {
    const Send one{rank, data, bytes};
    TcpTransport::exchange(std::span(&one, 1), {}, seconds_left());
  }
  void receive_from(int rank, void* data, std::size_t bytes) {
    const Receive one{rank, data, bytes};
    TcpTransport::exchange({}, std::span(&one, 1), seconds_left());
  }

  Hello accept_one(const Socket& listener, Address& from);
  void connect_to(int rank, const Address& address, const Hello& hello);
  void lead(const Socket& listener);
  void join(const Address& first);

  TcpOptions options_;
  Clock::time_point until_;  // of the bootstrap
  std::vector<Socket> peers_;
};

// The next rank that connects; its socket is in its place afterwards.
Hello TcpTransport::accept_one(const Socket& listener, Address& from) {
  while (true) {
    if (!wait_for(listener.fd(), POLLIN, until_)) {
      std::string missing;
      for (int r = 0; r < options_.count; ++r) {
        if (r != options_.rank && (options_.rank == 0 || r > options_.rank) && !peer(r).is_open()) {
          missing += (missing.empty() ? "" : ", ") + std::to_string(r);
        }
      }
      throw refused("a connection of every rank within the timeout", "none of rank " + missing);
    }
    from.length = sizeof from.bytes;
    Socket socket(accept4(listener.fd(), reinterpret_cast<sockaddr*>(&from.bytes), &from.length, SOCK_CLOEXEC));
    if (!socket.is_open()) continue;
    prepare(socket);
    // A stranger that says nothing holds nobody up for long.
    Hello hello;
    std::size_t got = 0;
    const Clock::time_point patience = std::min(until_, Clock::now() + std::chrono::seconds(2));
    while (got < sizeof hello && wait_for(socket.fd(), POLLIN, patience)) {
      const ssize_t count = recv(socket.fd(), reinterpret_cast<char*>(&hello) + got, sizeof hello - got, 0);
      if (count <= 0) break;
      got += static_cast<std::size_t>(count);
    }
    if (got < sizeof hello || hello.magic != Hello().magic) continue;
    if (hello.count != options_.count) {
      throw refused("ranks of " + std::to_string(options_.count), "one of " + std::to_string(hello.count));
    }
    if (hello.rank <= 0 || hello.rank >= options_.count || hello.rank == options_.rank || peer(hello.rank).is_open()) {
      throw refused("each rank once", "rank " + std::to_string(hello.rank) + " again, or out of range");
    }
    peer(hello.rank) = std::move(socket);
    return hello;
  }
}

// Tries until it can: the other side may not have begun to listen.
void TcpTransport::connect_to(int rank, const Address& address, const Hello& hello) {
  while (true) {
    Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    prepare(socket);
    int error =
        ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.bytes), address.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS && wait_for(socket.fd(), POLLOUT, until_)) {
      socklen_t size = sizeof error;
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      peer(rank) = std::move(socket);
      send_to(rank, &hello, sizeof hello);
      return;
    }
    if (Clock::now() >= until_) {
      throw refused("rank " + std::to_string(rank) + " at " + options_.address + ", port " +
                        std::to_string(options_.port) + " (MASTER_ADDR, MASTER_PORT), within the timeout",
                    std::strerror(error));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void TcpTransport::lead(const Socket& listener) {
  std::vector<Address> addresses(static_cast<std::size_t>(options_.count));
  for (int i = 1; i < options_.count; ++i) {
    Address from;
    const Hello hello = accept_one(listener, from);
    set_port(from, hello.port);
    addresses[static_cast<std::size_t>(hello.rank)] = from;
  }
  for (int r = 1; r < options_.count; ++r) send_to(r, addresses.data(), addresses.size() * sizeof(Address));
}

void TcpTransport::join(const Address& first) {
  const Socket listener = listen_at(first, 0);
  const Hello hello{Hello().magic, options_.rank, options_.count, port_of(listener)};
  connect_to(0, first, hello);
  std::vector<Address> addresses(static_cast<std::size_t>(options_.count));
  receive_from(0, addresses.data(), addresses.size() * sizeof(Address));
  for (int r = 1; r < options_.rank; ++r) connect_to(r, addresses[static_cast<std::size_t>(r)], hello);
  for (int r = options_.rank + 1; r < options_.count; ++r) {
    Address from;
    accept_one(listener, from);
  }
}

// One direction of one connection.
struct Flow {
  int peer;
  int fd;
  short events;
  char* data;  // not written to by a POLLOUT
  std::size_t left;
};

// False if nothing could be moved.
bool advance(Flow& flow) {
  const ssize_t count = flow.events == POLLOUT ? send(flow.fd, flow.data, flow.left, MSG_NOSIGNAL)
                                               : recv(flow.fd, flow.data, flow.left, 0);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (count < 0) throw lost(flow.peer, "one whose connection broke: " + why());
  if (count == 0) throw lost(flow.peer, "one that has ended");
  flow.data += count;
  flow.left -= static_cast<std::size_t>(count);
  return true;
}

int TcpTransport::ended_rank() {
  for (int r = 0; r < options_.count; ++r) {
    if (!peer(r).is_open()) continue;
    char next = 0;
    const ssize_t count = recv(peer(r).fd(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return r;
  }
  return -1;
}

void TcpTransport::exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout) {
  std::vector<Flow> flows;
  const auto add = [&](int rank, short events, char* data, std::size_t bytes) {
    if (!peer(rank).is_open()) throw lost(rank, "one that this rank has left");
    if (bytes > 0) flows.push_back({rank, peer(rank).fd(), events, data, bytes});
  };
  for (const Send& send : sends) {
    add(send.peer, POLLOUT, const_cast<char*>(static_cast<const char*>(send.data)), send.bytes);
  }
  for (const Receive& receive : receives) add(receive.peer, POLLIN, static_cast<char*>(receive.data), receive.bytes);
  std::vector<pollfd> entries;
  Clock::time_point last = Clock::now();
  while (true) {
    bool moved = false;
    for (Flow& flow : flows) moved = advance(flow) || moved;
    std::erase_if(flows, [](const Flow& flow) { return flow.left == 0; });
    if (flows.empty()) return;
    if (moved) {
      last = Clock::now();
      continue;
    }
    const double left = timeout - std::chrono::duration<double>(Clock::now() - last).count();
    if (left <= 0) throw silent(flows.front().peer, timeout);
    entries.clear();
    for (const Flow& flow : flows) entries.push_back({flow.fd, flow.events, 0});
    poll(entries.data(), entries.size(), static_cast<int>(std::clamp(left * 1e3, 1.0, 1e3)));
  }
}

}  // namespace

std::unique_ptr<Transport> connect_tcp(const TcpOptions& options) { return std::make_unique<TcpTransport>(options); }

}  // namespace thalweg::comm
