// The collectives on ranks that are threads of this process, over each transport that needs no launcher.

#include "comm/communicator.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "core/float16.h"
#include "thalweg/ranks.h"

namespace thalweg::comm {
namespace {

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return ntohs(address.sin_port);
}

using Body = std::function<void(Communicator&)>;

// Each rank in a thread of its own.
void run_ranks(const std::string& transport, int count, const Body& body, double timeout = 20) {
  std::vector<std::shared_ptr<Ranks>> ranks;
  if (transport == "threads") ranks = Ranks::in_process(count, timeout);
  ranks.resize(static_cast<std::size_t>(count));
  const int port = transport == "tcp" ? free_port() : 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      auto& mine = ranks[static_cast<std::size_t>(r)];
      if (transport == "tcp") {
        RankOptions options;
        options.rank = r;
        options.count = count;
        options.port = port;
        options.timeout_seconds = timeout;
        mine = Ranks::connect(options);
      }
      body(mine->communicator());
      mine.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The value of element i on a rank: sums of such depend on the order of their terms.
float value(int rank, std::int64_t i) {
  std::minstd_rand random(static_cast<unsigned>(i * 131 + rank * 7919 + 1));
  random.discard(3);
  return std::ldexp(static_cast<float>(random() % 2000003) - 1e6F, static_cast<int>(random() % 13) - 20);
}

class CommunicatorThreads : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void run(const Body& body) const { run_ranks(std::get<0>(GetParam()), std::get<1>(GetParam()), body); }
};

TEST_P(CommunicatorThreads, SumsInTheOrderOfTheRanksToTheBit) {
  run([](Communicator& c) {
    for (const std::int64_t count : {1, 2, 3, 1000, 8191, 8193, 300001}) {
      std::vector<float> data(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) data[static_cast<std::size_t>(i)] = value(c.rank(), i);
      c.all_reduce(data.data(), DType::kF32, count);
      for (std::int64_t i = 0; i < count; ++i) {
        float sum = value(0, i);
        for (int r = 1; r < c.size(); ++r) sum += value(r, i);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(sum), std::bit_cast<std::uint32_t>(data[static_cast<std::size_t>(i)]))
            << count << " elements, at " << i;
      }
    }
  });
}

TEST_P(CommunicatorThreads, SumsBf16WithOneRounding) {
  run([](Communicator& c) {
    for (const std::int64_t count : {5, 40001}) {
      std::vector<std::uint16_t> data(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) data[static_cast<std::size_t>(i)] = f32_to_bf16(value(c.rank(), i));
      c.all_reduce(data.data(), DType::kBF16, count);
      for (std::int64_t i = 0; i < count; ++i) {
        float sum = bf16_to_f32(f32_to_bf16(value(0, i)));
        for (int r = 1; r < c.size(); ++r) sum += bf16_to_f32(f32_to_bf16(value(r, i)));
        ASSERT_EQ(data[static_cast<std::size_t>(i)], f32_to_bf16(sum)) << i;
      }
    }
  });
}

TEST_P(CommunicatorThreads, ReducesAndScatters) {
  run([](Communicator& c) {
    constexpr std::int64_t kCount = 777;
    std::vector<float> rows(static_cast<std::size_t>(kCount * c.size()));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = value(c.rank(), static_cast<std::int64_t>(i));
    std::vector<float> sum(kCount, NAN);
    c.reduce_scatter(rows.data(), sum.data(), DType::kF32, kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::int64_t at = c.rank() * kCount + i;
      float expected = value(0, at);
      for (int r = 1; r < c.size(); ++r) expected += value(r, at);
      ASSERT_EQ(sum[static_cast<std::size_t>(i)], expected) << i;
    }
  });
}

TEST_P(CommunicatorThreads, MovesBytes) {
  run([](Communicator& c) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{3000001}}) {
      const auto size = static_cast<std::size_t>(c.size());
      const auto byte = [](int from, int to, std::size_t i) {
        return static_cast<std::uint8_t>(static_cast<std::size_t>(from * 17 + to * 5) + i * 3);
      };
      std::vector<std::uint8_t> mine(bytes), gathered(bytes * size, 0xEE), out(bytes * size), in(bytes * size, 0xEE);
      for (std::size_t i = 0; i < bytes; ++i) mine[i] = byte(c.rank(), 0, i);
      c.all_gather(mine.data(), gathered.data(), bytes);
      for (int r = 0; r < c.size(); ++r) {
        for (std::size_t i = 0; i < bytes; ++i) out[static_cast<std::size_t>(r) * bytes + i] = byte(c.rank(), r, i);
      }
      c.all_to_all(out.data(), in.data(), bytes);
      for (int r = 0; r < c.size(); ++r) {
        for (std::size_t i = 0; i < bytes; ++i) {
          ASSERT_EQ(gathered[static_cast<std::size_t>(r) * bytes + i], byte(r, 0, i));
          ASSERT_EQ(in[static_cast<std::size_t>(r) * bytes + i], byte(r, c.rank(), i));
        }
      }
      const int root = c.size() - 1;
      for (std::size_t i = 0; i < bytes; ++i) mine[i] = byte(c.rank(), 9, i);
      c.broadcast(mine.data(), bytes, root);
      for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(mine[i], byte(root, 9, i));
    }
  });
}

TEST_P(CommunicatorThreads, ABarrierHoldsBackEveryRank) {
  std::atomic<int> arrived = 0;
  run([&](Communicator& c) {
    for (int round = 1; round <= 20; ++round) {
      if (c.rank() == round % c.size()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++arrived;
      c.barrier();
      EXPECT_GE(arrived, round * c.size());
      c.barrier();
    }
  });
}

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorThreads,
                         testing::Combine(testing::Values("threads", "tcp"), testing::Values(1, 2, 3, 4)), name_of);

class LostRankThreads : public testing::TestWithParam<std::string> {};

TEST_P(LostRankThreads, OneThatEndsEndsTheOthersAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> failed = 0;
  run_ranks(GetParam(), 3, [&](Communicator& c) {
    c.barrier();
    if (c.rank() == 1) return;
    float one = 1;
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        for (int i = 0; i < 100; ++i) c.all_reduce(&one, DType::kF32, 1);
        ADD_FAILURE() << "rank " << c.rank() << " noticed nothing";
      } catch (const Error& error) {
        ++failed;
        EXPECT_NE(std::string(error.what()).find("rank"), std::string::npos) << error.what();
      }
      EXPECT_FALSE(c.failure().empty());
    }
  });
  EXPECT_EQ(failed, 4);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_P(LostRankThreads, OneThatHangsEndsTheOthersAfterTheTimeout) {
  std::atomic<int> failed = 0;
  run_ranks(
      GetParam(), 3,
      [&](Communicator& c) {
        c.barrier();
        if (c.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(4000));
          return;
        }
        const auto begin = std::chrono::steady_clock::now();
        try {
          c.barrier();
          ADD_FAILURE() << "rank " << c.rank() << " waited";
        } catch (const Error&) {
          ++failed;
          EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(3500));
        }
      },
      1.0);
  EXPECT_EQ(failed, 2);
}

INSTANTIATE_TEST_SUITE_P(Transports, LostRankThreads, testing::Values("threads", "tcp"));

TEST(RanksThreads, AMissingRankIsNamed) {
  RankOptions options;
  options.count = 3;
  options.port = free_port();
  options.timeout_seconds = 0.5;
  std::string message;
  std::thread first([&] {
    try {
      Ranks::connect(options);
    } catch (const Error& error) {
      message = error.what();
    }
  });
  std::thread second([options]() mutable {
    options.rank = 1;
    EXPECT_THROW(Ranks::connect(options), Error);
  });
  first.join();
  second.join();
  EXPECT_NE(message.find("none of rank 2"), std::string::npos) << message;
}

// Sets variables for a test, and restores them.
class Environment {
 public:
  Environment() {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? "" : value);
      unsetenv(name);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
  }
  void set(const char* name, const char* value) { setenv(name, value, 1); }

 private:
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "WORLD_SIZE",
                                           "RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "SLURM_NTASKS",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS_PER_NODE",
                                           "SLURM_LAUNCH_NODE_IPADDR",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_USE_AGENT_STORE"};
  std::vector<std::pair<const char*, std::string>> before_;
};

TEST(RanksFromEnvironment, ReadsWhatLaunchersLeave) {
  Environment environment;
  EXPECT_EQ(ranks_from_environment().count, 1);
  environment.set("SLURM_NTASKS", "4");
  environment.set("SLURM_PROCID", "3");
  environment.set("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9");
  RankOptions options = ranks_from_environment();
  EXPECT_EQ(std::tie(options.rank, options.count, options.address), std::make_tuple(3, 4, std::string("10.0.0.9")));
  environment.set("WORLD_SIZE", "2");
  environment.set("RANK", "1");
  environment.set("LOCAL_WORLD_SIZE", "2");
  environment.set("MASTER_ADDR", "node0");
  environment.set("MASTER_PORT", "1234");
  options = ranks_from_environment();
  EXPECT_EQ(std::tie(options.rank, options.count, options.address, options.port, options.on_this_host),
            std::make_tuple(1, 2, std::string("node0"), 1234, 2));
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(ranks_from_environment().port, 1235);
  environment.set("OMPI_COMM_WORLD_SIZE", "8");
  environment.set("OMPI_COMM_WORLD_RANK", "7");
  options = ranks_from_environment();
  EXPECT_EQ(std::tie(options.rank, options.count), std::make_tuple(7, 8));
  EXPECT_EQ(options.transport, RankTransport::kMpi);
  environment.set("OMPI_COMM_WORLD_RANK", "8");
  EXPECT_THROW(ranks_from_environment(), Error);
  environment.set("OMPI_COMM_WORLD_RANK", "x");
  EXPECT_THROW(ranks_from_environment(), Error);
}

}  // namespace
}  // namespace thalweg::comm
