// The transport, to clients that behave and to those that do not.

#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/client.h"
#include "thalweg/error.h"

namespace thalweg::server {
namespace {

using std::chrono::milliseconds;

HttpOptions small_options() {
  HttpOptions options;
  options.port = 0;
  options.header_bytes = 2048;
  options.body_bytes = 10'000;
  options.unsent_bytes = 100'000;
  options.header_time = milliseconds(300);
  options.body_time = milliseconds(300);
  options.idle_time = milliseconds(600);
  options.write_time = milliseconds(500);
  return options;
}

// Answers with method, path and body; /stream in pieces.
void echo(const HttpRequest& request, const std::shared_ptr<HttpResponse>& response) {
  if (request.path == "/throw") throw std::runtime_error("no such luck");
  if (request.path == "/drop") return;
  if (request.path == "/stream") {
    response->begin_stream("text/plain");
    for (int i = 0; i < 5; ++i) response->write("piece " + std::to_string(i) + "\n");
    response->end();
    return;
  }
  response->send(200, "text/plain", request.method + " " + request.path + " " + request.body);
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  const HttpServer server(small_options(), echo);
  Client client(server.port());
  for (int i = 0; i < 3; ++i) {
    const std::string response = client.request("POST", "/a?b=c", "body " + std::to_string(i));
    EXPECT_EQ(status_of(response), 200);
    EXPECT_TRUE(response.ends_with("\r\n\r\nPOST /a body " + std::to_string(i))) << response;
  }
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  const HttpServer server(small_options(), echo);
  Client client(server.port());
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  client.send(requests);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(client.read_response().ends_with("GET /" + std::to_string(i) + " "));
}

TEST(HttpServer, StreamsInChunksAndGoesOn) {
  const HttpServer server(small_options(), echo);
  Client client(server.port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string response = client.read_until("0\r\n\r\n");
  EXPECT_NE(response.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(response.find("8\r\npiece 4\n\r\n0\r\n\r\n"), std::string::npos) << response;
  EXPECT_EQ(status_of(client.request("GET", "/next")), 200);
}

TEST(HttpServer, Http10GetsAStreamUntilTheEnd) {
  const HttpServer server(small_options(), echo);
  Client client(server.port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string response = client.read_all();
  EXPECT_EQ(response.find("chunked"), std::string::npos);
  EXPECT_TRUE(response.ends_with("piece 3\npiece 4\n"));
}

TEST(HttpServer, HeadHasNoBody) {
  const HttpServer server(small_options(), echo);
  Client client(server.port());
  client.send("HEAD /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string response = client.read_all();
  EXPECT_TRUE(response.ends_with("\r\n\r\n")) << response;
}

TEST(HttpServer, RefusesWhatIsNoHttp) {
  const HttpServer server(small_options(), echo);
  for (const std::string bytes :
       {"hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\x02",
        "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "GET / HTTP/1.1\r\nBad Name: x\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"}) {
    Client client(server.port());
    client.send(bytes);
    const std::string response = client.read_all();
    EXPECT_TRUE(response.empty() || status_of(response) == 400) << bytes << " -> " << response;
    EXPECT_TRUE(client.is_closed());
  }
  EXPECT_EQ(status_of(Client(server.port()).request("GET", "/")), 200);
}

TEST(HttpServer, LimitsHeadersAndBodies) {
  const HttpServer server(small_options(), echo);
  EXPECT_EQ(status_of(Client(server.port()).request("GET", "/", "", "X: " + std::string(5000, 'x') + "\r\n")), 431);
  EXPECT_EQ(status_of(Client(server.port()).request("POST", "/", std::string(10'001, 'x'))), 413);
  EXPECT_EQ(status_of(Client(server.port()).request("POST", "/", std::string(10'000, 'x'))), 200);
  Client chunked(server.port());
  chunked.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i) chunked.send("400\r\n" + std::string(1024, 'y') + "\r\n");
  EXPECT_EQ(status_of(chunked.read_response()), 413);
}

// Every byte is sent before the answer is read, as most clients do.
TEST(HttpServer, AClientThatSendsTooMuchReadsTheAnswer) {
  const HttpServer server(small_options(), echo);
  const std::string body(8'000'000, 'x');
  for (const std::string& head :
       {"Content-Length: " + std::to_string(body.size()), "X: " + body.substr(0, 4'000'000)}) {
    Client client(server.port());
    ASSERT_TRUE(client.send("POST / HTTP/1.1\r\nHost: x\r\n" + head + "\r\n\r\n"));
    ASSERT_TRUE(client.send(body));
    EXPECT_EQ(status_of(client.read_response()), head[0] == 'X' ? 431 : 413);
    EXPECT_TRUE(client.is_closed());
  }
}

TEST(HttpServer, ClosesWhenTheClientWantsIt) {
  HttpOptions options = small_options();
  options.idle_time = milliseconds(60'000);
  const HttpServer server(options, echo);
  for (const char* head : {"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", "GET / HTTP/1.0\r\n\r\n"}) {
    Client client(server.port());
    client.send(head);
    EXPECT_NE(client.read_response().find("Connection: close\r\n"), std::string::npos) << head;
    EXPECT_TRUE(client.is_closed(300)) << head;
  }
  Client old(server.port());
  for (int i = 0; i < 2; ++i) {
    old.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_NE(old.read_response().find("Connection: keep-alive\r\n"), std::string::npos);
  }
}

TEST(HttpServer, SendsSlowClientsAway) {
  const HttpServer server(small_options(), echo);
  Client silent(server.port());
  Client half_header(server.port());
  half_header.send("GET / HTTP/1.1\r\nHo");
  Client half_body(server.port());
  half_body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  Client idle(server.port());
  EXPECT_EQ(status_of(idle.request("GET", "/")), 200);
  for (Client* client : {&silent, &half_header, &half_body, &idle}) EXPECT_TRUE(client->is_closed(3000));
}

TEST(HttpServer, AnswersExceptionsAndClosesWhatIsDropped) {
  const HttpServer server(small_options(), echo);
  Client client(server.port());
  EXPECT_EQ(status_of(client.request("GET", "/throw")), 500);
  client.send("GET /drop HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.is_closed());
}

TEST(HttpServer, TellsThatTheClientWent) {
  std::mutex mutex;
  std::shared_ptr<HttpResponse> held;
  std::atomic<int> gone = 0;
  {
    HttpServer server(small_options(), [&](const HttpRequest&, const std::shared_ptr<HttpResponse>& response) {
      response->begin_stream("text/plain");
      response->on_disconnect([&] { ++gone; });
      const std::lock_guard lock(mutex);
      held = response;
    });
    {
      Client client(server.port());
      client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      EXPECT_EQ(status_of(client.read_until("\r\n\r\n")), 200);
    }
    for (int i = 0; i < 200 && gone == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
    EXPECT_EQ(gone, 1);
    const std::lock_guard lock(mutex);
    held->write("nobody reads this");
    held->end();
    held.reset();
  }
}

TEST(HttpServer, AClientThatDoesNotReadIsCutOff) {
  std::atomic<int> gone = 0;
  HttpServer server(small_options(), [&](const HttpRequest&, const std::shared_ptr<HttpResponse>& response) {
    response->begin_stream("text/plain");
    response->on_disconnect([&] { ++gone; });
    for (int i = 0; i < 400; ++i) response->write(std::string(100'000, 'x'));
    response->end();
  });
  Client client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  for (int i = 0; i < 300 && server.connections() > 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(server.connections(), 0);
}

TEST(HttpServer, ManyIdleConnectionsAndOneMore) {
  HttpOptions options = small_options();
  options.connections = 200;
  options.header_time = milliseconds(5000);
  const HttpServer server(options, echo);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(std::make_unique<Client>(server.port()));
  for (int i = 0; i < 200 && server.connections() < 200; ++i) std::this_thread::sleep_for(milliseconds(5));
  Client refused(server.port());
  EXPECT_EQ(status_of(refused.read_all()), 503);
  EXPECT_EQ(status_of(clients[77]->request("GET", "/")), 200);
  clients.clear();
  for (int i = 0; i < 200 && server.connections() > 0; ++i) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(status_of(Client(server.port()).request("GET", "/")), 200);
}

TEST(HttpServer, RandomBytesAndCutsDoNoHarm) {
  const HttpServer server(small_options(), echo);
  const std::string whole =
      "POST /v1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n";
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = whole.substr(0, random() % (whole.size() + 1));
    for (std::uint32_t i = 0; i < random() % 4 && !bytes.empty(); ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Client client(server.port());
    client.send(bytes);
    if (random() % 4 == 0) client.read_until("\r\n", 20);
  }
  EXPECT_EQ(status_of(Client(server.port()).request("GET", "/")), 200);
}

TEST(HttpServer, AnAddressInUseIsAnError) {
  const HttpServer server(small_options(), echo);
  HttpOptions options = small_options();
  options.port = server.port();
  EXPECT_THROW(HttpServer(options, echo), Error);
  options.host = "not an address";
  EXPECT_THROW(HttpServer(options, echo), Error);
}

}  // namespace
}  // namespace thalweg::server
